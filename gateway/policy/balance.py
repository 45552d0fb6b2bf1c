"""Which engine takes the next request of a route."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from gateway.policy.breaker import Breaker, Phase, Rules

if TYPE_CHECKING:
    from collections.abc import Sequence
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


@dataclass(frozen=True, slots=True)
class EngineView:
    """An engine at one moment.

    Attributes:
        engine: which.
        up: it answers its health check, is awake and not on its way out.
        known: whether it is up is known; a new engine has not been asked yet.
        own: this gateway's requests there, by route in the configuration's order.
        ours: their sum.
        fresh: those of them sent since the breaker last moved or the engine came back.
        load: requests there, ours and those that others sent.
        gains: by route, what one more request adds (policy.depth).
        cap: the load from which requests wait instead.
        share: of this load this gateway may always keep its own.
        breaker: its circuit breaker.
        rests_until: it refused work; none is sent to it before this time.
        back_since: when it came back after having been down.
        ready: it is up and not held.
        settled_at: from this time on that is all there is to ask.
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
    ready: bool = field(init=False)
    settled_at: float = field(init=False)

    def __post_init__(self) -> None:
        """Work out once what every choice asks."""
        held = self.load >= self.cap and self.ours >= self.share
        object.__setattr__(self, "ready", self.up and not held)
        calm = self.breaker.phase is Phase.CLOSED
        settled = max(self.rests_until, self.back_since + WARM_S) if calm else math.inf
        object.__setattr__(self, "settled_at", settled)

    def fitness(self, now: float, rules: Rules) -> Fitness:
        """Return whether it may take one more request."""
        if not self.up:
            return Fitness.DOWN if self.known else Fitness.RESTING
        if now < self.rests_until or not self.breaker.at(now, rules).allows(self.fresh, rules):
            return Fitness.RESTING
        back = now - self.back_since
        if back < WARM_S and self.fresh >= _WARM_FROM * 2**back:
            return Fitness.RESTING
        return Fitness.FREE if self.ready else Fitness.HELD


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine chosen for a request, or why there is none; `candidates` tells how each engine stood.

    Attributes:
        view: the engine as it was; None where none may take the request.
        reason: FREE, or the least bad reason why no engine may.
        views: every engine the route may use.
        route: the route's index.
    """

    view: EngineView | None
    reason: Fitness
    views: Sequence[EngineView]
    route: int

    def candidates(self, now: float, rules: Rules) -> list[tuple[str, float, int, Fitness]]:
        """Return name, gain, load and fitness of every engine, best gain first."""
        rows = [
            (view.engine.name, view.gains[self.route], view.load, view.fitness(now, rules))
            for view in self.views
        ]
        return sorted(rows, key=lambda row: -row[1])


def choose(
    views: Sequence[EngineView],
    route: int,
    *,
    now: float,
    rules: Rules,
    rng: Random,
    avoid: str | None = None,
) -> Choice:
    """Choose where one more request adds most; ties go to the least loaded, then at random.

    Args:
        views: the engines the route may use.
        route: its index in the configuration's order.
        now: the time, in seconds.
        rules: the breaker's.
        rng: decides between equals.
        avoid: the name of an engine that has failed this request already.
    """
    if avoid is not None:
        views = [view for view in views if view.engine.name != avoid]
    best: list[EngineView] = []
    low, high = -math.inf, -math.inf
    for view in views:
        if (not view.ready or now < view.settled_at) and view.fitness(now, rules) is not Fitness.FREE:
            continue
        gain = view.gains[route]
        if gain < low:
            continue
        if gain > high or view.load < best[0].load:
            best = [view]
            margin = _TIE * abs(gain)
            low, high = gain - margin, gain + margin
        elif view.load == best[0].load:
            best.append(view)
    if best:
        return Choice(best[0] if len(best) == 1 else rng.choice(best), Fitness.FREE, views, route)
    reasons = {view.fitness(now, rules) for view in views}
    # A held engine frees itself soonest; one that is down may never.
    hope = next((reason for reason in (Fitness.HELD, Fitness.RESTING) if reason in reasons), Fitness.DOWN)
    return Choice(None, hope, views, route)
