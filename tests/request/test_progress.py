"""What arrived, and what is known of it by and by."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from gateway.config import parse
from gateway.model import Engine, Reason, SortDecision
from gateway.request.progress import IncomingRequest, RequestProgress
from gateway.state.fleet import Fleet
from gateway.state.lease import Lease
from gateway.state.store import State

if TYPE_CHECKING:
    from gateway.state.requests import MemoryClaim

CONFIG = """
model: m
pools: {p: {engines: [http://e], speculative_config: {method: mtp, num_speculative_tokens: 3}}}
routes: {text: {}}
"""


async def read(limit: int, held: MemoryClaim) -> bytes:
    return b""


def test_what_arrived_cannot_be_changed() -> None:
    incoming = IncomingRequest("/v1/completions", "id", read)
    with pytest.raises(FrozenInstanceError):
        incoming.client = "another"  # type: ignore[misc]


def test_headers_tell_what_is_known_by_now_and_each_attempt_has_an_outcome_of_its_own() -> None:
    state = State(
        Fleet.of(parse(CONFIG, "f", Path(), {})), [Engine("e", "http://e", "p", 3)], lambda: 0.0, Random()
    )
    state.mark("e", up=True)
    progress = RequestProgress(IncomingRequest("/v1/completions", "id", read, context={"traceparent": "t"}))
    assert progress.context == {"traceparent": "t"}
    assert progress.headers() == {"x-request-id": "id"}
    progress.decision = SortDecision("text", Reason.PROMPT)
    sorted_ = {"x-request-id": "id", "x-ocr-route": "text", "x-ocr-route-reason": "prompt"}
    assert progress.headers() == sorted_
    lease = state.take("text")
    assert isinstance(lease, Lease)
    with lease:
        first = progress.begin_attempt(lease)
        first.failed, first.error = 502, "engine_error"
        second = progress.begin_attempt(lease)
        assert progress.outcome is second
        assert (second.failed, second.error) == (0, "")
        assert progress.headers() == {**sorted_, "x-ocr-pool": "p", "x-ocr-depth": "3"}


def test_a_route_that_is_decided_already_is_told_from_the_beginning() -> None:
    decision = SortDecision("table", Reason.HEADER)
    progress = RequestProgress(IncomingRequest("/v1/completions", "id", read, decision=decision))
    assert progress.headers()["x-ocr-route"] == "table"
