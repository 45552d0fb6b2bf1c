"""Rules that choose an engine: the gateway's own, and those that it is compared with."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

from bench.choice.fleet import MAX_NUM_SEQS
from gateway.config import parse
from gateway.model import Engine, Reading
from gateway.policy.choose.balance import Choice
from gateway.policy.choose.gain import depth_at
from gateway.policy.choose.split import replanned
from gateway.state.fleet import Fleet as GatewayFleet
from gateway.state.store import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path
    from typing import Self

    from bench.choice.fleet import Fleet, Ranges, World
    from gateway.state.lease import Lease
    from gateway.state.queues import Waiter


class Gateway:
    """The gateway's own State and policies, in virtual time."""

    def __init__(self, world: World, config: str, folder: Path, seed: int) -> None:
        fleet = GatewayFleet.of(parse(config, "routes.yaml", folder, {}))
        engines = [
            Engine(name, f"http://{name}", pool.name, pool.depth)
            for name, pool in world.fleet.engines.items()
        ]
        self.state = State(fleet, engines, lambda: world.now, random.Random(seed))
        for engine in engines:
            self.state.mark(engine.name, up=True)
        self._world = world
        self._leases: dict[int, Lease] = {}
        self._waiters: dict[int, Waiter] = {}
        self._woken: list[int] = []

    def begin(self, client: int, route: str) -> str | None:
        """See Chooser."""
        found = self.state.take(route)
        if isinstance(found, Choice):
            self._waiters[client] = self.state.wait(route, lambda: self._woken.append(client))
            placed = self._placed()  # only this client can have got a place by joining the queue
            return placed[0][1] if placed else None
        self._leases[client] = found
        return found.engine.name

    def end(self, client: int, tokens: int) -> Iterable[tuple[int, str]]:
        """See Chooser."""
        lease = self._leases.pop(client)
        self.state.history.record_answer(lease.route, tokens)
        lease.release()
        return self._placed()

    def poll(self, first: float, every: float = 1.0) -> Self:
        """Read the engines' metrics at a time, and every so many seconds from then on."""

        def scrape() -> None:
            self.scrape()
            self._world.at(self._world.now + every, scrape)

        self._world.at(first, scrape)
        return self

    def scrape(self) -> None:
        """Read every engine's metrics, as the poller does."""
        for name, clock in self._world.clocks.items():
            reading = Reading(
                at=self._world.now,
                load=clock.running + clock.waiting,
                own=self.state.activity(name).in_flight,
                generation_tokens=clock.counters.generation_tokens,
            )
            self.state.record_reading(name, reading)
        if situation := self.state.split_inputs():
            self.state.adopt_split(replanned(situation))

    def _placed(self) -> list[tuple[int, str]]:
        placed = []
        for client in self._woken:
            lease = self._waiters.pop(client).lease
            assert lease is not None
            self._leases[client] = lease
            placed.append((client, lease.engine.name))
        self._woken.clear()
        return placed


class Pinned:
    """A fixed split: every client keeps its first engine."""

    def __init__(self, split: Mapping[str, Mapping[str, int]]) -> None:
        self._free = {engine: dict(counts) for engine, counts in split.items()}
        self._of: dict[int, str] = {}

    def begin(self, client: int, route: str) -> str:
        """See Chooser."""
        if client not in self._of:
            engine = next(name for name, counts in self._free.items() if counts.get(route, 0) > 0)
            self._free[engine][route] -= 1
            self._of[client] = engine
        return self._of[client]

    def end(self, client: int, tokens: int) -> Iterable[tuple[int, str]]:
        """See Chooser."""
        return ()


class Stateless:
    """A rule that depends on the engines' loads alone."""

    def __init__(self, pick: Callable[[str], str]) -> None:
        self._pick = pick

    def begin(self, client: int, route: str) -> str:
        """See Chooser."""
        return self._pick(route)

    def end(self, client: int, tokens: int) -> Iterable[tuple[int, str]]:
        """See Chooser."""
        return ()


def least_loaded(world: World) -> Stateless:
    """The engine with the fewest requests; ties at random."""
    rng = random.Random(world.seed)
    return Stateless(lambda route: min(world.load, key=lambda name: (_load(world, name), rng.random())))


def round_robin(world: World) -> Stateless:
    """Each engine in turn."""
    turns = itertools.cycle(world.load)
    return Stateless(lambda route: next(turns))


def fill_to_crossover(world: World, schedules: Mapping[str, Ranges]) -> Stateless:
    """An engine of the depth that the route's schedule has for the load it would get, else the shallowest.

    Of several such engines it is the deepest, and of equal ones the least loaded.
    """
    engines = world.fleet.engines

    def pick(route: str) -> str:
        named = [
            name
            for name, pool in engines.items()
            if depth_at(schedules[route], _load(world, name) + 1, 0) == pool.depth
        ]
        shallowest = min(pool.depth for pool in engines.values())
        rest = named or [name for name, pool in engines.items() if pool.depth == shallowest]
        return min(rest, key=lambda name: (-engines[name].depth, _load(world, name)))

    return Stateless(pick)


def fastest_for_itself(
    world: World, curves: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]]
) -> Stateless:
    """The engine on which this request alone would run fastest, by exact curves; ties: the least loaded."""
    engines = world.fleet.engines

    def pick(route: str) -> str:
        def speed(name: str) -> tuple[float, int]:
            load = _load(world, name)
            return _interpolated(curves[route][engines[name].name], load + 1) / (load + 1), -load

        return max(engines, key=speed)

    return Stateless(pick)


def config_text(
    fleet: Fleet,
    routes: Sequence[str],
    *,
    schedules: Mapping[str, Ranges] | None = None,
    weights: Mapping[str, float] | None = None,
    replicas: int = 1,
) -> str:
    """Return a routes.yaml: with a profile for each route (`ROUTE.json`), or with schedules alone."""
    lines = ["model: ocr", "pools:"]
    for pool in fleet.pools:
        lines.append(f"  {pool.name}:")
        lines.append(f"    engines: [{', '.join(f'http://{pool.name}-{at}' for at in range(pool.engines))}]")
        lines.append(f"    max_load: {MAX_NUM_SEQS}")
        if pool.depth:
            table = [list(entry) for entry in pool.schedule]
            own = f", num_speculative_tokens_per_batch_size: {table}" if table else ""
            lines.append(
                f"    speculative_config: {{method: mtp, num_speculative_tokens: {pool.depth}{own}}}"
            )
    lines.append("routes:")
    for route in routes:
        choice = f"profile: {route}.json"
        if schedules is not None:
            choice = f"schedule: {[list(entry) for entry in schedules[route]]}"
        weight = (weights or {}).get(route, 1.0)
        queue = "queue: {max_waiting: 100000, max_wait_s: 100000}"
        lines.append(f"  {route}: {{{choice}, weight: {weight:.4f}, {queue}}}")
    lines.append(f"server: {{replicas: {replicas}}}")
    return "\n".join(lines)


def _load(world: World, engine: str) -> int:
    return sum(world.load[engine].values())


def _interpolated(points: Sequence[tuple[int, float]], load: int) -> float:
    before = (0, 0.0)
    for point in points:
        if load <= point[0]:
            share = (load - before[0]) / (point[0] - before[0])
            return before[1] + share * (point[1] - before[1])
        before = point
    return before[1]
