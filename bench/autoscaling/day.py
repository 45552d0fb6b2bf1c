"""A day on engines that come and go: the gateway's own state and metrics, simulated engines, virtual time."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bench.autoscaling.hpa import SYNC_S, Autoscaler, Behaviour
from bench.autoscaling.rule import demands
from bench.choice.choosers import Gateway
from bench.choice.fleet import ROUTES, Fleet, Pool, World, evenly
from bench.choice.sweep import fit_of
from gateway.model import Engine
from gateway.policy.choose.balance import Choice
from gateway.policy.fail.breaker import Outcome
from gateway.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bench.autoscaling.rule import Demand, Page
    from bench.choice.fleet import Ranges
    from bench.choice.sweep import Sweep

DAY_S = 4 * 3600.0
MOST = {"mtp3": 4, "plain": 8}
DEPTHS = {"mtp3": 3, "plain": 0}
MAX_LOAD = 256
MAX_WAIT_S = 30
# From the decision to the first request: a node that has the image, the weights in its cache.
START_S = 240.0
# As deploy/kubernetes/components/keda has them; a test holds them together.
TARGETS = {"mtp3": 1.0, "plain": 0.8}
UP = {"mtp3": Behaviour(600, 1, 300), "plain": Behaviour(60, 2, 60)}
DOWN = {"mtp3": Behaviour(1800, 1, 600), "plain": Behaviour(1800, 1, 300)}
_SCRAPE_S = 5.0
_SERIES = (
    "useful_load",
    "engine_up",
    "engine_busy_ratio",
    "waiting",
    "oldest_wait_seconds",
    "queue_limit_seconds",
)


class Case(NamedTuple):
    """A day.

    Attributes:
        fit: the engines'.
        kind: `closed`: so many clients, each sends its next request when it has an answer; `open`: so many
            requests a second, whatever becomes of them.
        peak: clients, or requests per second, at noon.
        swing: noon over midnight.
        fixed: engines of each pool, where they are not scaled.
        length: seconds from midnight to midnight.
        part: which part of the day is run.
    """

    fit: str
    kind: str
    peak: float
    swing: float
    fixed: tuple[int, int] | None = None
    length: float = DAY_S
    part: tuple[float, float] = (0, 1)

    def level(self, second: float) -> float:
        """Return clients, or requests per second, at a time: a cosine between midnight and noon."""
        second += self.part[0] * self.length
        trough = self.peak / self.swing
        return trough + (self.peak - trough) * (1 - math.cos(2 * math.pi * second / self.length)) / 2


class Moment(NamedTuple):
    """What was seen at a sync: seconds, engines up and wished for by pool, the demand, requests waiting."""

    at: float
    up: dict[str, int]
    wished: dict[str, int]
    demand: dict[str, float]
    waiting: int
    level: float


@dataclass
class Course:
    """What a day came to; all simulated.

    Attributes:
        engine_seconds: of every pod, from its start to its end.
        tokens: written.
        waits: seconds in the queue, of every request.
        answers: when each came, as a share of the day, and how long after the request.
    """

    engine_seconds: float = 0.0
    tokens: int = 0
    waits: list[float] = field(default_factory=list)
    answers: list[tuple[float, float]] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)

    def turns(self, pool: str) -> int:
        """Return how often the wished number of engines changed its direction."""
        counts = [moment.wished[pool] for moment in self.moments]
        steps = [after - before for before, after in pairwise(counts) if after != before]
        return sum((one > 0) != (other > 0) for one, other in pairwise(steps))

    def latency(self, percent: float, part: tuple[float, float] = (0, 1)) -> float:
        """Return a percentile of the seconds that answers took in some part of the day."""
        return float(
            np.percentile([seconds for at, seconds in self.answers if part[0] <= at <= part[1]], percent)
        )


class _Gateway(Gateway):
    """One that notes how long its clients waited."""

    _world: _World

    def __init__(self, world: _World, config: str, folder: Path, seed: int, waits: list[float]) -> None:
        super().__init__(world, config, folder, seed)
        self._waits = waits
        self._since: dict[int, float] = {}

    def begin(self, client: int, route: str) -> str | None:
        found = self.state.take(route)
        if not isinstance(found, Choice):
            self._leases[client] = found
            self._waits.append(0.0)
            return found.engine.name
        self._since[client] = self._world.now
        self._waiters[client] = self.state.wait(route, lambda: self._woken.append(client))
        # An engine that is warming up takes more as time goes by: others may have got places, too.
        placed = dict(self._placed())
        mine = placed.pop(client, None)
        for other, engine in placed.items():
            self._world.place(other, engine)
        return mine

    def end(self, client: int, tokens: int) -> Iterable[tuple[int, str]]:
        self._leases[client].record_outcome(Outcome.SUCCESS)  # a new engine gets more once it has answered
        return super().end(client, tokens)

    def _placed(self) -> list[tuple[int, str]]:
        placed = super()._placed()
        for client, _ in placed:
            self._waits.append(self._world.now - self._since.pop(client))
        return placed

    def scrape(self) -> None:
        super().scrape()
        self._place()

    def follow(self, engines: Iterable[Engine]) -> None:
        """Take over which engines there are."""
        listed = list(engines)
        self.state.set_engines(listed)
        for engine in listed:
            self.state.mark(engine.name, up=True)
        self._place()

    def _place(self) -> None:
        """Let clients begin that got a place by what was learnt of the engines."""
        for client, engine in self._placed():
            self._world.place(client, engine)

    def drained(self, engine: str) -> bool:
        """Return whether an engine has no work left."""
        return all(other.name != engine for other in self.state.engines())


class _World(World):
    """One in which requests also come by themselves, and engines by the minute."""

    def arrive(self, route: str) -> None:
        """Let a client come that sends one request."""
        client = next(self._ids)
        self._routes[client] = route
        self._leaving.add(client)
        self._send(client)

    def place(self, client: int, engine: str) -> None:
        """Let a client that waited begin."""
        self._place(client, engine)


def config_text(schedules: Mapping[str, Ranges]) -> str:
    """Return the routes.yaml of the day."""
    lines = ["model: ocr", "pools:"]
    for pool, depth in DEPTHS.items():
        lines += [f"  {pool}:", f"    engines: [http://{pool}]", f"    max_load: {MAX_LOAD}"]
        if depth:
            lines.append(f"    speculative_config: {{method: mtp, num_speculative_tokens: {depth}}}")
    lines.append("routes:")
    for route in ROUTES:
        schedule = [list(entry) for entry in schedules[route]]
        queue = f"{{max_waiting: 100000, max_wait_s: {MAX_WAIT_S}}}"
        lines.append(f"  {route}: {{schedule: {schedule}, queue: {queue}}}")
    return "\n".join([*lines, "server: {replicas: 1}"])


def page(metrics: Metrics) -> Page:
    """Return a gateway's gauges as the rules' transcription takes them."""
    prefix = "ocr_gateway_"
    found = {}
    for family in metrics.registry.collect():
        if (name := family.name.removeprefix(prefix)) in _SERIES:
            for sample in family.samples:
                found[name, *(sample.labels[label] for label in sorted(sample.labels))] = sample.value
    return found


def run(case: Case, sweep: Sweep, seed: int = 1) -> Course:
    """Simulate a day."""
    return _Day(case, sweep, seed).run()


class _Day:
    def __init__(self, case: Case, sweep: Sweep, seed: int) -> None:
        self._case = case
        self._course = Course()
        pools = tuple(Pool(name, DEPTHS[name], MOST[name]) for name in MOST)
        self._world = _World(fit_of(case.fit), Fleet("day", pools), seed=seed)
        schedules = {route: sweep.schedule(route, pools, seed) for route in ROUTES}
        self._gateway = _Gateway(self._world, config_text(schedules), Path(), seed, self._course.waits)
        self._metrics = Metrics(self._gateway.state)
        self._rng = np.random.default_rng(seed)
        counts = case.fixed or (1, 1)
        self._wished = dict(zip(MOST, counts, strict=True))
        self._up = {
            name: [f"{name}-{place}" for place in range(count)] for name, count in self._wished.items()
        }
        self._starting: dict[str, float] = {}
        self._draining: set[str] = set()
        self._scalers = {
            name: Autoscaler(TARGETS[name], 1, MOST[name], UP[name], DOWN[name]) for name in MOST
        }
        self._before: dict[str, float] = {}
        # What is scraped and evaluated now is seen by the autoscaler a sync later.
        self._late: deque[dict[str, Demand]] = deque(maxlen=2)
        self._follow()
        self._gateway.poll(1.0, _SCRAPE_S)

    def run(self) -> Course:
        world, case = self._world, self._case
        length = case.length * (case.part[1] - case.part[0])
        for step in range(int(length / SYNC_S)):
            world.at(step * SYNC_S, self._sync)
        if case.kind == "open":
            world.clients(lambda _: self._gateway, {})
            world.at(0.0, self._arrive)
        world.run(length)
        self._course.tokens = world.tokens()
        self._course.answers = [
            (case.part[0] + answer.at / case.length, answer.seconds) for answer in world.answers
        ]
        return self._course

    def _arrive(self) -> None:
        world, most = self._world, self._case.peak
        # Poisson, thinned from the peak's rate to the moment's.
        if self._rng.random() * most < self._case.level(world.now):
            world.arrive(ROUTES[int(self._rng.integers(len(ROUTES)))])
        world.at(world.now + float(self._rng.exponential(1 / most)), self._arrive)

    def _sync(self) -> None:
        now, case = self._world.now, self._case
        if case.kind == "closed":
            self._world.clients(lambda _: self._gateway, evenly(round(case.level(now))))
        for engine, ready in list(self._starting.items()):
            if ready <= now:
                del self._starting[engine]
                self._up[engine.rpartition("-")[0]].append(engine)
        self._follow()
        self._draining = {engine for engine in self._draining if not self._gateway.drained(engine)}
        pods = sum(map(len, self._up.values())) + len(self._starting) + len(self._draining)
        self._course.engine_seconds += pods * SYNC_S
        found = demands([page(self._metrics)], {}, self._before)
        self._before = {pool: demand.engines for pool, demand in found.items()}
        self._late.append(found)
        if case.fixed is None:
            for pool, demand in self._late[0].items():
                self._scale(pool, demand.engines)
        waiting = sum(route.waiting for route in self._gateway.state.snapshot().routes.values())
        up = {pool: len(engines) for pool, engines in self._up.items()}
        self._course.moments.append(
            Moment(now, up, dict(self._wished), dict(self._before), waiting, case.level(now))
        )

    def _scale(self, pool: str, demand: float) -> None:
        now, wished = self._world.now, self._wished[pool]
        self._wished[pool] = count = self._scalers[pool].replicas(now, wished, demand)
        for place in range(wished, count):
            # A name that still drains is let go first, as a StatefulSet does.
            self._starting[f"{pool}-{place}"] = now + START_S
        for place in range(count, wished):  # the highest first
            engine = f"{pool}-{place}"
            if engine in self._starting:
                del self._starting[engine]
            else:
                self._up[pool].remove(engine)
                self._draining.add(engine)

    def _follow(self) -> None:
        listed = [
            Engine(name, f"http://{name}", pool, DEPTHS[pool])
            for pool, engines in self._up.items()
            for name in engines
        ]
        self._gateway.follow(listed)
