"""Polls engines in the background: their /health, /metrics and /version."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.config import EMBEDDED
from gateway.connect_failure import explained
from gateway.errors import EngineFailed, EngineTooSlow, GatewayError
from gateway.model import Reading
from gateway.policy.choose.split import replanned
from gateway.wire.vllm.engine import read_metrics, read_models, read_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from gateway.config import Config
    from gateway.model import Engine
    from gateway.state.store import State
    from gateway.upstream.client import EngineClient
    from gateway.wire.vllm.engine import EngineReading

log = logging.getLogger(__name__)

# A busy engine may be slow to answer its health check: it is down only after so many polls without an answer.
_SILENT_POLLS = 3
_MIN_PATIENCE_S = 2.0
# After so many it hangs, and will not recover by itself.
_HUNG_POLLS = 15
# Reasons that the log has for one engine's being down, until it is up again.
_MOST_TOLD = 8
# An engine that answers its health check, has work and writes nothing for so long is stuck.
_STALL_S = 30.0
# How often an engine is asked which models it serves, beside whenever it comes up.
_MODELS_S = 10.0
# New and removed engines are noticed within this time, however seldom engines are polled.
_FOLLOW_S = 0.25


@dataclass(slots=True)
class _PolledEngine:
    """One engine, and what is kept of it from poll to poll.

    Attributes:
        engine: as configured now.
        silent: polls in a row that /health did not answer.
        silent_since: when the first of them began.
        told: why it is down, as the log has it: each reason once until it is up again.
        version: the engine's, as it said when it last came up; None where it does not say.
        wrong_model: that it serves other models than ours, in words; empty where it does not.
        models_due: when it is asked for them again.
        metrics_failing: whether its metrics could not be read the last time.
        work_counters: its counters of work, as last read.
        progress_at: when they last changed, or it had no work.
    """

    engine: Engine
    silent: int = 0
    silent_since: float = 0.0
    told: set[str] = field(default_factory=set)
    version: str | None = None
    wrong_model: str = ""
    models_due: float = 0.0
    metrics_failing: bool = False
    work_counters: tuple[float, ...] = ()
    progress_at: float = 0.0


class Poller:
    """Keeps the state's view of its engines: which are up, what load they have, how they are configured."""

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
            client: sends the requests.
            clock: the state's, in seconds.
            rng: spreads the polls of several gateways.
            on_hung: called with an engine that has not answered for long, once until it answers again.
        """
        self._state = state
        self._client = client
        self._clock = clock
        self._rng = rng
        self._on_hung = on_hung

    async def run(self) -> None:
        """Poll the engines the state has, and those it gets, until cancelled."""
        polled: dict[tuple[str, str, str], tuple[_PolledEngine, asyncio.Task[None]]] = {}
        async with asyncio.TaskGroup() as tasks:
            while True:
                engines = {(engine.name, engine.url, engine.pool): engine for engine in self._state.engines()}
                for key in polled.keys() - engines.keys():
                    polled.pop(key)[1].cancel()
                for key, engine in engines.items():
                    if key in polled:
                        polled[key][0].engine = engine
                    else:
                        one = _PolledEngine(engine)
                        polled[key] = one, tasks.create_task(self._keep_polling(one))
                await self._plan()
                await asyncio.sleep(min(_FOLLOW_S, self._scrape_s))

    async def _plan(self) -> None:
        """Plan a split of the requests where that pays; in a thread, since it takes long to compute."""
        if situation := self._state.split_inputs():
            fleet = self._state.fleet
            plan = await asyncio.to_thread(replanned, situation)
            if self._state.fleet is fleet:
                self._state.adopt_split(plan)

    @property
    def _scrape_s(self) -> float:
        return self._state.fleet.config.polling.scrape_s

    async def _keep_polling(self, polled: _PolledEngine) -> None:
        while True:
            try:
                await self._poll(polled, max(_MIN_PATIENCE_S, self._scrape_s))
            except Exception:  # one engine's fault must not end the polling of the others
                log.exception("the poll of engine %s failed", polled.engine.name)
            # A time limit that expires at the same moment may swallow the cancellation.
            if (task := asyncio.current_task()) and task.cancelling():
                raise asyncio.CancelledError
            await asyncio.sleep(self._scrape_s * self._rng.uniform(0.8, 1.2))

    async def _poll(self, polled: _PolledEngine, patience_s: float) -> None:
        began = self._clock()
        up, fault = await self._check_health(polled.engine, patience_s)
        if up is None:
            self._no_answer(polled, began, patience_s, fault)
            return
        polled.silent = 0
        if not up:
            polled.models_due = 0.0
        elif polled.engine.name != EMBEDDED:
            fault = await self._check_models(polled, patience_s)
        if up:
            # Before it is marked up: an engine that others have filled must not look empty.
            await self._read(polled, patience_s)
        if self._mark(polled, fault) and up and polled.engine.name != EMBEDDED:
            polled.version = await self._version(polled.engine, patience_s)

    async def _check_health(self, engine: Engine, patience_s: float) -> tuple[bool | None, str]:
        """Return whether an engine is up, None where it did not answer in time, and what is wrong with it."""
        try:
            await self._client.check_health(engine, patience_s)
        except EngineFailed as error:
            return False, health_fault(error)
        except EngineTooSlow as error:
            return None, error.message if error.code == "connect_timeout" else ""
        except GatewayError:
            return None, ""
        except Exception:
            log.exception("engine %s cannot be polled", engine.name)
            return False, "it cannot be polled"
        return True, ""

    async def _check_models(self, polled: _PolledEngine, patience_s: float) -> str:
        """Return, in words, that an engine serves other models than ours; empty where it does not say so."""
        now, model = self._clock(), self._state.fleet.config.model
        if now < polled.models_due and not polled.wrong_model:
            return ""
        polled.models_due = now + _MODELS_S
        try:
            names = read_models(await self._client.page(polled.engine, "/v1/models", patience_s))
        except (GatewayError, ValueError):
            names = (model,)
        served = ", ".join(name for name in names[:3] if name.isprintable())
        polled.wrong_model = "" if model in names else f"it serves {served} and not {model}"
        return polled.wrong_model

    def _no_answer(self, polled: _PolledEngine, began: float, patience_s: float, fault: str) -> None:
        if polled.silent == 0:
            polled.silent_since = began
        polled.silent += 1
        if polled.silent < _SILENT_POLLS:
            return
        name = polled.engine.name
        silence = f"{_SILENT_POLLS} health checks in a row had no answer in {patience_s:g} s"
        self._mark(polled, f"{silence} ({fault})" if fault else silence)
        last_sign = max(polled.silent_since, self._state.activity(name).active_at)
        if self._clock() - last_sign >= _SILENT_POLLS * patience_s:
            self._state.mark_lost(name)
        if polled.silent == _HUNG_POLLS:
            self._on_hung(polled.engine)

    def _mark(self, polled: _PolledEngine, fault: str) -> bool:
        """Mark an engine as down with a fault, as up without one; return whether that is news."""
        name = polled.engine.name
        news = self._state.mark(name, up=not fault, fault=fault)
        if not fault:
            polled.told.clear()
            if news:
                log.info("engine %s is up", name)
        elif fault not in polled.told and len(polled.told) < _MOST_TOLD:
            polled.told.add(fault)
            log.warning("engine %s is down: %s", name, fault)
        return news

    async def _read(self, polled: _PolledEngine, patience_s: float) -> None:
        """Read an engine's metrics; where that fails, the state keeps what it had.

        The engine counts its requests at some moment between our request and its response. The larger of our
        own counts before and after is taken off its load, so that a request of ours that began or ended
        meanwhile does not count as somebody else's.
        """
        engine = polled.engine
        asked = self._state.activity(engine.name)
        try:
            seen = read_metrics(await self._client.page(engine, "/metrics", patience_s))
        except (GatewayError, ValueError) as error:
            if not polled.metrics_failing:
                polled.metrics_failing = True
                log.warning("the metrics of engine %s cannot be read: %s", engine.name, error)
            return
        if polled.metrics_failing:
            polled.metrics_failing = False
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
            mismatch=polled.wrong_model or mismatch(self._state.fleet.config, engine, seen, polled.version),
            simulated=seen.simulated,
        )
        self._state.record_reading(engine.name, reading)
        if engine.name != EMBEDDED:  # it counts a page only when it has read all of it
            self._check_progress(polled, seen)

    def _check_progress(self, polled: _PolledEngine, seen: EngineReading) -> None:
        """Fail the requests that wait on an engine which answers its health check and does nothing else."""
        now, name = self._clock(), polled.engine.name
        counters = (seen.generation_tokens, seen.prompt_tokens, seen.finished)
        if counters != polled.work_counters or not seen.running + seen.waiting:
            polled.work_counters, polled.progress_at = counters, now
        elif now - max(polled.progress_at, self._state.activity(name).active_at) >= _STALL_S:
            log.warning("engine %s has work and writes nothing for %.0f s", name, _STALL_S)
            polled.progress_at = now
            self._state.mark_lost(name, down=False)

    async def _version(self, engine: Engine, patience_s: float) -> str | None:
        """Return an engine's version; None where it does not say."""
        try:
            page = await self._client.page(engine, "/version", patience_s)
            return read_version(page)
        except (GatewayError, ValueError):
            return None


def health_fault(error: EngineFailed) -> str:
    """Return why a health check failed, in an operator's words: a client is not told all of it."""
    if isinstance(error.__cause__, OSError):
        return f"no connection to it: {explained(error.__cause__)}"
    if error.code == "engine_died":
        asks = "whether it asks clients for a certificate"
        return f"{error.message}; check its log, whether its URL should begin with https://, and {asks}"
    return error.message


def mismatch(config: Config, engine: Engine, seen: EngineReading, version: str | None) -> str:
    """Return how an engine differs from its pool's configuration and its profiles; empty where it does not.

    Args:
        config: has the pool; an engine whose pool was removed differs from nothing.
        engine: which.
        seen: its metrics: they have spec_decode series only with a speculative config, one for each position.
        version: the engine's version; None where that is not known.
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
