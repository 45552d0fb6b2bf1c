"""A stream on its way: what passes, what it tells, how it ends, and what it says of its engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest

from gateway.config import Timeouts
from gateway.engines.vllm_json import speculative_object
from gateway.model import Speculation, Usage
from gateway.policy.account.acceptance import Sample, Source
from gateway.policy.fail.breaker import Phase
from gateway.policy.fail.retry import Failure
from gateway.wire.responses import RESPONSES
from tests.request.attempts import ABORTED, DONE, Tried, events, status, tried
from tests.support import (
    USAGE,
    FakeEngine,
    _Sender,
    chunk,
    completion,
    hang,
    named,
    response,
    response_events,
)


async def test_a_stream_that_the_engine_breaks_off_later_ends_with_an_error_event() -> None:
    begun = asyncio.Event()

    async def behave(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.start(kind="text/event-stream")
        await send.event(chunk("one"))
        await begun.wait()
        await send.body(b"data: " + ABORTED + b"\n\ndata: [DONE]\n\n", more=False)

    result = await tried(behave, begun=begun)
    assert json.loads(result.body.split(b"data: ")[-1])["error"]["code"] == "engine_died"
    assert b"abort" not in result.body
    assert (result.outcome.failed, result.sample) == (502, None)


async def test_comments_before_the_first_chunk_are_held_back_with_it() -> None:
    result = await tried(events(b": alive\n\n", chunk("one"), "[DONE]"))
    assert result.body.startswith(b": alive\n\ndata: ")
    assert result.body.endswith(b"data: [DONE]\n\n")
    assert result.phase is Phase.CLOSED


async def test_a_stream_that_breaks_later_ends_with_an_error_event_and_counts_against_the_engine() -> None:
    result = await tried(events(chunk("one"), end=False))
    assert json.loads(result.body.split(b"data: ")[-1])["error"]["code"] == "engine_died"
    assert (result.status, result.outcome.failed, result.phase) == (200, 502, Phase.OPEN)


async def test_a_stream_that_ends_without_saying_so_is_broken_off() -> None:
    result = await tried(events(chunk("one"), b'data: {"cut short'))
    assert b"cut short" not in result.body  # half an event would make the error event unreadable
    assert b"engine_died" in result.body
    assert (result.outcome.failed, result.phase) == (502, Phase.OPEN)


async def test_a_stream_is_over_with_its_end_mark_whatever_comes_then() -> None:
    async def goes_on(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await events(chunk("one"), "[DONE]", chunk("two"), end=False)(engine, request, send)

    result = await tried(goes_on)
    assert result.body.endswith(b"[DONE]\n\n")
    assert (result.outcome.failed, result.phase) == (0, Phase.CLOSED)


async def test_an_error_in_the_middle_is_passed_on_and_counts_too() -> None:
    result = await tried(events(chunk("one"), {"error": {"message": "EngineCore", "code": 500}}, "[DONE]"))
    assert b"EngineCore" in result.body
    assert (result.outcome.failed, result.phase) == (502, Phase.OPEN)


@pytest.mark.parametrize("begun", [True, False])
async def test_comments_that_keep_a_connection_alive_are_no_sign_of_work(begun: bool) -> None:
    async def ping(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.start(kind="text/event-stream")
        if begun:
            await send.event(chunk("one"))
        while True:
            await send.body(b": ping\n\n")
            await asyncio.sleep(0.01)

    result = await tried(ping, timeouts=Timeouts(first_event_s=0.2, idle_s=0.2, total_s=20))
    if begun:
        assert json.loads(result.body.split(b"data: ")[-1])["error"]["code"] == "engine_idle"
    else:
        assert (result.failure, result.code) == (Failure.SLOW, "engine_idle")


@pytest.mark.parametrize("begun", [True, False])
async def test_a_streams_error_that_the_request_is_to_blame_for_is_passed_on(begun: bool) -> None:
    error = {"error": {"message": "too long", "code": 400}}
    result = await tried(events(*([chunk("one")] if begun else []), error, "[DONE]"))
    assert b"too long" in result.body
    assert (result.outcome.failed, result.phase) == (400, Phase.CLOSED)


@pytest.mark.parametrize("strip", [True, False])
async def test_usage_is_read_and_stripped_where_it_was_the_gateways_wish(strip: bool) -> None:
    result = await tried(
        events(chunk("one"), {**chunk(), "choices": [], "usage": USAGE}, "[DONE]"), strip_usage=strip
    )
    assert result.outcome.usage == Usage(7, 2)
    assert (b"usage" in result.body) is not strip
    assert result.outcome.first_token_at is not None


TOKENS = {"prompt_tokens": 7, "completion_tokens": 46}
USAGE_CHUNK = {**chunk(), "choices": [], "usage": TOKENS}
TOLD = {"metrics": {"speculative_decoding": speculative_object([0, 1, 1], 4)}}
STEPS = (chunk(), *[chunk(" two three")] * 20, chunk(" end", "stop"))
EXACT = Sample(Source.REQUEST, Speculation(2, 3, 4, (2, 1)))


async def test_what_the_engine_tells_of_its_drafts_is_the_requests() -> None:
    streamed = await tried(events(*STEPS, {**USAGE_CHUNK, **TOLD}, "[DONE]"), strip_usage=True)
    assert streamed.sample == EXACT
    assert b"speculative" not in streamed.body
    whole = await tried(status(200, {**completion("one two"), "usage": TOKENS, **TOLD}), stream=False)
    assert whole.sample == EXACT


async def test_where_it_tells_nothing_a_stream_is_estimated() -> None:
    assert (await tried(events(*STEPS, USAGE_CHUNK, "[DONE]"))).sample == Sample(
        Source.STREAM, Speculation(20, 25)
    )
    assert (await tried(status(200, completion("one two")), stream=False)).sample is None


SECOND = {"choices": [{"index": 1, "delta": {"content": "x"}}]}
STOPPED = {"choices": [{"finish_reason": "stop", "stop_reason": "#"}]}
THOUGHT = {"choices": [{"delta": {"reasoning": "so"}}]}


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        ((*STEPS, "[DONE]"), "no usage"),
        ((*STEPS[:9], {"error": {"message": "EngineCore", "code": 500}}, USAGE_CHUNK), "it failed"),
        ((*STEPS, SECOND, USAGE_CHUNK), "two choices"),
        ((*STEPS[:20], STOPPED, USAGE_CHUNK), "a stop string"),
        ((THOUGHT, *STEPS, USAGE_CHUNK), "a parser"),
    ],
)
async def test_what_tells_nothing_or_only_a_part_gives_no_sample(sent: Any, why: str) -> None:
    assert (await tried(events(*sent))).sample is None, why
    assert (await tried(events(*sent, end=False))).sample is None, why


async def test_merged_chunks_that_the_client_asked_for_are_no_steps() -> None:
    assert (await tried(events(*STEPS, USAGE_CHUNK, "[DONE]"), merged=True)).sample is None
    assert (await tried(events(*STEPS, {**USAGE_CHUNK, **TOLD}, "[DONE]"), merged=True)).sample == EXACT


async def test_who_leaves_at_the_end_mark_has_had_the_answer() -> None:
    """The openai client closes once it has read `[DONE]`, while the connection is still open."""

    async def lingers(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.start(kind="text/event-stream")
        for event in (*STEPS, {**USAGE_CHUNK, **TOLD}, "[DONE]"):
            await send.event(event)
        await asyncio.Event().wait()

    result = await tried(lingers, leave_at=b"[DONE]")
    assert (result.sample, result.phase) == (EXACT, Phase.CLOSED)
    assert result.in_flight_at_the_end == 0
    assert result.outcome.ended


# --- the Responses API

RESPONSE = response_events("hello", " world")


async def tried_response(*values: Any, end: bool = True, **options: Any) -> Tried:
    """Try an engine that streams these events."""
    sent = [value if isinstance(value, bytes) else named(value) for value in values]
    return await tried(events(*sent, end=end), dialect=RESPONSES, merged=True, **options)


async def test_a_response_passes_event_by_event_and_its_last_one_ends_it() -> None:
    result = await tried_response(*RESPONSE)
    assert result.body == b"".join(map(named, RESPONSE))
    assert (result.outcome.usage, result.outcome.ended, result.outcome.failed) == (Usage(7, 2), True, 0)
    assert result.outcome.first_token_at is not None
    assert (result.phase, result.in_flight_at_the_end, result.sample) == (Phase.CLOSED, 0, None)


async def test_that_a_response_was_taken_is_no_sign_of_work() -> None:
    result = await tried_response(*RESPONSE[:2], end=False)
    assert (result.failure, result.code, result.body) == (Failure.DIED, "engine_died", b"")
    result = await tried_response(*RESPONSE[:2])
    assert (result.failure, result.code) == (Failure.GARBAGE, "engine_garbage")

    async def takes(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.start(kind="text/event-stream")
        await send.body(b"".join(map(named, RESPONSE[:2])))
        await hang(engine, request, send)

    timeouts = Timeouts(first_event_s=0.2, idle_s=20, total_s=20)
    result = await tried(takes, dialect=RESPONSES, merged=True, timeouts=timeouts)
    assert (result.failure, result.code) == (Failure.SLOW, "engine_idle")


async def test_a_long_word_that_a_response_was_taken_passes_at_once() -> None:
    told = {**RESPONSE[0], "response": response("x" * 70_000)}
    result = await tried_response(told, *RESPONSE[1:])
    assert result.body == b"".join(map(named, (told, *RESPONSE[1:])))


@pytest.mark.parametrize(
    ("event", "failure", "code"),
    [
        ({"type": "error", "code": "server_error"}, Failure.BAD_GATEWAY, "engine_error"),
        ({"type": "response.failed", "response": {}}, Failure.BAD_GATEWAY, "engine_error"),
        ({"type": "error", "error": {"message": "full", "code": 503}}, Failure.BUSY, "engine_busy"),
        ({"type": "response.completed", "response": {"status": "cancelled"}}, Failure.DIED, "engine_died"),
        ({"type": "ping"}, Failure.GARBAGE, "engine_garbage"),
    ],
)
async def test_a_response_that_fails_before_anything_is_written_is_none(
    event: Any, failure: Failure, code: str
) -> None:
    result = await tried_response(*RESPONSE[:2], event)
    assert (result.failure, result.code, result.body) == (failure, code, b"")


async def test_a_response_that_breaks_off_ends_with_the_apis_own_error() -> None:
    for sent, end in ((RESPONSE[:4], False), (RESPONSE[:4], True), ((*RESPONSE[:4], b"data: {"), True)):
        result = await tried_response(*sent, end=end)
        passed, _, last = result.body.partition(b"event: error\ndata: ")
        assert passed == b"".join(map(named, RESPONSE[:4]))
        told = json.loads(last)
        assert (told["type"], told["sequence_number"], told["code"]) == ("error", 4, "engine_died")
        assert told["error"]["code"] == "engine_died"
        assert (result.outcome.failed, result.phase) == (502, Phase.OPEN)


@pytest.mark.parametrize(
    ("last", "failed", "phase"),
    [
        ({"type": "response.incomplete", "response": response(status="incomplete")}, 0, Phase.CLOSED),
        ({"type": "response.failed", "response": {"error": {"code": "server_error"}}}, 502, Phase.OPEN),
        ({"type": "error", "code": "invalid_prompt", "message": "too long"}, 400, Phase.CLOSED),
    ],
)
async def test_how_a_response_ends_is_passed_on_and_judged(last: Any, failed: int, phase: Phase) -> None:
    result = await tried_response(*RESPONSE[:4], last)
    assert result.body == b"".join(map(named, (*RESPONSE[:4], last)))
    assert (result.outcome.failed, result.outcome.ended, result.phase) == (failed, True, phase)


async def test_a_responses_last_event_counts_without_its_blank_line_too() -> None:
    result = await tried_response(*RESPONSE[:-1], named(RESPONSE[-1]).rstrip())
    assert result.body == b"".join(map(named, RESPONSE)).rstrip()
    assert (result.outcome.usage, result.outcome.failed) == (Usage(7, 2), 0)


async def test_who_leaves_with_a_responses_last_event_has_had_it() -> None:
    async def lingers(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.start(kind="text/event-stream")
        for event in RESPONSE:
            await send.body(named(event))
        await asyncio.Event().wait()

    result = await tried(lingers, dialect=RESPONSES, merged=True, leave_at=b"response.completed")
    assert (result.outcome.ended, result.in_flight_at_the_end) == (True, 0)


async def test_an_event_that_does_not_end_is_held_and_ends_the_stream_where_there_is_no_memory() -> None:
    opening = chunk("a")
    whole = await tried(events(opening, b"data: " + b"x" * 30_000, b"\n\n", "[DONE]"), memory_bytes=100_000)
    assert whole.body.endswith(b"[DONE]\n\n")
    assert whole.held_at_the_end == 0
    begun = asyncio.Event()

    async def endless(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.start(kind="text/event-stream")
        await send.event(opening)
        await begun.wait()
        for _ in range(9):
            await send.body(b"data: " + b"x" * 30_000)

    result = await tried(endless, memory_bytes=100_000, begun=begun)
    assert result.status == 200
    assert b"memory_full" in result.body
    assert result.phase is Phase.CLOSED
    first = await tried(events(*[b"data: " + b"x" * 30_000] * 9), memory_bytes=100_000)
    assert first.error is not None
    assert (first.status, first.error.code) == (0, "memory_full")


@pytest.mark.parametrize("at_a_time", [1, 2, 7, 1000])
@pytest.mark.parametrize("cut", [0, 5])
async def test_steps_are_counted_however_they_come(at_a_time: int, cut: int) -> None:
    """Whole events by the read, or each read but the last ends within one."""
    stream = [f"data: {json.dumps(event)}\n\n".encode() for event in (*STEPS, USAGE_CHUNK)] + [DONE]
    whole = b"".join(stream)
    ends = [sum(map(len, stream[:count])) - cut for count in range(at_a_time, len(stream), at_a_time)]
    taken = asyncio.Event()

    async def behave(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.start(kind="text/event-stream")
        sent = 0
        for end in [*ends, len(whole)]:
            taken.clear()
            await send.body(whole[sent:end])
            sent = end
            # What is cut off within its first event brings nothing that could be waited for.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(taken.wait(), 0.05 if cut else 10)
        await send.body(b"", more=False)

    result = await tried(behave, begun=taken)
    assert result.body == whole
    assert result.sample == Sample(Source.STREAM, Speculation(20, 25))
    assert (result.outcome.usage, result.outcome.failed) == (Usage(7, 46), 0)
    assert result.in_flight_at_the_end == 0
