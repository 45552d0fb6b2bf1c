"""One attempt at an engine: what counts as an answer, and what as its failure."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from gateway.config import Timeouts, parse
from gateway.engines.vllm_json import speculative_object
from gateway.errors import GatewayError
from gateway.model import Engine, Speculation, Usage
from gateway.policy.account.acceptance import Sample, Source
from gateway.policy.fail.breaker import Phase
from gateway.policy.fail.retry import Failure
from gateway.request.attempt import AttemptFailed, Job, Outturn, Reply, attempt
from gateway.state.body_memory import BodyMemory
from gateway.state.fleet import Fleet
from gateway.state.lease import Lease
from gateway.state.store import State
from gateway.upstream.client import EngineClient
from gateway.wire.openai.completion import COMPLETIONS
from gateway.wire.responses import RESPONSES
from gateway.wire.vllm.engine import STOPPING
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
    served,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.wire.openai.completion import Dialect

CONFIG = """
model: m
pools: {p: {engines: [http://e], speculative_config: {method: mtp, num_speculative_tokens: 3}}}
routes: {text: {}}
breaker: {failures: 1}
"""
# What vLLM makes of a request that reaches its engine when that is to stop.
ABORTED = b'{"choices":[{"index":0,"delta":{},"message":{"content":""},"finish_reason":"abort"}]}'
OPENING = b'{"choices":[{"index":0,"delta":{"role":"assistant"},"finish_reason":null}]}'
BODY = b'{"model": "m"}'
DONE = b"data: [DONE]\n\n"
TIMEOUTS = Timeouts(connect_s=2, first_event_s=5, idle_s=5, total_s=20)


def events(*values: Any, end: bool = True) -> Any:
    """An engine that streams these."""

    async def behave(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.start(kind="text/event-stream")
        for value in values:
            await (send.body(value) if isinstance(value, bytes) else send.event(value))
        if not end:
            raise ConnectionError
        await send.body(b"", more=False)

    return behave


def status(code: int, body: Any = None) -> Any:
    async def behave(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.json({"error": {"message": "told"}} if body is None else body, code)

    return behave


class Tried:
    """One attempt, and what came of it."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self.failure: Failure | None = None
        self.code: str | None = None
        self.phase = Phase.CLOSED
        self.in_flight_at_the_end: int | None = None
        self.outturn = Outturn()
        self.held = self.held_at_the_end = 0
        self.error: GatewayError | None = None
        self.sample: Sample | None = None


async def tried(
    behave: Any,
    *,
    stream: bool = True,
    strip_usage: bool = False,
    lose: bool = False,
    timeouts: Timeouts = TIMEOUTS,
    merged: bool = False,
    leave_at: bytes | None = None,
    begun: asyncio.Event | None = None,
    answer_bytes: int = 10**6,
    memory_bytes: int = 10**6,
    dialect: Dialect = COMPLETIONS,
) -> Tried:
    fake, result = FakeEngine(behave), Tried()
    async with served(fake) as url, EngineClient() as client:
        engine = Engine("e", url, "p", 3)
        state = State(
            Fleet.of(parse(CONFIG, "f", Path(), {})), [engine], asyncio.get_running_loop().time, Random()
        )
        state.mark("e", up=True)
        lease = state.take("text")
        assert isinstance(lease, Lease)
        if lose:
            asyncio.get_running_loop().call_later(0, lambda: lose_when_running(state, fake))
        held = BodyMemory(memory_bytes).claim("client")
        held.add(len(BODY))
        job = Job(
            path="/v1/chat/completions",
            request_id="id",
            body=(BODY,),
            held=held,
            answer_bytes=answer_bytes,
            stream=stream,
            strip_usage=strip_usage,
            timeouts=timeouts,
            merged=merged,
            dialect=dialect,
        )

        async def deliver(reply: Reply) -> None:
            result.status = reply.status
            result.held = held.size
            async for part in parts(reply):
                result.body += part
                if begun:
                    begun.set()
                if leave_at and leave_at in result.body:
                    break
            result.held_at_the_end = held.size
            result.in_flight_at_the_end = state.snapshot().routes["text"].in_flight

        deadline = asyncio.get_running_loop().time() + 20
        with lease:
            try:
                await attempt(client, job, lease, result.outturn, deadline, deliver)
            except AttemptFailed as failed:
                result.failure, result.code, result.error = failed.failure, failed.error.code, failed.error
                assert held.size == sum(map(len, job.body)) == len(BODY)
            except GatewayError as error:
                result.error = error
        result.sample = lease.sample
        result.phase = state.snapshot().engines[0].phase
        assert lease.on_lost is None
    return result


async def parts(reply: Reply) -> AsyncIterator[bytes]:
    if isinstance(reply.body, bytes):
        yield reply.body
        return
    async for part in reply.body:
        yield part


def lose_when_running(state: State, fake: FakeEngine) -> None:
    if fake.running:
        state.mark_lost("e")
    else:
        asyncio.get_running_loop().call_later(0.01, lambda: lose_when_running(state, fake))


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
    assert (result.outturn.failed, result.sample) == (502, None)


async def test_an_engine_found_hung_is_given_up_at_once() -> None:
    for stream in (True, False):
        result = await tried(hang, stream=stream, lose=True)
        assert (result.failure, result.code) == (Failure.LOST, "engine_lost")


async def test_comments_before_the_first_chunk_are_held_back_with_it() -> None:
    result = await tried(events(b": alive\n\n", chunk("one"), "[DONE]"))
    assert result.body.startswith(b": alive\n\ndata: ")
    assert result.body.endswith(b"data: [DONE]\n\n")
    assert result.phase is Phase.CLOSED


async def test_a_stream_that_breaks_later_ends_with_an_error_event_and_counts_against_the_engine() -> None:
    result = await tried(events(chunk("one"), end=False))
    assert json.loads(result.body.split(b"data: ")[-1])["error"]["code"] == "engine_died"
    assert (result.status, result.outturn.failed, result.phase) == (200, 502, Phase.OPEN)


async def test_a_stream_that_ends_without_saying_so_is_broken_off() -> None:
    result = await tried(events(chunk("one"), b'data: {"cut short'))
    assert b"cut short" not in result.body  # half an event would make the error event unreadable
    assert b"engine_died" in result.body
    assert (result.outturn.failed, result.phase) == (502, Phase.OPEN)


async def test_a_stream_is_over_with_its_end_mark_whatever_comes_then() -> None:
    async def goes_on(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await events(chunk("one"), "[DONE]", chunk("two"), end=False)(engine, request, send)

    result = await tried(goes_on)
    assert result.body.endswith(b"[DONE]\n\n")
    assert (result.outturn.failed, result.phase) == (0, Phase.CLOSED)


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


async def test_an_error_in_the_middle_is_passed_on_and_counts_too() -> None:
    result = await tried(events(chunk("one"), {"error": {"message": "EngineCore", "code": 500}}, "[DONE]"))
    assert b"EngineCore" in result.body
    assert (result.outturn.failed, result.phase) == (502, Phase.OPEN)


async def test_a_clients_own_mistake_says_nothing_of_the_engine() -> None:
    result = await tried(status(400))
    assert (result.status, result.phase) == (400, Phase.CLOSED)
    assert json.loads(result.body)["error"]["message"] == "told"


async def test_a_slow_reader_keeps_no_engines_place() -> None:
    for stream in (True, False):
        result = await tried(events(chunk("one"), "[DONE]") if stream else None, stream=stream)
        assert result.in_flight_at_the_end == 0


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
    assert (result.outturn.failed, result.phase) == (400, Phase.CLOSED)


@pytest.mark.parametrize("strip", [True, False])
async def test_usage_is_read_and_stripped_where_it_was_the_gateways_wish(strip: bool) -> None:
    result = await tried(
        events(chunk("one"), {**chunk(), "choices": [], "usage": USAGE}, "[DONE]"), strip_usage=strip
    )
    assert result.outturn.usage == Usage(7, 2)
    assert (b"usage" in result.body) is not strip
    assert result.outturn.first_token_at is not None


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
    assert result.outturn.ended


# --- the Responses API

RESPONSE = response_events("hello", " world")


async def tried_response(*values: Any, end: bool = True, **options: Any) -> Tried:
    """Try an engine that streams these events."""
    sent = [value if isinstance(value, bytes) else named(value) for value in values]
    return await tried(events(*sent, end=end), dialect=RESPONSES, merged=True, **options)


async def test_a_response_passes_event_by_event_and_its_last_one_ends_it() -> None:
    result = await tried_response(*RESPONSE)
    assert result.body == b"".join(map(named, RESPONSE))
    assert (result.outturn.usage, result.outturn.ended, result.outturn.failed) == (Usage(7, 2), True, 0)
    assert result.outturn.first_token_at is not None
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
        assert (result.outturn.failed, result.phase) == (502, Phase.OPEN)


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
    assert (result.outturn.failed, result.outturn.ended, result.phase) == (failed, True, phase)


async def test_a_responses_last_event_counts_without_its_blank_line_too() -> None:
    result = await tried_response(*RESPONSE[:-1], named(RESPONSE[-1]).rstrip())
    assert result.body == b"".join(map(named, RESPONSE)).rstrip()
    assert (result.outturn.usage, result.outturn.failed) == (Usage(7, 2), 0)


async def test_who_leaves_with_a_responses_last_event_has_had_it() -> None:
    async def lingers(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.start(kind="text/event-stream")
        for event in RESPONSE:
            await send.body(named(event))
        await asyncio.Event().wait()

    result = await tried(lingers, dialect=RESPONSES, merged=True, leave_at=b"response.completed")
    assert (result.outturn.ended, result.in_flight_at_the_end) == (True, 0)


async def test_a_whole_response_is_one_and_a_completion_is_none() -> None:
    whole = await tried(status(200, response()), dialect=RESPONSES, stream=False)
    assert (json.loads(whole.body), whole.outturn.usage) == (response(), Usage(7, 2))
    for answer in (completion("hello"), response(output=None)):
        result = await tried(status(200, answer), dialect=RESPONSES, stream=False)
        assert (result.failure, result.code) == (Failure.GARBAGE, "engine_garbage")
    cut = await tried(status(200, response(status="cancelled")), dialect=RESPONSES, stream=False)
    assert (cut.failure, cut.code) == (Failure.DIED, "engine_died")


# --- what an engine's answer may cost


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
    assert (result.outturn.usage, result.outturn.failed) == (Usage(7, 46), 0)
    assert result.in_flight_at_the_end == 0
