"""One cell on one engine: wait until it is idle, load it, warm up, measure, let it come to rest."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from gateway.errors import GatewayError
from gateway.tools.sweep import windows
from gateway.tools.sweep.engine_clients import Load
from gateway.tools.sweep.sweep_values import Window
from gateway.tools.sweep.windows import Sample
from gateway.wire.vllm.engine import read_work

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from gateway.model import Engine
    from gateway.tools.sweep.request_bodies import Bodies
    from gateway.tools.sweep.sweep_values import Cell
    from gateway.upstream.client import EngineClient

# The longest an engine under load may take for a page, and how many times it is asked for one.
_PATIENCE_S = 10.0
_ATTEMPTS = 3
# What is under way when a window ends may go on for this share of it: then counters can be compared exactly.
_DRAIN = 0.25
# Looks in a row that must find nothing, looks a window wants for its stretches, looks that "of late" means.
_QUIET = 2
_LOOKS = 30
_RECENT = 6
_LEAST_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Timing:
    """How long things take, in seconds; those of a simulated engine are its own.

    Attributes:
        window_s: a window's length.
        max_warmup_s: the longest to wait for a steady throughput.
        sample_s: between two looks at the engine.
        idle_s: the longest to wait for others' requests to end; ours, also of a simulated engine.
        stall_s: how long an engine with work may write nothing; likewise.
    """

    window_s: float
    max_warmup_s: float
    sample_s: float = 1.0
    idle_s: float = 10.0
    stall_s: float = 60.0


class Phase(StrEnum):
    """What is done for a cell, in this order."""

    IDLE = "idle?"
    WARM = "warm-up"
    WINDOW = "window"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a cell is.

    Attributes:
        phase: what is going on.
        left_s: the longest it goes on, in our seconds.
        rate: tokens per second of late, in the engine's seconds.
        running: requests in the engine.
    """

    phase: Phase
    left_s: float
    rate: float = 0.0
    running: int = 0


class _Lost(Exception):
    """The window cannot come to anything; the text says why."""


async def measure(
    client: EngineClient,
    engine: Engine,
    cell: Cell,
    bodies: Bodies,
    timing: Timing,
    rng: Random,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Window:
    """Measure a cell; a window that is lost ends at once, invalid, with the reason.

    Args:
        client: asks the engine.
        engine: which; one of the cell's pool.
        cell: what to measure.
        bodies: the route's requests.
        timing: how long.
        rng: when the requests of an open loop are sent.
        on_progress: hears about once a second where it is.
    """
    return await _Measurement(client, engine, cell, bodies, timing, rng, on_progress).run()


class _Measurement:
    def __init__(
        self,
        client: EngineClient,
        engine: Engine,
        cell: Cell,
        bodies: Bodies,
        timing: Timing,
        rng: Random,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._client = client
        self._engine = engine
        self._cell = cell
        self._timing = timing
        self._rng = rng
        self._on_progress = on_progress
        self._clock = asyncio.get_running_loop().time
        self._load = Load(client, engine, bodies, self._clock)
        self._samples: list[Sample] = []
        self._scale = 1.0
        self._late = 0.0
        self._written, self._written_at = -1.0, 0.0
        self._begin = 0
        self._started = utc_now()
        self._steady = False

    async def run(self) -> Window:
        sending: asyncio.Task[None] | None = None
        lost = ""
        try:
            try:
                await self._wait_until_idle()
                sending = asyncio.create_task(self._send())
                await self._warm_up(sending)
                await self._fill_window(sending)
            except _Lost as error:
                lost = str(error)
            end = len(self._samples) - 1
            await self._come_to_rest(0.0 if lost else self._timing.window_s * _DRAIN / self._scale)
            return self._window(end, lost)
        finally:
            # Whoever interrupts it leaves no work behind in the engine.
            await self._load.stop(0.0)
            if sending:
                sending.cancel()
                await asyncio.wait([sending])

    async def _wait_until_idle(self) -> None:
        """Return once the engine is well and does nothing, for some looks in a row."""
        until = self._clock() + self._timing.idle_s
        quiet = 0
        while True:
            sample = await self._look()
            self._tell(Phase.IDLE, until - self._clock())
            quiet = quiet + 1 if self._is_quiet() else 0
            if quiet >= _QUIET:
                break
            if self._clock() >= until:
                raise _Lost(_busy(sample))
            await self._pause()
        if await self._client.healthy(self._engine, _PATIENCE_S) is not True:
            raise _Lost("the engine's /health does not say that it is well")
        # The cell begins here: what others did before is no concern of it.
        del self._samples[:-1]

    def _is_quiet(self) -> bool:
        """Whether nobody's request is in the engine, or was since the last look."""
        *_, before, now = (sample.work.reading for sample in (self._samples[0], *self._samples))
        still = (now.finished, now.generation_tokens) == (before.finished, before.generation_tokens)
        return now.awake and still and self._samples[-1].load == 0

    async def _send(self) -> None:
        if self._cell.per_s:
            await self._load.open(self._cell.per_s * self._scale, self._cell.load, self._rng)
        else:
            await self._load.closed(self._cell.load)

    async def _warm_up(self, sending: asyncio.Task[None]) -> None:
        left = self._timing.max_warmup_s
        while left > 0 and not self._steady:
            await self._watch(sending, Phase.WARM, left)
            self._steady = windows.steady(self._samples[1:], len(self._load.records))
            left = self._timing.max_warmup_s - windows.elapsed(self._samples[0], self._samples[-1])

    async def _fill_window(self, sending: asyncio.Task[None]) -> None:
        self._begin, self._started = len(self._samples) - 1, utc_now()
        left = self._timing.window_s
        while left > 0:
            await self._watch(sending, Phase.WINDOW, left)
            left = self._timing.window_s - windows.elapsed(self._samples[self._begin], self._samples[-1])

    async def _watch(self, sending: asyncio.Task[None], phase: Phase, left_s: float) -> None:
        """Let some time go by, but no more than is left; give up as soon as the window is lost."""
        await self._pause(left_s / self._scale)
        if sending.done():
            sending.result()
        sample = await self._look()
        self._tell(phase, left_s / self._scale)
        if self._load.told:
            raise _Lost("")  # the errors speak for themselves
        if strangers := windows.foreign(self._samples, self._cell.load):
            raise _Lost(strangers)
        written = sample.work.reading.generation_tokens
        if written != self._written or not sample.in_flight:
            self._written, self._written_at = written, sample.at
        elif sample.at - self._written_at >= self._timing.stall_s:
            raise _Lost(f"the engine has work and wrote nothing for {self._timing.stall_s:.0f} s")

    async def _come_to_rest(self, drain_s: float) -> None:
        """End the load, and wait until the engine has seen that; one look is the last of the cell."""
        self._tell(Phase.DRAIN, drain_s)
        await self._load.stop(drain_s)
        if not self._samples:
            return
        until = self._clock() + self._timing.idle_s
        try:
            while (await self._look()).load and self._clock() < until:
                # What was aborted a moment ago would pass for somebody else's.
                self._samples.pop()
                await self._pause()
        except _Lost:
            pass  # the cell has what it needs; the next one on this engine will tell

    async def _pause(self, most_s: float = math.inf) -> None:
        """Sleep until the next look: some dozens a window, but no more than any server bears."""
        pause = min(self._timing.sample_s, self._timing.window_s / _LOOKS) / self._scale
        pause = min(max(pause, _LEAST_PAUSE_S), max(most_s, 0.0))
        due = self._clock() + pause
        await asyncio.sleep(pause)
        self._late = max(0.0, self._clock() - due)

    async def _look(self) -> Sample:
        for attempt in range(_ATTEMPTS):
            try:
                work = read_work(await self._client.page(self._engine, "/metrics", _PATIENCE_S))
            except (GatewayError, ValueError) as error:
                reason = f"the engine's metrics cannot be read: {error}"
                if attempt + 1 < _ATTEMPTS:
                    await self._pause()
                continue
            if work.simulated:
                self._scale = work.simulated.time_scale
            load = self._load
            sample = Sample(self._clock(), work, load.in_flight, load.sent, self._late, load.skipped)
            self._samples.append(sample)
            return sample
        raise _Lost(reason)

    def _tell(self, phase: Phase, left_s: float) -> None:
        rate, running = 0.0, 0
        if self._samples:
            first, last = self._samples[-_RECENT:][0], self._samples[-1]
            written = last.work.reading.generation_tokens - first.work.reading.generation_tokens
            seconds = windows.elapsed(first, last)
            rate, running = written / seconds if seconds > 0 else 0.0, last.load
        self._on_progress(Progress(phase, max(0.0, left_s), rate, running))

    def _window(self, end: int, lost: str) -> Window:
        reasons = tuple(filter(None, (lost, *(f"{kind}: {text}" for kind, text in self._load.told.items()))))
        if end <= self._begin or not self._load.sent:
            window = Window(cell=self._cell, engine=self._engine.name, started=self._started, seconds=0.0)
        else:
            window = windows.window(
                self._cell,
                self._engine.name,
                self._samples,
                self._begin,
                end,
                self._load.records,
                started=self._started,
                steady=self._steady,
            )
        new = tuple(reason for reason in reasons if reason not in window.invalid)
        return msgspec.structs.replace(window, invalid=(*window.invalid, *new))


def _busy(sample: Sample) -> str:
    if not sample.work.reading.awake:
        return "the engine sleeps"
    return f"other traffic before the window: {sample.load or 'now and then'} requests running"


def utc_now() -> str:
    """Return the time, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
