from __future__ import annotations

import pytest

from gateway.engines.simulated.faults import Fault, parse_fault
from gateway.errors import BadRequest


def test_a_fault_is_its_kind_and_options() -> None:
    assert parse_fault(b'{"kind": "slow"}') == Fault("slow", factor=10)
    body = b'{"kind": "die_mid_stream", "probability": 0.5, "after_tokens": 3}'
    assert parse_fault(body) == Fault("die_mid_stream", probability=0.5, after_tokens=3)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"kind": "melt"}', "melt"),
        (b"{}", "kind"),
        (b'{"kind": "slow", "factor": 0}', "factor"),
        (b'{"kind": "slow", "speed": 2}', "speed"),
        (b'{"kind": "garbage", "probability": 2}', "probability"),
        (b"\xff", "malformed"),
    ],
)
def test_what_is_no_fault_is_refused(body: bytes, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        parse_fault(body)
