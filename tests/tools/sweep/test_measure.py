from __future__ import annotations

import asyncio
import contextlib
import json
import random
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from gateway.model import Engine
from gateway.tools.sweep.measure import CellPhase, CellProgress, Timing, measure
from gateway.tools.sweep.sweep_values import SweepCell, Window
from gateway.upstream.client import EngineClient
from gateway.wire.vllm.engine import read_metrics
from tests.support import chat
from tests.tools.sweep.support import bodies, simulated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

TIMING = Timing(window_s=20, max_warmup_s=40, sample_s=1, idle_s=0.5, stall_s=0.5)
LONG = chat(stream=True, max_tokens=1_000_000, ignore_eos=True)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with simulated(3) as engine:
        yield engine


async def measured(
    engine: Engine,
    cell: SweepCell | None = None,
    timing: Timing = TIMING,
    on_progress: Callable[[CellProgress], None] = lambda _: None,
    **options: Any,
) -> Window:
    async with EngineClient() as client:
        cell = cell or SweepCell("text", engine.pool, 4)
        return await measure(client, engine, cell, bodies(**options), timing, random.Random(0), on_progress)


async def post(engine: Engine, path: str, body: object) -> None:
    async with httpx.AsyncClient() as http:
        (await http.post(engine.url + path, content=json.dumps(body), timeout=60)).raise_for_status()


async def load_of(engine: Engine) -> int:
    async with httpx.AsyncClient() as http:
        reading = read_metrics((await http.get(engine.url + "/metrics")).content)
        return reading.running + reading.waiting


async def test_a_cell_is_measured_between_two_rests(engine: Engine) -> None:
    told: list[CellProgress] = []
    window = await measured(engine, on_progress=told.append)
    assert window.invalid == ()
    assert (window.cell, window.engine) == (SweepCell("text", "depth3", 4), "e3")
    assert window.seconds >= 20
    assert window.warm_s > 0
    assert window.requests > 0
    assert window.rate > 0
    assert window.agree
    assert window.first_token_s
    assert window.request_s
    assert window.first_token_s.mean < window.request_s.mean
    assert await load_of(engine) == 0
    assert list(dict.fromkeys(progress.phase for progress in told)) == list(CellPhase)
    assert max(progress.running for progress in told) <= 4
    assert max(progress.rate for progress in told) > 0


async def test_an_open_loop_sends_by_the_engines_clock() -> None:
    """A slower one: an engine that is behind its own clock gets more requests in a second of it."""
    async with simulated(3, scale=5) as engine:
        cell = SweepCell("text", "depth3", 64, per_s=2)
        window = await measured(engine, cell, Timing(window_s=20, max_warmup_s=10), stream=False)
    assert window.invalid == ()
    assert 15 < window.requests < 75  # 40 on average in 20 s
    assert window.first_token_s is None


async def test_a_failed_request_ends_the_window_at_once(engine: Engine) -> None:
    await post(engine, "/faults", {"kind": "unavailable", "probability": 0.2})
    window = await measured(engine, timing=Timing(1_000_000, 1_000_000))
    assert not window.valid
    assert window.errors.keys() == {"http_503"}
    assert "http_503" in "; ".join(window.invalid)


async def test_an_engine_that_others_use_is_not_loaded(engine: Engine) -> None:
    stranger = asyncio.create_task(post(engine, "/v1/chat/completions", LONG))
    while not await load_of(engine):
        pass
    window = await measured(engine)
    stranger.cancel()
    assert window.invalid == ("other traffic before the window: 1 requests running",)
    assert window.requests == 0


async def test_two_sweeps_that_begin_together_lose_both_windows(engine: Engine) -> None:
    found = await asyncio.gather(*(measured(engine, SweepCell("text", "depth3", load)) for load in (1, 8)))
    for window in found:
        assert "somebody else's requests" in window.invalid[0]


@pytest.mark.parametrize("phase", [CellPhase.WARM, CellPhase.WINDOW])
async def test_one_short_request_of_a_stranger_is_found_whenever_it_comes(
    engine: Engine, phase: CellPhase
) -> None:
    """No look need see it: what has finished in the end is counted against what was sent."""
    strangers: list[asyncio.Task[None]] = []

    def come(progress: CellProgress) -> None:
        if progress.phase is phase and not strangers:
            strangers.append(asyncio.create_task(post(engine, "/v1/chat/completions", chat(max_tokens=1))))

    window = await measured(engine, timing=Timing(10, 10, idle_s=30), on_progress=come)
    await strangers[0]
    assert "somebody else's requests" in window.invalid[0]


async def test_a_stranger_during_the_window_spoils_it(engine: Engine) -> None:
    strangers: list[asyncio.Task[None]] = []

    def come(progress: CellProgress) -> None:
        if progress.phase is CellPhase.WINDOW and not strangers:
            strangers.append(asyncio.create_task(post(engine, "/v1/chat/completions", LONG)))

    window = await measured(engine, timing=Timing(1_000_000, 40, idle_s=2.0), on_progress=come)
    strangers[0].cancel()
    assert "somebody else's requests" in window.invalid[0]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("sleep", "the engine sleeps"),
        ("not_ready", "the engine's /health does not say that it is well"),
    ],
)
async def test_an_engine_that_is_not_well_is_not_loaded(engine: Engine, fault: str, said: str) -> None:
    await post(engine, "/faults", {"kind": fault})
    window = await measured(engine)
    assert window.invalid == (said,)


async def test_an_engine_that_stops_writing_loses_the_window(engine: Engine) -> None:
    faults: list[asyncio.Task[None]] = []

    def fall_asleep(progress: CellProgress) -> None:
        if progress.phase is CellPhase.WINDOW and not faults:
            faults.append(asyncio.create_task(post(engine, "/faults", {"kind": "sleep"})))

    window = await measured(engine, on_progress=fall_asleep, timing=Timing(1_000_000, 40, stall_s=0.3))
    assert "the engine has work and wrote nothing for 0 s" in window.invalid


async def test_an_engine_that_is_gone_is_a_lost_window() -> None:
    window = await measured(Engine("e", "http://127.0.0.1:9", "plain", 0))
    assert window.invalid == (
        "the engine's metrics cannot be read: no connection to the engine: it refuses connections",
    )
    assert (window.seconds, window.engine) == (0, "e")


async def test_an_engine_that_dies_in_the_window_is_a_lost_window() -> None:
    async with contextlib.AsyncExitStack() as stack:
        engine = await stack.enter_async_context(simulated(3))
        dying: list[asyncio.Task[None]] = []

        def die(progress: CellProgress) -> None:
            if progress.phase is CellPhase.WINDOW and not dying:
                dying.append(asyncio.create_task(stack.aclose()))

        window = await measured(engine, timing=Timing(1_000_000, 40), on_progress=die)
        await dying[0]
    assert "; ".join(window.invalid).count("engine") > 0
    assert window.requests > 0
    assert not window.valid


async def test_an_interrupted_cell_leaves_no_work_behind(engine: Engine) -> None:
    busy = asyncio.Event()

    def on_progress(progress: CellProgress) -> None:
        if progress.running:
            busy.set()

    measuring = asyncio.create_task(
        measured(engine, timing=Timing(1_000_000, 1_000_000), on_progress=on_progress)
    )
    await busy.wait()
    measuring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await measuring
    while await load_of(engine):
        pass
