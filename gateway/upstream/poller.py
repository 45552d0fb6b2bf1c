"""Reads engines' /health, /metrics and /version in the background."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.config import EMBEDDED
from gateway.errors import GatewayError
from gateway.model import Reading
from gateway.policy.choose.split import replanned
from gateway.wire.vllm.engine import read_metrics, read_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from gateway.config import Config
    from gateway.model import Engine
    from gateway.state.store import State
    from gateway.upstream.client import EngineClient
    from gateway.wire.vllm.engine import EngineReading

log = logging.getLogger(__name__)

# A busy engine may be slow to say that it is well: silence counts only when it lasts.
_SILENT_POLLS = 3
_MIN_PATIENCE_S = 2.0
# An engine this long without a word will not find it again by itself.
_HUNG_POLLS = 15
# An engine that says it is well, has work and writes nothing for so long does not do it.
_STALL_S = 30.0
# Engines that come and go are noticed within this time, however seldom they are polled.
_FOLLOW_S = 0.25


@dataclass(slots=True)
class _Watch:
    """One engine from poll to poll.

    Attributes:
        engine: as configured now.
        silent: polls in a row that /health did not answer.
        silent_since: when the first of them began.
        version: what the engine said when it last came up.
        unread: its metrics could not be read the last time.
        done: its counters of work, as last read.
        done_at: when they last changed, or it had no work.
    """

    engine: Engine
    silent: int = 0
    silent_since: float = 0.0
    version: str | None = None
    unread: bool = False
    done: tuple[float, ...] = ()
    done_at: float = 0.0


class Poller:
    """Keeps the state's view of its engines: which answer, what load they have, how they are configured."""

    def __init__(
        self,
        state: State,
        client: EngineClient,
        clock: Callable[[], float],
        rng: Random,
        on_hung: Callable[[Engine], None] = lambda _: None,
    ) -> None:
        """Prepare to poll.

        Args:
            state: its engines are polled, every `polling.scrape_s` of its configuration.
            client: asks them.
            clock: the state's, in seconds.
            rng: keeps many gateways from asking in step.
            on_hung: hears, once for each silence, of an engine that takes connections and never answers.
        """
        self._state = state
        self._client = client
        self._clock = clock
        self._rng = rng
        self._on_hung = on_hung

    async def run(self) -> None:
        """Poll the engines the state has, and those it gets, until cancelled."""
        watches: dict[tuple[str, str, str], tuple[_Watch, asyncio.Task[None]]] = {}
        async with asyncio.TaskGroup() as tasks:
            while True:
                engines = {(engine.name, engine.url, engine.pool): engine for engine in self._state.engines()}
                for key in watches.keys() - engines.keys():
                    watches.pop(key)[1].cancel()
                for key, engine in engines.items():
                    if key in watches:
                        watches[key][0].engine = engine
                    else:
                        watch = _Watch(engine)
                        watches[key] = watch, tasks.create_task(self._watch(watch))
                await self._plan()
                await asyncio.sleep(min(_FOLLOW_S, self._scrape_s))

    async def _plan(self) -> None:
        """Have the requests split on purpose where that pays; the sums are no matter of the event loop."""
        if situation := self._state.split_inputs():
            fleet = self._state.fleet
            plan = await asyncio.to_thread(replanned, situation)
            if self._state.fleet is fleet:
                self._state.adopt_split(plan)

    @property
    def _scrape_s(self) -> float:
        return self._state.fleet.config.polling.scrape_s

    async def _watch(self, watch: _Watch) -> None:
        while True:
            try:
                await self._poll(watch, max(_MIN_PATIENCE_S, self._scrape_s))
            except Exception:  # one engine's trouble must not end the watch over the others
                log.exception("the poll of engine %s failed", watch.engine.name)
            # A time limit may take a cancellation for its own where both come at once.
            if (task := asyncio.current_task()) and task.cancelling():
                raise asyncio.CancelledError
            await asyncio.sleep(self._scrape_s * self._rng.uniform(0.8, 1.2))

    async def _poll(self, watch: _Watch, patience_s: float) -> None:
        began = self._clock()
        well = await self._healthy(watch.engine, patience_s)
        if well is None:
            self._silence(watch, began, patience_s)
            return
        watch.silent = 0
        if well:
            # Before it is marked up: an engine that others have filled must not look empty.
            await self._read(watch, patience_s)
        if self._note(watch.engine, up=well) and well and watch.engine.name != EMBEDDED:
            watch.version = await self._version(watch.engine, patience_s)

    async def _healthy(self, engine: Engine, patience_s: float) -> bool | None:
        try:
            return await self._client.healthy(engine, patience_s)
        except Exception:
            log.exception("engine %s cannot be polled", engine.name)
            return False

    def _silence(self, watch: _Watch, began: float, patience_s: float) -> None:
        if watch.silent == 0:
            watch.silent_since = began
        watch.silent += 1
        if watch.silent < _SILENT_POLLS:
            return
        name = watch.engine.name
        self._note(watch.engine, up=False)
        last_sign = max(watch.silent_since, self._state.activity(name).active_at)
        if self._clock() - last_sign >= _SILENT_POLLS * patience_s:
            self._state.mark_lost(name)
        if watch.silent == _HUNG_POLLS:
            self._on_hung(watch.engine)

    def _note(self, engine: Engine, *, up: bool) -> bool:
        """Mark an engine; tell whether that is news."""
        news = self._state.mark(engine.name, up=up)
        if news:
            level = logging.INFO if up else logging.WARNING
            log.log(level, "engine %s is %s", engine.name, "up" if up else "down")
        return news

    async def _read(self, watch: _Watch, patience_s: float) -> None:
        """Read an engine's metrics; where that fails, the state keeps what it had.

        The engine counted at some moment between question and answer. The larger of our own counts at either
        end is taken off its load: a request of ours that came or went meanwhile must not pass for another's.
        """
        engine = watch.engine
        asked = self._state.activity(engine.name)
        try:
            seen = read_metrics(await self._client.page(engine, "/metrics", patience_s))
        except (GatewayError, ValueError) as error:
            if not watch.unread:
                watch.unread = True
                log.warning("the metrics of engine %s cannot be read: %s", engine.name, error)
            return
        if watch.unread:
            watch.unread = False
            log.info("the metrics of engine %s can be read again", engine.name)
        reading = Reading(
            at=self._clock(),
            load=seen.running + seen.waiting,
            own=max(asked.in_flight, self._state.activity(engine.name).in_flight),
            awake=seen.awake,
            generation_tokens=seen.generation_tokens,
            finished=seen.finished,
            chunks=asked.chunks,
            speculation=seen.speculation,
            mismatch=mismatch(self._state.fleet.config, engine, seen, watch.version),
            simulated=seen.simulated,
        )
        self._state.record_reading(engine.name, reading)
        if engine.name != EMBEDDED:  # which counts a page when it has read all of it
            self._check_progress(watch, seen)

    def _check_progress(self, watch: _Watch, seen: EngineReading) -> None:
        """Give up what waits on an engine that answers its health check and does nothing else."""
        now, name = self._clock(), watch.engine.name
        done = (seen.generation_tokens, seen.prompt_tokens, seen.finished)
        if done != watch.done or not seen.running + seen.waiting:
            watch.done, watch.done_at = done, now
        elif now - max(watch.done_at, self._state.activity(name).active_at) >= _STALL_S:
            log.warning("engine %s has work and writes nothing for %.0f s", name, _STALL_S)
            watch.done_at = now
            self._state.mark_lost(name, down=False)

    async def _version(self, engine: Engine, patience_s: float) -> str | None:
        """Return what an engine calls its version; None where it does not say."""
        try:
            page = await self._client.page(engine, "/version", patience_s)
            return read_version(page)
        except (GatewayError, ValueError):
            return None


def mismatch(config: Config, engine: Engine, seen: EngineReading, version: str | None) -> str:
    """Tell how an engine differs from its pool's configuration and from what was measured, if it does.

    Args:
        config: names the pool; one that has gone from it makes no demands.
        engine: which.
        seen: its metrics: they have spec_decode series only with a speculative config, one for each position.
        version: what the engine calls its version; None where that is not known.
    """
    return "; ".join(_differences(config, engine, seen, version))


def _differences(config: Config, engine: Engine, seen: EngineReading, version: str | None) -> Iterator[str]:
    pool = config.pools.get(engine.pool)
    if pool is None:
        return
    depth, drafted = pool.depth, seen.speculation
    if depth and not drafted:
        yield (
            "it does not speculate (its metrics have no spec_decode series), "
            f"but pool {engine.pool} has num_speculative_tokens {depth}"
        )
    elif not depth and drafted:
        yield (
            "it speculates (its metrics have spec_decode series), "
            f"but pool {engine.pool} has no speculative_config"
        )
    elif (positions := max((len(of.accepted_per_position) for of in drafted.values()), default=0)) not in (
        0,
        depth,
    ):
        yield f"it has num_speculative_tokens {positions}, but pool {engine.pool} has {depth}"
    for route, profile in config.profiles.items():
        measured = profile.meta.get("engine_version")
        if version and measured and version != str(measured) and engine.pool in config.pools_of(route):
            yield f"it is version {version}, but the profile of route {route} was measured on {measured}"
