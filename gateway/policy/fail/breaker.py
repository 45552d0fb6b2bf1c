"""Circuit breaker of one engine: a table of phase and event to what follows.

Time is an argument, in seconds of any clock that does not run backwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum, StrEnum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Phase(IntEnum):
    """Whether an engine gets requests; the numbers are those of the metric `engine_breaker_state`."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class Outcome(StrEnum):
    """What the end of a request says of its engine.

    NEUTRAL says nothing: the client left, or asked for what it cannot have.
    """

    SUCCESS = auto()
    FAILURE = auto()
    NEUTRAL = auto()


class _Sign(StrEnum):
    """What happens to a breaker without a request."""

    REVIVED = auto()
    PAUSED_ENOUGH = auto()


@dataclass(frozen=True, slots=True)
class Rules:
    """When a breaker moves (`breaker` in routes.yaml).

    Attributes:
        failures: in a row that open it, at least 1.
        open_s: seconds that it stays open.
        probes: successes that close it again, and requests that may be in flight until then; at least 1.
    """

    failures: int
    open_s: float
    probes: int


@dataclass(frozen=True, slots=True)
class Breaker:
    """One engine's breaker at one moment.

    Attributes:
        phase: whether the engine gets requests.
        failures: in a row while closed; 0 in other phases.
        successes: since it is half-open; 0 in other phases.
        since: when it opened or began to probe, whichever was last; minus infinity before either.
    """

    phase: Phase = Phase.CLOSED
    failures: int = 0
    successes: int = 0
    since: float = -math.inf

    def after(self, outcome: Outcome, now: float, rules: Rules, *, begun: float = math.inf) -> Breaker:
        """Return the breaker once a request has ended.

        A request that began before `since` and fails only now (a time-out, say) tells of the engine as it
        was, and is not counted. A success counts whenever it began: the engine works now.

        Args:
            outcome: what the request's end says of the engine.
            now: when it ended.
            rules: as configured.
            begun: when the request was sent to the engine; without it, every failure counts.
        """
        if outcome is Outcome.FAILURE and begun < self.since:
            return self
        return _TABLE[self.phase, outcome](self, now, rules)

    def revived(self, now: float, rules: Rules) -> Breaker:
        """Return the breaker of an engine that answers its health check again after it was down."""
        return _TABLE[self.phase, _Sign.REVIVED](self, now, rules)

    def at(self, now: float, rules: Rules) -> Breaker:
        """Return the breaker as it is at `now`: half-open once it has been open for `open_s`.

        It may be asked at any time: what it answers does not depend on when it was asked before.
        """
        if self.phase is not Phase.OPEN or now < (due := self.half_open_at(rules)):
            return self
        return _TABLE[self.phase, _Sign.PAUSED_ENOUGH](self, due, rules)

    def half_open_at(self, rules: Rules) -> float:
        """Return when an open breaker becomes half-open; minus infinity in other phases."""
        return self.since + rules.open_s if self.phase is Phase.OPEN else -math.inf

    def allows(self, in_flight: int, rules: Rules) -> bool:
        """Whether the engine, with so many requests of ours in flight, may get one more."""
        if self.phase is Phase.CLOSED:
            return True
        return self.phase is Phase.HALF_OPEN and in_flight < rules.probes


def _stay(breaker: Breaker, now: float, rules: Rules) -> Breaker:
    return breaker


def _open(breaker: Breaker, now: float, rules: Rules) -> Breaker:
    return Breaker(Phase.OPEN, since=now)


def _probe(breaker: Breaker, now: float, rules: Rules) -> Breaker:
    return Breaker(Phase.HALF_OPEN, since=now)


def _forgive(breaker: Breaker, now: float, rules: Rules) -> Breaker:
    return Breaker(Phase.CLOSED, since=breaker.since) if breaker.failures else breaker


def _count_failure(breaker: Breaker, now: float, rules: Rules) -> Breaker:
    failures = breaker.failures + 1
    if failures >= rules.failures:
        return _open(breaker, now, rules)
    return Breaker(Phase.CLOSED, failures=failures, since=breaker.since)


def _count_success(breaker: Breaker, now: float, rules: Rules) -> Breaker:
    successes = breaker.successes + 1
    if successes >= rules.probes:
        return Breaker(Phase.CLOSED, since=breaker.since)
    return Breaker(Phase.HALF_OPEN, successes=successes, since=breaker.since)


# A move that is not here cannot happen, and would raise KeyError.
_TABLE: dict[tuple[Phase, Outcome | _Sign], Callable[[Breaker, float, Rules], Breaker]] = {
    (Phase.CLOSED, Outcome.SUCCESS): _forgive,
    (Phase.CLOSED, Outcome.FAILURE): _count_failure,
    (Phase.CLOSED, Outcome.NEUTRAL): _stay,
    # However few its failures were: a newcomer proves itself before the crowd comes.
    (Phase.CLOSED, _Sign.REVIVED): _probe,
    (Phase.HALF_OPEN, Outcome.SUCCESS): _count_success,
    (Phase.HALF_OPEN, Outcome.FAILURE): _open,
    (Phase.HALF_OPEN, Outcome.NEUTRAL): _stay,
    (Phase.HALF_OPEN, _Sign.REVIVED): _probe,
    # Requests from before it opened end now. Their failures must not prolong the pause, for they may take
    # minutes to time out; their successes must not shorten it, for an engine that fails often succeeds too.
    (Phase.OPEN, Outcome.SUCCESS): _stay,
    (Phase.OPEN, Outcome.FAILURE): _stay,
    (Phase.OPEN, Outcome.NEUTRAL): _stay,
    (Phase.OPEN, _Sign.REVIVED): _probe,
    (Phase.OPEN, _Sign.PAUSED_ENOUGH): _probe,
}
