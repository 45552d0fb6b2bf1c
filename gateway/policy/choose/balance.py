"""Which engine takes the next request of a route."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from gateway.policy.fail.breaker import Breaker, Phase, Rules

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from random import Random

    from gateway.model import Engine

# Gains this close (relative) are a tie: pieces of a curve are straight, and sums of floats are not exact.
_TIE = 1e-6
# An engine that comes back gets this many requests, doubling every second, until it is in step again.
_WARM_FROM = 8
WARM_S = 6.0


_CLOSED = Breaker()


class Fitness(StrEnum):
    """Whether an engine may take one more request now, and if not, why not."""

    FREE = "free"
    DOWN = "down"
    RESTING = "resting"
    HELD = "held"


class EngineView(NamedTuple):
    """An engine at one moment.

    Two are made for each request: a frozen dataclass would take 3 us more each.

    Attributes:
        engine: which.
        up: it answers its health check, is awake and not on its way out.
        known: whether it is up is known; a new engine has not been asked yet.
        own: this gateway's requests there, by route in the configuration's order.
        ours: their sum.
        fresh: those of them sent since the breaker last moved or the engine came back.
        load: requests there, ours and those that others sent.
        gains: by route, what one more request adds (policy.choose.gain).
        cap: the load from which requests wait instead.
        share: of this load this gateway may always keep its own.
        breaker: its circuit breaker.
        rests_until: it refused work; none is sent to it before this time.
        back_since: when it came back after having been down.
    """

    engine: Engine
    up: bool = False
    known: bool = True
    own: tuple[int, ...] = ()
    ours: int = 0
    fresh: int = 0
    load: int = 0
    gains: tuple[float, ...] = ()
    cap: int = 1
    share: int = 1
    breaker: Breaker = _CLOSED
    rests_until: float = -math.inf
    back_since: float = -math.inf

    @property
    def ready(self) -> bool:
        """Whether it is up and not held."""
        return self.up and not (self.load >= self.cap and self.ours >= self.share)

    @property
    def settled_at(self) -> float:
        """From which time on that is all there is to ask."""
        if self.breaker.phase is not Phase.CLOSED:
            return math.inf
        return max(self.rests_until, self.back_since + WARM_S)

    def fitness(self, now: float, rules: Rules) -> Fitness:
        """Return whether it may take one more request."""
        if not self.up:
            return Fitness.DOWN if self.known else Fitness.RESTING
        if now < self._unavailable_until(rules) or not self.breaker.at(now, rules).allows(self.fresh, rules):
            return Fitness.RESTING
        return Fitness.FREE if self.ready else Fitness.HELD

    def available_at(self, now: float, rules: Rules) -> float:
        """Return when, after `now`, it may take a request again only because time passes.

        Infinity where it waits for nothing, or for an event: that it answers, that a request of it ends.
        """
        until = self._unavailable_until(rules)
        return until if self.up and until > now else math.inf

    def _unavailable_until(self, rules: Rules) -> float:
        """Until when it rests, its breaker is open, or it has all requests that it may have so soon."""
        until = max(self.rests_until, self.breaker.half_open_at(rules))
        if self.fresh >= _WARM_FROM:
            until = max(until, self.back_since + min(WARM_S, math.log2((self.fresh + 1) / _WARM_FROM)))
        return until


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine chosen for a request, or why there is none.

    Attributes:
        view: the engine as it was; None where none may take the request.
        reason: FREE, or the least bad reason why no engine may.
    """

    view: EngineView | None
    reason: Fitness


class Board:
    """How all engines stand, and what one more request of each route adds to each.

    It is kept up as engines change, so that a choice does not ask each of them what has not changed: with 256
    engines that took 25 us, and takes 8.
    """

    def __init__(self, views: Sequence[EngineView], serves: Sequence[Sequence[bool]], routes: int) -> None:
        """Set up a board.

        Args:
            views: the engines; from here on they go by their place in it.
            serves: by place, then by route, whether the route may use the engine; none may where it is empty.
            routes: how many there are.
        """
        self._views = list(views)
        self._loads = [view.load for view in views]
        self._serves = [tuple(route for route, may in enumerate(routes) if may) for routes in serves]
        self._gains = [[-math.inf] * len(views) for _ in range(routes)]
        # Only of these it depends on the time whether they may take a request.
        self._unsettled: set[int] = set()
        for place, view in enumerate(views):
            self.put(place, view)

    def put(self, place: int, view: EngineView) -> None:
        """Note how an engine stands now."""
        self._views[place] = view
        self._loads[place] = view.load
        gains, ready = view.gains, view.ready
        for route in self._serves[place]:
            self._gains[route][place] = gains[route] if ready else -math.inf
        if view.settled_at > -math.inf:
            self._unsettled.add(place)

    def choose(
        self,
        route: int,
        *,
        now: float,
        rules: Rules,
        rng: Random,
        avoid: str | None = None,
        pool: str | None = None,
    ) -> Choice:
        """Choose where one more request adds most; ties go to the least loaded, then at random.

        Args:
            route: its index in the configuration's order.
            now: the time, in seconds; it does not go back from choice to choice.
            rules: the breaker's.
            rng: decides between equals.
            avoid: the name of an engine that has failed this request already.
            pool: the one whose engines may be chosen; None for all that the route may use.
        """
        gains = self._settled(self._gains[route], now, rules) if self._unsettled else self._gains[route]
        if avoid is not None or pool is not None:
            gains = [
                gain if _is_asked(view, avoid, pool) else -math.inf
                for gain, view in zip(gains, self._views, strict=True)
            ]
        best = max(gains, default=-math.inf)
        if best > -math.inf:
            least = best - _TIE * abs(best)
            equals = [place for place, gain in enumerate(gains) if gain >= least]
            if len(equals) > 1:
                load = min([self._loads[place] for place in equals])
                equals = [place for place in equals if self._loads[place] == load]
            return Choice(self._views[equals[0] if len(equals) == 1 else rng.choice(equals)], Fitness.FREE)
        reasons = {view.fitness(now, rules) for view in self._of(route) if _is_asked(view, avoid, pool)}
        # A held engine frees itself soonest; one that is down may never.
        hope = next((reason for reason in (Fitness.HELD, Fitness.RESTING) if reason in reasons), Fitness.DOWN)
        return Choice(None, hope)

    def available_at(self, now: float, rules: Rules) -> float:
        """Return when the next engine may take a request again only because time passes; see EngineView."""
        return min(
            (self._views[place].available_at(now, rules) for place in self._unsettled), default=math.inf
        )

    def candidates(self, route: int, now: float, rules: Rules) -> list[tuple[str, float, int, Fitness]]:
        """Return name, gain, load and fitness of every engine that a route may use, best gain first."""
        rows = [
            (view.engine.name, view.gains[route], view.load, view.fitness(now, rules))
            for view in self._of(route)
        ]
        return sorted(rows, key=lambda row: -row[1])

    def _of(self, route: int) -> Iterator[EngineView]:
        return (view for view, serves in zip(self._views, self._serves, strict=True) if route in serves)

    def _settled(self, gains: list[float], now: float, rules: Rules) -> list[float]:
        """Gains without those of engines that may take no request yet."""
        gains = gains.copy()
        for place in list(self._unsettled):
            view = self._views[place]
            if now >= view.settled_at:
                self._unsettled.remove(place)
            elif view.fitness(now, rules) is not Fitness.FREE:
                gains[place] = -math.inf
        return gains


def _is_asked(view: EngineView, avoid: str | None, pool: str | None) -> bool:
    return view.engine.name != avoid and pool in (None, view.engine.pool)
