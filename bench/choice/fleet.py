"""Simulated engines and clients in a closed loop, as discrete events in virtual time."""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from gateway.engines.simulated.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gateway.engines.simulated.step_model import Fit

    Ranges = tuple[tuple[int, int, int], ...]

ROUTES = ("text", "key-value", "table")
# As engines are started for a `max_load` of as many: enough for every split.
MAX_NUM_SEQS = 512


class Pool(NamedTuple):
    """Equal engines: their draft tokens, how many they are, and their own schedule by batch size, if any."""

    name: str
    depth: int
    engines: int = 1
    schedule: Ranges = ()


class Fleet(NamedTuple):
    """Pools, and a name for tables."""

    name: str
    pools: tuple[Pool, ...]

    @property
    def engines(self) -> dict[str, Pool]:
        """Every engine's pool, by the engine's name."""
        return {f"{pool.name}-{place}": pool for pool in self.pools for place in range(pool.engines)}


class Answer(NamedTuple):
    """One answered request: when (s), seconds since it was sent, output tokens."""

    at: float
    seconds: float
    tokens: int
    route: str


class Chooser(Protocol):
    """A rule that chooses an engine for each request."""

    def begin(self, client: int, route: str) -> str | None:
        """Return the engine for a client's next request; None where it waits."""

    def end(self, client: int, tokens: int) -> Iterable[tuple[int, str]]:
        """Note that a client's request is answered; return the waiting clients that now get an engine."""


@dataclass
class World:
    """Engines and clients at one time.

    Attributes:
        now: virtual seconds.
        clocks: the engines, by name.
        answers: the requests answered so far.
        load: requests on each engine, by route.
    """

    fit: Fit
    fleet: Fleet
    seed: int
    now: float = 0.0
    clocks: dict[str, Clock] = field(init=False)
    answers: list[Answer] = field(default_factory=list)
    load: dict[str, dict[str, int]] = field(init=False)

    def __post_init__(self) -> None:
        seeds = np.random.SeedSequence(self.seed).spawn(len(self.fleet.engines) + 1)
        self.clocks = {
            name: Clock(
                self.fit,
                pool.depth,
                np.random.default_rng(seed),
                schedule=pool.schedule or None,
                max_num_seqs=MAX_NUM_SEQS,
            )
            for (name, pool), seed in zip(self.fleet.engines.items(), seeds[1:], strict=True)
        }
        self.load = {name: dict.fromkeys(ROUTES, 0) for name in self.clocks}
        self._source = Clock(self.fit, 0, np.random.default_rng(seeds[0]))
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._routes: dict[int, str] = {}
        self._clients: dict[str, list[int]] = defaultdict(list)
        self._leaving: set[int] = set()
        self._sent: dict[int, tuple[float, int]] = {}
        self._engine_of: dict[int, str] = {}
        self._ids = itertools.count()

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Call a function at a time."""
        heapq.heappush(self._timers, (when, next(self._order), call))

    def tokens(self) -> int:
        """Return the output tokens of all engines so far."""
        return sum(clock.counters.generation_tokens for clock in self.clocks.values())

    def clients(self, chooser_of: Callable[[int], Chooser], counts: Mapping[str, int]) -> None:
        """Set the number of clients of each route; surplus ones leave when they have their answer."""
        self._chooser_of = chooser_of
        new = []
        for route, count in counts.items():
            present = self._clients[route]
            while len(present) > count:
                self._leaving.add(present.pop())
            for _ in range(count - len(present)):
                client = next(self._ids)
                present.append(client)
                self._routes[client] = route
                new.append(client)
        # Routes take turns: a fleet filled with one route first would settle differently.
        places = {client: place for route in counts for place, client in enumerate(self._clients[route])}
        for client in sorted(new, key=places.__getitem__):
            self._send(client)

    def run(self, until: float) -> None:
        """Advance to a time."""
        clocks = list(self.clocks.values())
        while True:
            end, busy = until, None
            for clock in clocks:
                step = clock.next_at()
                if step is not None and step <= end:
                    end, busy = step, clock
            if self._timers and self._timers[0][0] <= end:
                self.now, _, call = heapq.heappop(self._timers)
                call()
            elif busy is None:
                self.now = until
                return
            else:
                self.now = end
                for client in busy.advance_finished():
                    assert isinstance(client, int)
                    self._answered(client)

    def _send(self, client: int) -> None:
        route = self._routes[client]
        self._sent[client] = (self.now, self._source.draw_length(route))
        engine = self._chooser_of(client).begin(client, route)
        if engine is not None:
            self._place(client, engine)

    def _place(self, client: int, engine: str) -> None:
        route = self._routes[client]
        self._engine_of[client] = engine
        self.load[engine][route] += 1
        self.clocks[engine].add(client, route, self._sent[client][1], self.now)

    def _answered(self, client: int) -> None:
        route = self._routes[client]
        sent, tokens = self._sent[client]
        self.load[self._engine_of[client]][route] -= 1
        self.answers.append(Answer(self.now, self.now - sent, tokens, route))
        for waited, engine in self._chooser_of(client).end(client, tokens):
            self._place(waited, engine)
        if client in self._leaving:
            self._leaving.discard(client)
        else:
            self._send(client)


class Result(NamedTuple):
    """A window's figures: output tokens per second, mean and p95 seconds a request, tokens/s by route."""

    rate: float
    latency: float
    p95: float
    by_route: dict[str, float]


def evenly(clients: int) -> dict[str, int]:
    """Return the clients of each route in a mix: a third each."""
    third, rest = divmod(clients, len(ROUTES))
    return {route: third + (place < rest) for place, route in enumerate(ROUTES)}


def measure(world: World, start: float, end: float) -> Result:
    """Run a world to `end`; return the figures of the window from `start` on."""
    world.run(start)
    before = world.tokens()
    world.run(end)
    seconds = [answer.seconds for answer in world.answers if answer.at > start]
    by_route = dict.fromkeys(ROUTES, 0.0)
    for answer in world.answers:
        if answer.at > start:
            by_route[answer.route] += answer.tokens / (end - start)
    return Result(
        (world.tokens() - before) / (end - start),
        float(np.mean(seconds)) if seconds else float("nan"),
        float(np.percentile(seconds, 95)) if seconds else float("nan"),
        by_route,
    )
