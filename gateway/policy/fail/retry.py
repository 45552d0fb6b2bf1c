"""What an engine's status or failure means for the engine and for a retry; the budget of retries.

Time is an argument, in seconds of any clock that does not run backwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum, auto

from gateway.policy.fail.breaker import Outcome

# Retries per second that a budget gains whatever the traffic, and how many it can save up: those of ten
# seconds. Both are Finagle's defaults (https://finagle.github.io/blog/2016/02/08/retry-budgets).
FLOOR_PER_S = 10.0
CAP = 100.0


class Failure(StrEnum):
    """What went wrong with an attempt.

    Attributes:
        UNREACHABLE: no connection: it is refused.
        CONNECT_TIMEOUT: no connection in time.
        DIED: closed or broken off before the first byte.
        LOST: the engine was found hung or gone while the request waited for its first byte.
        STOPPING: the engine shuts down, and refused the request unseen.
        BUSY: the engine's own 503 or 429.
        BAD_GATEWAY: its own 502.
        GATEWAY_TIMEOUT: its own 504.
        GARBAGE: an answer that is no completion.
        SLOW: our own time limit passed.
        ERROR: any other 5xx.
        REJECTED: any other 4xx: the request's fault, unless other engines take it.
        REFUSED: our path or model is unknown there (404, 405), or it rejects what other engines take.
        KEY: our key was refused (401, 403).
        BROKEN_STREAM: broken off after the first byte.
    """

    UNREACHABLE = auto()
    CONNECT_TIMEOUT = auto()
    DIED = auto()
    LOST = auto()
    STOPPING = auto()
    BUSY = auto()
    BAD_GATEWAY = auto()
    GATEWAY_TIMEOUT = auto()
    GARBAGE = auto()
    SLOW = auto()
    ERROR = auto()
    REJECTED = auto()
    REFUSED = auto()
    KEY = auto()
    BROKEN_STREAM = auto()


@dataclass(frozen=True, slots=True)
class _Kind:
    """How a failure is treated; `exempt` is from the budget, not from the retries of one request."""

    retried: bool
    exempt: bool
    outcome: Outcome


_KINDS = {
    Failure.UNREACHABLE: _Kind(True, True, Outcome.FAILURE),
    Failure.CONNECT_TIMEOUT: _Kind(True, True, Outcome.FAILURE),
    Failure.DIED: _Kind(True, True, Outcome.FAILURE),
    Failure.LOST: _Kind(True, True, Outcome.FAILURE),
    # Nothing is wrong with an engine that is stopped.
    Failure.STOPPING: _Kind(True, True, Outcome.NEUTRAL),
    # The engine said itself that it takes no more: it is well, and rests for a moment (state.outcomes).
    Failure.BUSY: _Kind(True, False, Outcome.NEUTRAL),
    Failure.BAD_GATEWAY: _Kind(True, False, Outcome.FAILURE),
    Failure.GATEWAY_TIMEOUT: _Kind(True, False, Outcome.FAILURE),
    Failure.GARBAGE: _Kind(True, False, Outcome.FAILURE),
    # The time it took is gone, and a document that is slow here is slow elsewhere.
    Failure.SLOW: _Kind(False, False, Outcome.FAILURE),
    # vLLM answers 500 to a client's bad image URL too: see `blame`.
    Failure.ERROR: _Kind(False, False, Outcome.NEUTRAL),
    Failure.REJECTED: _Kind(False, False, Outcome.NEUTRAL),
    # The gateway vouches for path, model and key; another engine has them right.
    Failure.REFUSED: _Kind(True, False, Outcome.FAILURE),
    Failure.KEY: _Kind(True, False, Outcome.FAILURE),
    Failure.BROKEN_STREAM: _Kind(False, False, Outcome.FAILURE),
}

_STATUSES = {
    401: Failure.KEY,
    403: Failure.KEY,
    404: Failure.REFUSED,
    405: Failure.REFUSED,
    429: Failure.BUSY,
    502: Failure.BAD_GATEWAY,
    503: Failure.BUSY,
    504: Failure.GATEWAY_TIMEOUT,
}


def failure_of(status: int) -> Failure | None:
    """Return what an engine's HTTP status means; None for an answer, 2xx."""
    if status in _STATUSES:
        return _STATUSES[status]
    if status // 100 == 2:
        return None
    if status // 100 == 4:
        return Failure.REJECTED
    return Failure.ERROR if status >= 500 else Failure.GARBAGE


def is_ambiguous(failure: Failure) -> bool:
    """Whether a failure may be the request's fault as well as the engine's; see policy.fail.suspicion."""
    return failure in (Failure.REJECTED, Failure.ERROR)


def blame(failure: Failure, *, others_agree: bool = False) -> Outcome:
    """Return what a failure says of its engine.

    Args:
        failure: what went wrong.
        others_agree: other engines succeed meanwhile, or its health check fails: only then is a plain
            server error the engine's own.
    """
    if failure is Failure.ERROR and others_agree:
        return Outcome.FAILURE
    return _KINDS[failure].outcome


def was_seen(failure: Failure) -> bool:
    """Whether the engine has got to see the request; where it has not, no document is to blame."""
    return failure not in (Failure.UNREACHABLE, Failure.STOPPING)


@dataclass(frozen=True, slots=True)
class Budget:
    """A token bucket of retries that all requests share: bridges a sudden trouble, bounds a retry storm.

    It starts full, and gains FLOOR_PER_S each second and `share` with each request, up to CAP.

    Attributes:
        share: of requests that may be retried, 0 to 1; 0 keeps the bucket empty.
        level: retries left at `updated_at`.
        updated_at: when it last changed.
    """

    share: float
    level: float = CAP
    updated_at: float = -math.inf

    def remaining(self, now: float) -> float:
        """Return how many retries are left."""
        if self.share <= 0:
            return 0.0
        return min(CAP, self.level + FLOOR_PER_S * max(0.0, now - self.updated_at))

    def begun(self, now: float, requests: int = 1) -> Budget:
        """Return the budget once so many more requests have begun."""
        if not requests or (self.level >= CAP and self.share > 0):
            return self
        return self._changed(self.share * requests, now)

    def spend(self, now: float) -> Budget | None:
        """Return the budget after one retry; None when less than a whole one is left."""
        return self._changed(-1.0, now) if self.remaining(now) >= 1 else None

    def _changed(self, by: float, now: float) -> Budget:
        # Where the clock falls back, time that has been counted must not be counted again.
        return Budget(self.share, min(CAP, self.remaining(now) + by), max(now, self.updated_at))


def may_try_again(attempts: int, per_request: int, seconds_left: float) -> bool:
    """Whether its own limits let a request be tried again; see budget_after_retry."""
    return max(attempts, 1) <= per_request and seconds_left > 0


def budget_after_retry(
    failure: Failure,
    *,
    attempts: int,
    per_request: int,
    seconds_left: float,
    budget: Budget,
    now: float,
) -> Budget | None:
    """Decide whether a request is tried again on another engine, of whose answer nothing has gone out.

    Returns:
        The budget that is left then; None where the request is not tried again.

    Args:
        failure: what went wrong with the last attempt.
        attempts: made so far, the failed one included; but for each engine's first that it has not seen
            (`was_seen`).
        per_request: retries that one request may have, whatever the failure: a document that kills engines
            must not tour the fleet. None at all where it is 0.
        seconds_left: until the request's deadline.
        budget: what all requests share; an engine's death is exempt from it.
        now: the time.
    """
    kind = _KINDS[failure]
    if not kind.retried or not may_try_again(attempts, per_request, seconds_left):
        return None
    return budget if kind.exempt else budget.spend(now)
