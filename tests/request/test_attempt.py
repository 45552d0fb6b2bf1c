"""One attempt at an engine: what counts as an answer, and what as its failure."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.model import Usage
from gateway.policy.fail.breaker import Phase
from gateway.policy.fail.retry import Failure
from gateway.wire.responses import RESPONSES
from gateway.wire.vllm.engine import STOPPING
from tests.request.attempts import ABORTED, BODY, OPENING, events, status, tried
from tests.support import (
    FakeEngine,
    _Sender,
    chunk,
    completion,
    hang,
    response,
)


@pytest.mark.parametrize(
    ("behave", "failure", "code"),
    [
        (status(500), Failure.ERROR, "engine_error"),
        (status(502), Failure.BAD_GATEWAY, "engine_error"),
        (status(503), Failure.BUSY, "engine_busy"),
        (status(500, {"error": {"message": STOPPING}}), Failure.STOPPING, "engine_stopping"),
        (status(504), Failure.GATEWAY_TIMEOUT, "engine_slow"),
        (status(401), Failure.KEY, "engine_key"),
        (status(302), Failure.GARBAGE, "engine_error"),
        (status(200, "no completion"), Failure.GARBAGE, "engine_garbage"),
        (status(200, {"choices": None}), Failure.GARBAGE, "engine_garbage"),
        (events(b"\x00\x01 junk\n\n"), Failure.GARBAGE, "engine_garbage"),
        (events("junk"), Failure.GARBAGE, "engine_garbage"),
        (events("[DONE]"), Failure.GARBAGE, "engine_garbage"),
        (events({"object": "list"}), Failure.GARBAGE, "engine_garbage"),
        (events(), Failure.GARBAGE, "engine_garbage"),
        (events(b": alive\n\n" * 10_000, chunk("x")), Failure.GARBAGE, "engine_garbage"),
        (events({"error": {"message": "EngineCore", "code": 500}}), Failure.BAD_GATEWAY, "engine_error"),
        (events({"error": {"message": "at its limit", "code": 503}}), Failure.BUSY, "engine_busy"),
        (events(b": alive\n\n", end=False), Failure.DIED, "engine_died"),
        (events(b"data: " + OPENING + b"\n\ndata: " + ABORTED + b"\n\n"), Failure.DIED, "engine_died"),
    ],
)
async def test_what_is_no_answer_fails_before_the_first_byte(
    behave: Any, failure: Failure, code: str
) -> None:
    result = await tried(behave)
    assert (result.failure, result.code, result.body) == (failure, code, b"")


async def test_an_answer_that_the_engine_broke_off_is_none() -> None:
    async def behave(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.start()
        await send.body(ABORTED, more=False)

    result = await tried(behave, stream=False)
    assert (result.failure, result.code) == (Failure.DIED, "engine_died")


async def test_an_engine_found_hung_is_given_up_at_once() -> None:
    for stream in (True, False):
        result = await tried(hang, stream=stream, lose=True)
        assert (result.failure, result.code) == (Failure.LOST, "engine_lost")


@pytest.mark.parametrize(("code", "failure"), [(500, Failure.ERROR), (503, Failure.BUSY)])
async def test_a_refusal_is_what_its_status_says_however_its_body_ends(code: int, failure: Failure) -> None:
    async def breaks(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.start(code)
        await send.body(b'{"error": {"mess')
        raise ConnectionError

    async def floods(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.start(code)
        while True:
            await send.body(b"x" * 65536)
            await asyncio.sleep(0)

    for behave in (breaks, floods):
        assert (await tried(behave)).failure is failure


async def test_a_clients_own_mistake_says_nothing_of_the_engine() -> None:
    result = await tried(status(400))
    assert (result.failure, result.phase) == (Failure.REJECTED, Phase.CLOSED)
    assert result.instead
    assert (result.instead.status, result.instead.body) == (400, b'{"error": {"message": "told"}}')


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"object": "error", "message": "flat", "code": 400}, "flat"),
        ({"detail": "Not this"}, "Not this"),
        ({"detail": [{"msg": "required", "loc": ["x"]}, {"msg": "too long"}]}, "required; too long"),
        ({"error": "a string"}, "a string"),
        ({}, "the engine refused it with HTTP 400"),
    ],
)
async def test_a_refusal_in_another_shape_is_told_in_openais(body: Any, message: str) -> None:
    result = await tried(status(400, body))
    assert result.instead
    assert result.instead.content_type == "application/json"
    assert json.loads(bytes(result.instead.body)) == {  # type: ignore[arg-type]
        "error": {
            "message": message,
            "type": "invalid_request_error",
            "param": None,
            "code": "engine_refused",
        }
    }


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        ({"object": "error", "message": "no such model", "code": 404}, Failure.REFUSED),
        ({"error": {"message": "too long", "code": 400}}, Failure.REJECTED),
        ({"error": {"message": "later", "code": 503}}, Failure.BUSY),
        ({"error": {"message": "odd"}}, Failure.GARBAGE),
    ],
)
async def test_an_error_sent_with_status_200_is_what_its_code_says(body: Any, failure: Failure) -> None:
    result = await tried(status(200, body), stream=False)
    assert result.failure is failure
    assert result.error
    assert (body.get("error") or body)["message"] in result.error.message


async def test_garbage_is_sketched_for_the_log_without_its_text() -> None:
    result = await tried(status(200, {"text": "the document", "pages": 3}), stream=False)
    assert result.logged == "no completion, but a JSON object with text, pages"


async def test_a_slow_reader_keeps_no_engines_place() -> None:
    for stream in (True, False):
        result = await tried(events(chunk("one"), "[DONE]") if stream else None, stream=stream)
        assert result.in_flight_at_the_end == 0


async def test_a_whole_response_is_one_and_a_completion_is_none() -> None:
    whole = await tried(status(200, response()), dialect=RESPONSES, stream=False)
    assert (json.loads(whole.body), whole.outcome.usage) == (response(), Usage(7, 2))
    for answer in (completion("hello"), response(output=None)):
        result = await tried(status(200, answer), dialect=RESPONSES, stream=False)
        assert (result.failure, result.code) == (Failure.GARBAGE, "engine_garbage")
    cut = await tried(status(200, response(status="cancelled")), dialect=RESPONSES, stream=False)
    assert (cut.failure, cut.code) == (Failure.DIED, "engine_died")


async def test_a_body_is_held_until_an_answer_to_it_begins_and_a_whole_answer_until_it_is_sent() -> None:
    assert (await tried(events(chunk("a"), "[DONE]"))).held == 0
    whole = await tried(None, stream=False)
    assert whole.held == len(whole.body) > 0


async def test_a_whole_answer_is_bounded_and_what_was_read_of_it_given_back() -> None:
    result = await tried(None, stream=False, answer_bytes=100)
    assert (result.failure, result.code) == (Failure.ERROR, "answer_too_long")
    nonsense = await tried(status(200, {"no": "completion"}), stream=False)
    assert nonsense.failure is Failure.GARBAGE


async def test_an_answer_for_which_there_is_no_memory_is_no_engines_fault() -> None:
    result = await tried(None, stream=False, memory_bytes=2 * len(BODY))
    assert result.failure is None
    assert result.error is not None
    assert (result.error.status, result.error.code) == (503, "memory_full")
    assert result.phase is Phase.CLOSED


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        (b"7", 7),
        (b"0", 1),
        (b"99999999", 60),
        (b"9" * 5000, 2),
        (b"-3", 2),
        (b"soon", 2),
        ("\u0663".encode(), 2),
    ],
)
async def test_only_a_sane_time_to_wait_is_taken_from_an_engine(told: bytes, seconds: int) -> None:
    async def busy(engine: FakeEngine, request: Any, send: _Sender) -> None:
        headers = [(b"content-type", b"application/json"), (b"retry-after", told)]
        await send.send({"type": "http.response.start", "status": 503, "headers": headers})
        await send.body(b"{}", more=False)

    result = await tried(busy)
    assert result.error is not None
    assert result.error.retry_after == seconds
