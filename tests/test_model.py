from dataclasses import FrozenInstanceError

import pytest

from gateway.model import Reason, SortDecision


def test_reasons_read_as_the_header_of_the_contract_shows_them() -> None:
    assert [f"{reason}" for reason in Reason] == [
        "header",
        "model",
        "metadata",
        "prompt",
        "structure",
        "image",
        "default",
    ]


def test_values_cannot_be_changed() -> None:
    decision = SortDecision("text", Reason.DEFAULT)
    with pytest.raises(FrozenInstanceError):
        decision.route = "table"  # type: ignore[misc]
