"""Queues before the engines: who waits, who is refused, whose turn is next.

Time is an argument, in seconds of any clock that does not run backwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# Starts that must have been seen before a queue's speed is known.
_ENOUGH_STARTS = 3
# Retry-After, in seconds: its bounds, and what stands for an unknown one.
_SHORTEST_S, _LONGEST_S = 1, 60
_UNKNOWN_S = 2


@dataclass(frozen=True, slots=True)
class Turns:
    """Whose turn is next: the state of a deficit round-robin.

    Attributes:
        deficits: the tokens each route has left of its turns, in the order of the round, the next one first.
        visiting: the first route's turn has begun: its quantum is in its deficit already.
    """

    deficits: Mapping[str, float] = field(default_factory=dict)
    visiting: bool = False


def next_turn(turns: Turns, heads: Mapping[str, float], quantum: float) -> tuple[str, Turns]:
    """Choose the route whose first waiting request is placed, by deficit round-robin on expected tokens.

    Routes that wait get equal shares of tokens, whatever one request costs: over any time in which both
    wait, two routes differ by at most a quantum and two of the dearest requests. One that waits but is not
    in `heads` keeps what it has and gains nothing. The method and its bound are Shreedhar and Varghese's
    ("Efficient fair queuing using deficit round-robin", 1996); rounds in which nobody could afford a request
    are passed over in one step.

    Args:
        turns: the state so far.
        heads: for all routes that could be placed now, the expected cost of their first request in tokens.
        quantum: tokens that a route gains in its turn, at least 1.

    Raises:
        ValueError: nothing to choose from, a cost that is negative or not finite, or no such quantum.
    """
    if not (heads and 1 <= quantum < math.inf and all(0 <= cost < math.inf for cost in heads.values())):
        raise ValueError(f"no choice by costs {dict(heads)!r} and quantum {quantum!r}")
    deficits = {**turns.deficits, **{route: 0.0 for route in heads if route not in turns.deficits}}
    order = list(deficits)
    if turns.visiting:
        first = order[0]
        if first in heads and deficits[first] >= heads[first]:
            deficits[first] -= heads[first]
            return first, Turns(deficits, visiting=True)
        order.append(order.pop(0))
    rounds = {
        route: max(1, math.ceil((heads[route] - deficits[route]) / quantum))
        for route in order
        if route in heads
    }
    chosen = min(rounds, key=rounds.__getitem__)
    place = order.index(chosen)
    for index, route in enumerate(order):
        if route in heads:
            gained = quantum * (rounds[chosen] - (index > place))
            # One that seldom may be placed must not save up turns, and then have them all at once.
            deficits[route] = min(deficits[route] + gained, heads[route] + quantum)
    deficits[chosen] = max(0.0, deficits[chosen] - heads[chosen])
    return chosen, Turns({route: deficits[route] for route in order[place:] + order[:place]}, visiting=True)


def idle(turns: Turns, route: str) -> Turns:
    """Return the state once nothing of a route waits: it loses what it had, and comes back last."""
    if route not in turns.deficits:
        return turns
    kept = {name: deficit for name, deficit in turns.deficits.items() if name != route}
    return Turns(kept, turns.visiting and next(iter(turns.deficits)) != route)


@dataclass(frozen=True, slots=True)
class QueueSpeed:
    """How fast a queue moves: starts per second of queueing, both fading with the same time constant.

    Dividing by seconds of queueing, not by the time constant, is right from the first second on.

    Attributes:
        window_s: the time constant.
        starts: those seen, faded.
        seconds: those in which somebody waited, faded.
        seen: starts since the queue was last unknown, not faded.
        queueing: somebody waits.
        updated_at: when the above was so.
    """

    window_s: float = 10.0
    starts: float = 0.0
    seconds: float = 0.0
    seen: int = 0
    queueing: bool = False
    updated_at: float = -math.inf

    def watched(self, now: float) -> QueueSpeed:
        """Return the speed once somebody joins the queue, which may have been empty."""
        if self.queueing:
            return self
        aged = self._aged(now)
        if aged.seconds < self._enough_s:
            return QueueSpeed(self.window_s, queueing=True, updated_at=aged.updated_at)
        return replace(aged, queueing=True)

    def started(self, now: float) -> QueueSpeed:
        """Return the speed once a request has left the queue for an engine."""
        aged = self._aged(now)
        return QueueSpeed(
            self.window_s, aged.starts + 1, aged.seconds, aged.seen + 1, self.queueing, aged.updated_at
        )

    def emptied(self, now: float) -> QueueSpeed:
        """Return the speed once nobody waits, however the last one left: from here on no time counts."""
        return replace(self._aged(now), queueing=False)

    def per_s(self, now: float) -> float | None:
        """Return the starts per second; None while too little was seen, or all of it long ago."""
        aged = self._aged(now)
        if self.seen < _ENOUGH_STARTS or aged.seconds < self._enough_s:
            return None
        return aged.starts / aged.seconds

    @property
    def _enough_s(self) -> float:
        """Seconds of queueing after which the speed is known."""
        return self.window_s / 5

    def _aged(self, now: float) -> QueueSpeed:
        passed = now - self.updated_at
        if passed <= 0:
            return self
        kept = math.exp(-passed / self.window_s)
        queued = self.window_s * (1 - kept) if self.queueing else 0.0
        return QueueSpeed(
            self.window_s, self.starts * kept, self.seconds * kept + queued, self.seen, self.queueing, now
        )


class Shed(StrEnum):
    """Why a request gets no place.

    Attributes:
        NO_ENGINE: no engine of its route answers.
        QUEUE_FULL: as many wait as may.
        TOO_SLOW: by the queue's speed it would wait too long.
        TIMED_OUT: it did wait too long.
    """

    NO_ENGINE = auto()
    QUEUE_FULL = auto()
    TOO_SLOW = auto()
    TIMED_OUT = auto()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request gets no place, and in how many whole seconds to try again (1 to 60)."""

    reason: Shed
    retry_after: int


def refusal(
    *,
    waiting: int,
    max_waiting: int,
    max_wait_s: float,
    per_s: float | None,
    ahead: int | None = None,
    makes_room: bool = False,
) -> Refusal | None:
    """Decide on a request that cannot be placed at once; None where it may wait.

    Who has nobody ahead is never too slow: somebody must wait for the queue's speed to be seen.

    Args:
        waiting: those of its route that wait already.
        max_waiting: those that may; 0 where nobody may.
        max_wait_s: seconds that the request may wait, by its route and by its own deadline.
        per_s: the queue's speed; None while unknown.
        ahead: those of them that go before it; None where all do.
        makes_room: another would leave a full queue for it.
    """
    ahead = waiting if ahead is None else ahead
    if waiting >= max_waiting and not makes_room:
        return Refusal(Shed.QUEUE_FULL, _retry_after(waiting, max_waiting, max_wait_s, per_s, _UNKNOWN_S))
    if ahead and per_s is not None and ahead + 1 > max_wait_s * per_s:
        return Refusal(Shed.TOO_SLOW, _retry_after(ahead, max_waiting, max_wait_s, per_s, _UNKNOWN_S))
    return None


def put_out(
    reason: Shed, *, waiting: int, max_waiting: int, max_wait_s: float, per_s: float | None
) -> Refusal:
    """Refuse a request that has waited in vain, while `waiting` others still do.

    Args:
        reason: TIMED_OUT after `max_wait_s`, or QUEUE_FULL where it had to make room.
        waiting, max_waiting, max_wait_s, per_s: as for `refusal`.
    """
    unknown_s = max_wait_s if reason is Shed.TIMED_OUT else _UNKNOWN_S
    return Refusal(reason, _retry_after(waiting, max_waiting, max_wait_s, per_s, unknown_s))


def _retry_after(
    waiting: int, max_waiting: int, max_wait_s: float, per_s: float | None, unknown_s: float
) -> int:
    """Seconds until one more would find room and be served in time, if the queue moves on as it does."""
    if per_s is None:
        seconds = unknown_s
    elif per_s <= 0:
        seconds = math.inf
    else:
        room = math.floor(min(max_waiting, max_wait_s * per_s))
        seconds = (waiting + 1 - room) / per_s
    return math.ceil(min(max(seconds, _SHORTEST_S), _LONGEST_S))
