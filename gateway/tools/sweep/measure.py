"""One cell on one engine: wait until it is idle, load it, warm up, measure, let it come to rest."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from gateway.errors import GatewayError
from gateway.tools.sweep import windows
from gateway.tools.sweep.engine_clients import LoadGenerator
from gateway.tools.sweep.sweep_values import Window
from gateway.tools.sweep.windows import EngineSample
from gateway.wire.vllm.engine import read_work

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from gateway.model import Engine
    from gateway.tools.sweep.request_bodies import RequestBodies
    from gateway.tools.sweep.sweep_values import SweepCell
    from gateway.upstream.client import EngineClient

# The longest an engine under load may take for its metrics, and how many times it is asked for them.
_PATIENCE_S = 10.0
_ATTEMPTS = 3
# Requests under way when a window ends may go on for this share of its length, so that the engine's counters
# can be compared with the answers exactly.
_DRAIN = 0.25
# Samples in a row that must find an idle engine; samples that a window has at least, for its standard error;
# samples over which the rate shown on the terminal is taken.
_QUIET = 2
_SAMPLES = 30
_RECENT = 6
_LEAST_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Timing:
    """How long things take, in seconds; those of a simulated engine are its own.

    Attributes:
        window_s: a window's length.
        max_warmup_s: the longest to wait for a steady throughput.
        sample_s: between two samples of the engine's metrics.
        idle_s: the longest to wait for others' requests to end; in our seconds, also of a simulated engine.
        stall_s: how long an engine with requests may write nothing; in our seconds, too.
    """

    window_s: float
    max_warmup_s: float
    sample_s: float = 1.0
    idle_s: float = 10.0
    stall_s: float = 60.0


class CellPhase(StrEnum):
    """What is done for a cell, in this order."""

    IDLE = "idle?"
    WARM = "warm-up"
    WINDOW = "window"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class CellProgress:
    """Where a cell is.

    Attributes:
        phase: what is going on.
        left_s: the longest it goes on, in our seconds.
        rate: tokens per second over the last few samples, in the engine's seconds.
        running: requests in the engine.
    """

    phase: CellPhase
    left_s: float
    rate: float = 0.0
    running: int = 0


class _WindowLost(Exception):
    """The window will be invalid whatever follows; the text says why."""


async def measure(
    client: EngineClient,
    engine: Engine,
    cell: SweepCell,
    bodies: RequestBodies,
    timing: Timing,
    rng: Random,
    on_progress: Callable[[CellProgress], None] = lambda _: None,
) -> Window:
    """Measure a cell; a window that is lost ends at once, invalid, with the reason.

    Args:
        client: asks the engine.
        engine: which; one of the cell's pool.
        cell: what to measure.
        bodies: the route's requests.
        timing: how long.
        rng: when the requests of an open loop are sent.
        on_progress: is called about once a second.
    """
    return await _Measurement(client, engine, cell, bodies, timing, rng, on_progress).run()


@dataclass
class _Measurement:
    client: EngineClient
    engine: Engine
    cell: SweepCell
    bodies: RequestBodies
    timing: Timing
    rng: Random
    on_progress: Callable[[CellProgress], None]
    samples: list[EngineSample] = field(default_factory=list)
    scale: float = 1.0
    late: float = 0.0
    written: float = -1.0
    written_at: float = 0.0
    begin: int = 0
    steady: bool = False

    def __post_init__(self) -> None:
        self.clock = asyncio.get_running_loop().time
        self.load = LoadGenerator(self.client, self.engine, self.bodies, self.clock)
        self.started = utc_now()

    async def run(self) -> Window:
        sending: asyncio.Task[None] | None = None
        lost = ""
        try:
            try:
                await self._wait_until_idle()
                sending = asyncio.create_task(self._send())
                await self._warm_up(sending)
                await self._fill_window(sending)
            except _WindowLost as error:
                lost = str(error)
            end = len(self.samples) - 1
            await self._come_to_rest(0.0 if lost else self.timing.window_s * _DRAIN / self.scale)
            return self._window(end, lost)
        finally:
            # An interrupted measurement leaves no requests behind in the engine.
            await self.load.stop(0.0)
            if sending:
                sending.cancel()
                await asyncio.wait([sending])

    async def _wait_until_idle(self) -> None:
        """Return once the engine is healthy and has been idle for some samples in a row."""
        until = self.clock() + self.timing.idle_s
        quiet = 0
        while True:
            sample = await self._sample()
            self._tell(CellPhase.IDLE, until - self.clock())
            quiet = quiet + 1 if self._is_quiet() else 0
            if quiet >= _QUIET:
                break
            if self.clock() >= until:
                raise _WindowLost(_busy(sample))
            await self._pause()
        if await self.client.healthy(self.engine, _PATIENCE_S) is not True:
            raise _WindowLost("the engine's /health does not say that it is well")
        # The cell begins here; what others did before does not count.
        del self.samples[:-1]

    def _is_quiet(self) -> bool:
        """Whether no request is in the engine, or was since the sample before."""
        *_, before, now = (sample.work.reading for sample in (self.samples[0], *self.samples))
        still = (now.finished, now.generation_tokens) == (before.finished, before.generation_tokens)
        return now.awake and still and self.samples[-1].load == 0

    async def _send(self) -> None:
        if self.cell.per_s:
            await self.load.open(self.cell.per_s * self.scale, self.cell.load, self.rng)
        else:
            await self.load.closed(self.cell.load)

    async def _warm_up(self, sending: asyncio.Task[None]) -> None:
        left = self.timing.max_warmup_s
        while left > 0 and not self.steady:
            await self._watch(sending, CellPhase.WARM, left)
            self.steady = windows.steady(self.samples[1:], len(self.load.records))
            left = self.timing.max_warmup_s - windows.elapsed(self.samples[0], self.samples[-1])

    async def _fill_window(self, sending: asyncio.Task[None]) -> None:
        self.begin, self.started = len(self.samples) - 1, utc_now()
        left = self.timing.window_s
        while left > 0:
            await self._watch(sending, CellPhase.WINDOW, left)
            left = self.timing.window_s - windows.elapsed(self.samples[self.begin], self.samples[-1])

    async def _watch(self, sending: asyncio.Task[None], phase: CellPhase, left_s: float) -> None:
        """Take the next sample, within the time that is left.

        Raises:
            _WindowLost: as soon as it shows that the window is lost.
        """
        await self._pause(left_s / self.scale)
        if sending.done():
            sending.result()
        sample = await self._sample()
        self._tell(phase, left_s / self.scale)
        if self.load.messages:
            raise _WindowLost("")  # the errors speak for themselves
        if others := windows.others_requests(self.samples, self.cell.load):
            raise _WindowLost(others)
        written = sample.work.reading.generation_tokens
        if written != self.written or not sample.in_flight:
            self.written, self.written_at = written, sample.at
        elif sample.at - self.written_at >= self.timing.stall_s:
            raise _WindowLost(f"the engine has work and wrote nothing for {self.timing.stall_s:.0f} s")

    async def _come_to_rest(self, drain_s: float) -> None:
        """End the load, and wait until the engine has noticed; the sample that shows it is the last."""
        self._tell(CellPhase.DRAIN, drain_s)
        await self.load.stop(drain_s)
        if not self.samples:
            return
        until = self.clock() + self.timing.idle_s
        try:
            while (await self._sample()).load and self.clock() < until:
                # A request aborted a moment ago would be taken for somebody else's.
                self.samples.pop()
                await self._pause()
        except _WindowLost:
            pass  # the cell has what it needs; if the engine is gone, the next cell will say so

    async def _pause(self, most_s: float = math.inf) -> None:
        """Sleep until the next sample: some dozens a window, but no more than any server bears."""
        pause = min(self.timing.sample_s, self.timing.window_s / _SAMPLES) / self.scale
        pause = min(max(pause, _LEAST_PAUSE_S), max(most_s, 0.0))
        due = self.clock() + pause
        await asyncio.sleep(pause)
        self.late = max(0.0, self.clock() - due)

    async def _sample(self) -> EngineSample:
        for attempt in range(_ATTEMPTS):
            try:
                work = read_work(await self.client.page(self.engine, "/metrics", _PATIENCE_S))
            except (GatewayError, ValueError) as error:
                reason = f"the engine's metrics cannot be read: {error}"
                if attempt + 1 < _ATTEMPTS:
                    await self._pause()
                continue
            if work.simulated:
                self.scale = work.simulated.time_scale
            load = self.load
            sample = EngineSample(self.clock(), work, load.in_flight, load.sent, self.late, load.skipped)
            self.samples.append(sample)
            return sample
        raise _WindowLost(reason)

    def _tell(self, phase: CellPhase, left_s: float) -> None:
        rate, running = 0.0, 0
        if self.samples:
            first, last = self.samples[-_RECENT:][0], self.samples[-1]
            written = last.work.reading.generation_tokens - first.work.reading.generation_tokens
            seconds = windows.elapsed(first, last)
            rate, running = written / seconds if seconds > 0 else 0.0, last.load
        self.on_progress(CellProgress(phase, max(0.0, left_s), rate, running))

    def _window(self, end: int, lost: str) -> Window:
        reasons = tuple(
            filter(None, (lost, *(f"{kind}: {text}" for kind, text in self.load.messages.items())))
        )
        if end <= self.begin or not self.load.sent:
            window = Window(cell=self.cell, engine=self.engine.name, started=self.started, seconds=0.0)
        else:
            window = windows.window(
                self.cell,
                self.engine.name,
                self.samples,
                self.begin,
                end,
                self.load.records,
                started=self.started,
                steady=self.steady,
            )
        new = tuple(reason for reason in reasons if reason not in window.invalid)
        return msgspec.structs.replace(window, invalid=(*window.invalid, *new))


def _busy(sample: EngineSample) -> str:
    if not sample.work.reading.awake:
        return "the engine sleeps"
    return f"other traffic before the window: {sample.load or 'now and then'} requests running"


def utc_now() -> str:
    """Return the time, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
