from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from gateway.config import parse
from gateway.engines.vllm_json import speculative_object
from gateway.errors import BadRequest, ClientLeft, Unavailable
from gateway.model import Engine, PageCounts, Reason, SortDecision, Usage
from gateway.policy.fail.retry import Failure
from gateway.request.record import (
    Accounting,
    AnswerOutcome,
    DocumentProgress,
    IncomingRequest,
    RequestProgress,
    final_status,
    record_of,
)
from gateway.state.fleet import Fleet
from gateway.state.lease import Lease
from gateway.state.store import State
from gateway.telemetry.metrics import Metrics
from tests.support import (
    FakeEngine,
    _Sender,
    chat,
    completion,
    png,
)

if TYPE_CHECKING:
    from gateway.state.requests import MemoryClaim
if TYPE_CHECKING:
    from gateway.state.requests import MemoryClaim
    from tests.conftest import Running

CONFIG = """
model: m
pools: {p: {engines: [http://e], speculative_config: {method: mtp, num_speculative_tokens: 3}}}
routes: {text: {}}
"""


async def read(limit: int, held: MemoryClaim) -> bytes:
    return b""


def test_what_arrived_cannot_be_changed() -> None:
    incoming = IncomingRequest("/v1/completions", "id", 0.0, read)
    with pytest.raises(AttributeError):
        incoming.client = "another"  # type: ignore[misc]


def test_headers_tell_what_is_known_by_now_and_each_attempt_has_an_outcome_of_its_own() -> None:
    state = State(
        Fleet.of(parse(CONFIG, "f", Path(), {})), [Engine("e", "http://e", "p", 3)], lambda: 0.0, Random()
    )
    state.mark("e", up=True)
    progress = RequestProgress(
        IncomingRequest("/v1/completions", "id", 0.0, read, context={"traceparent": "t"})
    )
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
    progress = RequestProgress(IncomingRequest("/v1/completions", "id", 0.0, read, decision=decision))
    assert progress.headers()["x-ocr-route"] == "table"


CHAT = "/v1/chat/completions"


async def test_no_document_stands_in_the_log(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await running.http.post(CHAT, json=chat("A secret prompt: Zanzibar"))
    (record,) = [record for record in caplog.records if record.name == "gateway.access"]
    assert record.fields.items() >= {"code": 200, "route": "text", "completion_tokens": 2}.items()  # type: ignore[attr-defined]
    logged = " ".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    for secret in ("Zanzibar", "hello world", base64.b64encode(png("hello")).decode()[:20]):
        assert secret not in logged


async def test_a_log_line_ties_a_request_to_its_engine_depth_and_acceptance(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    told = {"speculative_decoding": speculative_object([20, 26, 26, 38], 330)}

    async def drafting(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.json({**completion("hello"), "usage": {"completion_tokens": 301}, "metrics": told})

    running.deep.behave = drafting
    await running.http.post(CHAT, json=chat("Table Recognition:"), headers={"x-request-id": "slow-1"})
    (record,) = [record for record in caplog.records if record.name == "gateway.access"]
    fields = record.fields  # type: ignore[attr-defined]
    assert fields.items() >= {"request_id": "slow-1", "route": "table", "pool": "mtp3", "depth": 3}.items()
    assert (fields["acceptance_length"], fields["acceptance_source"]) == (2.7455, "request")
    assert fields["engine"]
    where = {"route": "table", "pool": "mtp3"}
    assert await running.metric("ocr_gateway_spec_drafts_total", source="request", **where) == 110
    assert (
        await running.metric("ocr_gateway_spec_accepted_tokens_per_position_total", position="2", **where)
        == 38
    )


async def test_status_tells_what_became_of_a_request_and_why_but_nothing_of_it(running: Running) -> None:
    async def drafting(engine: FakeEngine, request: Any, send: _Sender) -> None:
        told = {"speculative_decoding": speculative_object([20, 26, 26, 38], 330)}
        await send.json({**completion("hello"), "usage": {"completion_tokens": 301}, "metrics": told})

    running.deep.behave = drafting
    await running.http.post(CHAT, json=chat("Table Recognition:"), headers={"x-request-id": "slow-1"})
    await running.http.post(CHAT, json=chat("Zanzibar", metadata={"ocr_route": 5}))  # never sorted
    status = (await running.http.get("/status")).json()
    (told,) = status["recent"]
    expected: dict[str, Any] = {
        "request_id": "slow-1",
        "route": "table",
        "reason": "prompt",
        "pool": "mtp3",
        "depth": 3,
    }
    expected |= {"code": 200, "completion_tokens": 301, "acceptance_length": 2.745, "why": "load"}
    assert told.items() >= {**expected, "waited_s": 0.0}.items()
    assert told["engine"] in {engine["engine"] for engine in status["engines"]}
    assert 0 < told["seconds"] < 60
    assert status["routes"]["table"]["acceptance_length"] == 2.745
    assert (status["routes"]["table"]["requests"], status["routes"]["text"]["requests"]) == (1, 0)
    assert "Zanzibar" not in json.dumps(status)


def progress_of(outcome: AnswerOutcome | None = None, status: int = 0) -> RequestProgress:
    async def read(limit: int, held: MemoryClaim) -> bytes:
        return b""

    progress = RequestProgress(IncomingRequest(CHAT, "id", 100.0, read, key="team-a"))
    progress.outcome, progress.status = outcome, status
    return progress


BUSY = Unavailable("busy", code="engine_busy", retry_after=1)
DONE, GOING_ON = AnswerOutcome(ended=True), AnswerOutcome()
FAILED = AnswerOutcome(failed=502, error="engine_error", ended=True)


@pytest.mark.parametrize(
    ("error", "outcome", "status", "expected"),
    [
        (None, DONE, 200, (200, "")),
        (None, GOING_ON, 422, (422, "")),  # an ordinary answer, which is no stream that ends
        (None, FAILED, 200, (502, "engine_error")),
        (None, AnswerOutcome(failed=400), 200, (400, "")),
        (None, None, 200, (200, "")),  # a document
        (BUSY, None, 0, (503, "engine_busy")),
        (BUSY, FAILED, 0, (503, "engine_busy")),  # what a failed attempt told is not what the client is told
        (BadRequest("no"), None, 0, (400, "")),
        (ClientLeft(), None, 0, (499, "client_left")),
        (ClientLeft(), GOING_ON, 200, (499, "client_left")),
        (asyncio.CancelledError(), GOING_ON, 200, (499, "client_left")),
        (asyncio.CancelledError(), DONE, 200, (200, "")),  # who leaves with all of the answer has had it
        (asyncio.CancelledError(), FAILED, 200, (502, "engine_error")),
        (ZeroDivisionError(), DONE, 200, (500, "internal_error")),
        (KeyboardInterrupt(), None, 0, (500, "internal_error")),
    ],
)
def test_a_request_ends_with_one_status(
    error: BaseException | None, outcome: AnswerOutcome | None, status: int, expected: tuple[int, str]
) -> None:
    progress = progress_of(outcome, status)
    assert final_status(progress, error) == expected
    record = record_of(progress, error, at=1e9, ended=101.5)
    assert (record.code, record.error) == expected
    assert (record.at, record.seconds, record.key, record.path) == (1e9, 1.5, "team-a", CHAT)


def test_a_record_is_made_of_what_is_known() -> None:
    progress = progress_of(AnswerOutcome(Usage(7, 40), first_token_at=100.5, ended=True), 200)
    progress.decision = SortDecision("table", Reason.PROMPT)
    progress.waited_s, progress.image_bytes = 0.25, 900
    progress.retried = (Failure.DIED,)
    record = record_of(progress, None, at=1e9, ended=101.5)
    assert (record.route, record.reason) == ("table", "prompt")
    assert (record.first_token_s, record.usage) == (0.5, Usage(7, 40))
    assert (record.waited_s, record.image_bytes, record.why) == (0.25, 900, "waited, retried after died")
    assert (record.pool, record.engine, record.depth, record.pages) == (None, None, None, None)


def test_a_documents_record_has_its_pages_and_no_route() -> None:
    progress = progress_of(status=200)
    progress.decision = SortDecision("table", Reason.HEADER)
    progress.document = DocumentProgress(pages=5, failed=1, requests=6)
    record = record_of(progress, None, at=1e9, ended=101.5)
    assert (record.code, record.route, record.pages) == (200, "", PageCounts(5, 1, 6))


@pytest.mark.parametrize("error", [None, ClientLeft(), ZeroDivisionError()])
def test_whatever_becomes_of_a_request_nothing_of_it_is_left(
    error: BaseException | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway.access")
    config = "model: m\npools: {p: {engines: [http://e]}}\nroutes: {text: {}}\nlimits: {inflight_bytes: 1000}"
    state = State(Fleet.of(parse(config, "f", Path(), {})), [], lambda: 0.0, Random())
    progress = progress_of(status=200)
    quota = progress.quota = state.quotas.open_use("team-a")
    with contextlib.suppress(ClientLeft, ZeroDivisionError), Accounting(state, Metrics(state), progress):
        assert state.requests.open == 1
        quota.admit()
        progress.held.add(400)
        if error:
            raise error
    assert (state.requests.open, state.memory.total) == (0, 0)
    (line,) = [record.fields for record in caplog.records]  # type: ignore[attr-defined]
    assert line["code"] == final_status(progress, error)[0]


def test_a_documents_pages_are_counted_and_not_the_document_once_it_has_sent_any() -> None:
    config = "model: m\npools: {p: {engines: [http://e]}}\nroutes: {text: {}}"
    for requests in (0, 3):
        state = State(Fleet.of(parse(config, "f", Path(), {})), [], lambda: 0.0, Random())
        progress = progress_of(status=200)
        progress.document = DocumentProgress(pages=3, requests=requests)
        metrics = Metrics(state)
        with Accounting(state, metrics, progress):
            pass
        (family,) = metrics._requests.collect()
        assert [sample.value for sample in family.samples] == ([] if requests else [1])
