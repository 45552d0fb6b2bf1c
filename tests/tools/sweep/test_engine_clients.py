from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any

import pytest

from gateway.engines.simulated.simulated_server import SimulatedEngine
from gateway.engines.simulated.step_model import Fit
from gateway.model import Engine, Speculation
from gateway.tools.sweep.engine_clients import LoadGenerator
from gateway.tools.sweep.request_bodies import Image, Prompt, RequestBodies
from gateway.upstream.client import EngineClient
from tests.support import USAGE, FakeEngine, _Sender, answer, chunk, completion, hang, png, served, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

TOLD = {
    "acceptance_histogram": [1, 2],
    "num_spec_steps": 3,
    "num_accepted_draft_tokens": 2,
    "num_draft_tokens": 3,
}


@contextlib.asynccontextmanager
async def load_on(
    app: Any, *, stream: bool = True, max_tokens: int = 100, api_key: str = "", **options: Any
) -> AsyncIterator[LoadGenerator]:
    images = [Image(png(text), "image/png") for text in ("one", "two")]
    bodies = RequestBodies(
        "glm-ocr",
        Prompt("Text Recognition:"),
        images,
        max_tokens=max_tokens,
        stream=stream,
        rng=random.Random(0),
    )
    async with served(app) as url, EngineClient() as client:
        yield LoadGenerator(
            client, Engine("e", url, "p", 0, api_key), bodies, **{"pause_s": 0.001, **options}
        )


@contextlib.asynccontextmanager
async def going(running: Any, load: LoadGenerator, drain_s: float = 10) -> AsyncIterator[None]:
    """Have a loop running meanwhile, and stop it."""
    task = asyncio.create_task(running)
    yield
    await load.stop(drain_s)
    await task


class Gate:
    """An engine's behaviour that answers as many requests as it is told to, each after it came."""

    def __init__(self) -> None:
        self.most = 0
        self.free = asyncio.Semaphore(0)

    async def __call__(self, engine: FakeEngine, request: dict[str, Any], send: _Sender) -> None:
        self.most = max(self.most, engine.running)
        await self.free.acquire()
        await answer(engine, request, send)

    def let(self, count: int) -> None:
        for _ in range(count):
            self.free.release()


async def test_as_many_clients_as_asked_for_send_their_next_at_once() -> None:
    gate = Gate()
    engine = FakeEngine(gate)
    async with load_on(engine) as load, going(load.closed(5), load):
        for ended in (0, 1, 3, 10):
            gate.let(ended - len(load.records))
            await until(lambda: len(load.records) == ended and engine.running == 5)  # noqa: B023
            assert load.in_flight == 5
            assert load.sent == ended + 5
        gate.let(5)
    assert gate.most == 5
    assert load.in_flight == 0
    assert len(load.records) == load.sent == 15
    assert load.aborted == 0


async def test_no_request_meets_a_connection_that_the_engine_is_about_to_close() -> None:
    engine = FakeEngine()
    async with load_on(engine) as load, going(load.closed(2), load):
        await until(lambda: len(load.records) >= 5)
    assert {headers["connection"] for headers in engine.headers} == {"close"}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_record_tells_what_the_answer_told(stream: bool) -> None:
    async def told(engine: FakeEngine, request: dict[str, Any], send: _Sender) -> None:
        metrics = {"speculative_decoding": TOLD}
        if not request.get("stream"):
            return await send.json({**completion("hello"), "metrics": metrics})
        await send.start(kind="text/event-stream")
        await send.event(chunk())
        await send.body(b": still here\n\n")
        await send.event(chunk("hello"))
        await send.event({**chunk(), "choices": [], "usage": USAGE, "metrics": metrics})
        await send.body(b"data: [DONE]", more=False)
        return None

    ticks = iter(range(1, 1000))
    clock: dict[str, Any] = {"clock": lambda: float(next(ticks))}
    async with load_on(FakeEngine(told), stream=stream, **clock) as load, going(load.closed(1), load):
        await until(lambda: load.records)
    record = load.records[0]
    assert (record.sent, record.first, record.ended) == ((1, 2, 3) if stream else (1, 0, 2))
    assert (record.tokens, record.error) == (2, "")
    assert record.speculation == Speculation(3, 2, 3, (2.0,))
    assert not record.truncated


async def test_the_first_token_is_the_first_text_not_the_role() -> None:
    now = [1.0]
    opened, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(engine: FakeEngine, request: dict[str, Any], send: _Sender) -> None:
        await send.start(kind="text/event-stream")
        await send.event(chunk())
        opened.set()
        await go_on.wait()
        await send.event(chunk("hello"))
        await send.event({**chunk(), "choices": [], "usage": USAGE})
        await send.event("[DONE]")
        await send.body(b"", more=False)

    async with load_on(FakeEngine(slowly), clock=lambda: now[0]) as load, going(load.closed(1), load):
        await opened.wait()
        now[0] = 5.0
        go_on.set()
        await until(lambda: load.records)
    assert (load.records[0].sent, load.records[0].first) == (1.0, 5.0)


@pytest.mark.parametrize("stream", [True, False])
async def test_answers_that_were_cut_off_are_told_apart(stream: bool) -> None:
    app = SimulatedEngine(Fit.builtin("h100-9b"), time_scale=100).app()
    async with load_on(app, stream=stream, max_tokens=3) as load, going(load.closed(2), load):
        await until(lambda: len(load.records) > 1)
    assert {(record.tokens, record.truncated, record.error) for record in load.records} == {(3, True, "")}


async def test_a_simulated_engines_answers_add_up_to_its_acceptance() -> None:
    app = SimulatedEngine(Fit.builtin("h100-9b"), depth=3, time_scale=50, seed=1).app()
    async with load_on(app, max_tokens=10_000) as load, going(load.closed(8), load):
        await until(lambda: len(load.records) >= 8)
    assert all(record.first > record.sent for record in load.records)
    assert all(record.ended > record.first for record in load.records)
    for record in load.records:
        assert record.speculation is not None
        # The last step's accepted tokens may lie beyond the end.
        written = 1 + record.speculation.drafts + record.speculation.accepted
        assert 0 <= written - record.tokens <= 3


def refusing(status: int) -> Callable[..., Awaitable[None]]:
    async def refuse(engine: FakeEngine, request: dict[str, Any], send: _Sender) -> None:
        await send.json({"error": {"message": f"told {status}", "code": status}}, status)

    return refuse


def events(*told: Any, end: str = "[DONE]") -> Callable[..., Awaitable[None]]:
    async def tell(engine: FakeEngine, request: dict[str, Any], send: _Sender) -> None:
        await send.start(kind="text/event-stream")
        for event in told:
            await send.event(event)
        if end:
            await send.event(end)
        await send.body(b"", more=False)

    return tell


async def die(engine: FakeEngine, request: dict[str, Any], send: _Sender) -> None:
    await send.start(kind="text/event-stream")
    await send.event(chunk("hello"))
    raise ConnectionError


async def nonsense(engine: FakeEngine, request: dict[str, Any], send: _Sender) -> None:
    await send.json(["nonsense"])


async def empty(engine: FakeEngine, request: dict[str, Any], send: _Sender) -> None:
    await send.json({**completion(""), "usage": {**USAGE, "completion_tokens": 0}})


BROKEN = {"error": {"message": "EngineCore died", "code": 500}}
USED = {**chunk(), "choices": [], "usage": USAGE}


@pytest.mark.parametrize(
    ("behave", "error", "told"),
    [
        (refusing(500), "http_500", "told 500"),
        (refusing(404), "http_404", "told 404"),
        (events(chunk("hello"), BROKEN), "stream_error", "EngineCore died"),
        (events(BROKEN), "stream_error", "EngineCore died"),
        (events(chunk("hello"), USED, end=""), "stream_error", "the stream ended without its end mark"),
        (events("\x00garbage"), "no_usage", "the answer does not tell its tokens, or has none"),
        (events(chunk("hello")), "no_usage", "the answer does not tell its tokens, or has none"),
        (empty, "no_usage", "the answer does not tell its tokens, or has none"),
        (nonsense, "engine_garbage", "the answer is no completion"),
        (die, "engine_died", "the engine broke off its answer"),
    ],
)
async def test_a_failure_is_recorded_with_its_kind_and_ends_nothing(
    behave: Any, error: str, told: str
) -> None:
    async def fail_once(engine: FakeEngine, request: dict[str, Any], send: _Sender) -> None:
        await (behave if len(engine.bodies) == 1 else answer)(engine, request, send)

    async with load_on(FakeEngine(fail_once)) as load, going(load.closed(1), load):
        await until(lambda: len(load.records) > 1)
    assert [record.error for record in load.records[:2]] == [error, ""]
    assert load.messages == {error: told}


async def test_a_request_that_takes_too_long_is_a_failure() -> None:
    async with load_on(FakeEngine(hang), total_s=0.01) as load, going(load.closed(1), load):
        await until(lambda: load.records)
    assert load.records[0].error == "total_timeout"


async def test_stop_ends_a_client_that_pauses_after_a_failure() -> None:
    engine = FakeEngine(refusing(503))
    async with load_on(engine, pause_s=3600) as load, going(load.closed(2), load):
        await until(lambda: len(load.records) == 2)
        assert await load.stop(10)
    assert load.sent == 2


async def test_stop_lets_what_is_under_way_end() -> None:
    gate = Gate()
    engine = FakeEngine(gate)
    async with load_on(engine) as load, going(load.closed(3), load):
        await until(lambda: engine.running == 3)
        stopping = asyncio.create_task(load.stop(10))
        await asyncio.sleep(0)
        gate.let(3)
        assert await stopping
    assert (load.sent, len(load.records), load.aborted) == (3, 3, 0)


async def test_stop_aborts_what_does_not_end_in_time() -> None:
    gate = Gate()
    engine = FakeEngine(gate)
    async with load_on(engine) as load:
        async with going(load.closed(4), load):
            gate.let(1)
            await until(lambda: load.records and engine.running == 4)
            assert not await load.stop(0.01)
        assert (len(load.records), load.aborted, load.in_flight) == (1, 4, 0)
        await until(lambda: engine.aborted == 4)


async def test_a_cancelled_load_leaves_nothing_at_the_engine() -> None:
    engine = FakeEngine(hang)
    async with load_on(engine) as load:
        running = asyncio.create_task(load.closed(3))
        await until(lambda: engine.running == 3)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert load.aborted == 3
        await until(lambda: engine.aborted == 3)


async def test_an_open_loop_sends_at_its_own_pace_and_skips_what_is_too_much() -> None:
    gate = Gate()
    engine = FakeEngine(gate)
    async with load_on(engine) as load, going(load.open(1000, 6, random.Random(0)), load):
        await until(lambda: engine.running == 6 and load.skipped > 2)
        gate.let(6)
        await until(lambda: load.sent == 12)
        gate.let(1000)
    assert gate.most == 6
    assert len(load.records) == load.sent


async def test_an_open_loop_ends_while_it_waits_for_its_next_moment() -> None:
    engine = FakeEngine()
    async with load_on(engine) as load, going(load.open(1e-6, 6, random.Random(0)), load):
        await asyncio.sleep(0)
    assert load.sent == load.skipped == 0


@pytest.mark.parametrize("status", [400, 200])
async def test_an_engine_that_repeats_what_it_was_sent_puts_no_key_and_no_image_on_record(
    status: int,
) -> None:
    async def repeat(engine: FakeEngine, request: dict[str, Any], send: _Sender) -> None:
        key = engine.headers[-1]["authorization"]
        (part, _) = request["messages"][-1]["content"]
        bare = part["image_url"]["url"].partition(",")[2]
        error = {"error": {"message": f"no {key} for {bare[:99]} in {part} of {bare}", "code": 400}}
        if status == 400:
            return await send.json(error, status)
        await send.start(kind="text/event-stream")
        await send.event(error)
        await send.body(b"data: [DONE]", more=False)
        return None

    async with load_on(FakeEngine(repeat), api_key="s3cret") as load, going(load.closed(1), load):
        await until(lambda: load.messages)
    (told,) = load.messages.values()
    assert told.startswith("no Bearer ... for ... in {'type': 'image_url'")
    assert "s3cret" not in told
    assert "base64" not in told
    assert "iVBOR" not in told
