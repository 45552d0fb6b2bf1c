"""What is known of one engine: whether it answers, what it has to do, and how requests to it went."""

from __future__ import annotations

import logging
import math
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from gateway.model import SpeculationFault
from gateway.policy.account.drift import Drift
from gateway.policy.choose.balance import EngineView
from gateway.policy.fail.breaker import Breaker
from gateway.policy.fail.suspicion import Suspicion
from gateway.state.ledger import SpeculationLedger

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.model import Engine, Reading
    from gateway.policy.account.acceptance import Sample
    from gateway.policy.fail.retry import Failure


log = logging.getLogger(__name__)

_WARN_EVERY_S = 60.0
_FAULTS = {
    SpeculationFault.FORMAT: "they are not in the form of vLLM's --per-request-spec-decode-metrics",
    SpeculationFault.HISTOGRAM_SUMS: "drafts or accepted tokens are not the sums of their histogram",
    SpeculationFault.ACCEPTED_OVER_DRAFTED: "more tokens were accepted than drafted",
    SpeculationFault.DRAFTED_OVER_POSITIONS: "more tokens were drafted than the drafts have positions for",
    SpeculationFault.DRAFTS_OVER_TOKENS: "there were more drafts than the answer has tokens",
    SpeculationFault.POOL_DEPTH: "they have more or fewer positions than the pool's depth",
}


class PlacedRequest(Protocol):
    """What an engine's record uses of a lease.

    Attributes:
        begun: when the lease was made, on the state's clock.
        on_lost: called when the engine is found hung or gone.
    """

    begun: float
    on_lost: Callable[[], None] | None


class EngineRecord:
    """All that is known of one engine; `view` is what choosing sees of it.

    Attributes:
        engine: as configured now.
        ledger: the account of its speculation.
        answers: it answers its health check; None until it was asked.
        fault: why it does not; empty where it does, or was not asked yet.
        leaving: it is no longer listed, and goes once it is idle.
        in_flight: this gateway's requests there.
        by_route: these by route.
        leases: their leases.
        foreign: requests there that others sent, as last read.
        reading: the last reading of its metrics.
        drift: its tokens per second against its profiles.
        mismatch: how it differs from its pool's configuration; empty where it does not.
        rejected: answers whose figures of speculation are not counted, by why.
        breaker: its circuit breaker.
        rests_until: it refused work; none is sent to it before this time.
        back_since: when it came back after having been away.
        active_at: when it last sent a part of an answer.
        succeeded_at: when a request last succeeded there.
        refused_at: when it refused work; None once it takes work again.
        suspicion: what its refusals since its last success say of it.
        index: its index on the roster's board.
        view: how it stood when it was last worked out.
    """

    __slots__ = (
        "_rest_s",
        "_trials",
        "_trials_left",
        "_warned_at",
        "active_at",
        "answers",
        "back_since",
        "breaker",
        "by_route",
        "drift",
        "engine",
        "fault",
        "foreign",
        "in_flight",
        "index",
        "leases",
        "leaving",
        "ledger",
        "mismatch",
        "reading",
        "refused_at",
        "rejected",
        "rests_until",
        "succeeded_at",
        "suspicion",
        "view",
    )

    def __init__(self, engine: Engine, book: Callable[[str, str, Sample], bool]) -> None:
        """Begin a record.

        Args:
            engine: which.
            book: takes figures of speculation; see SpeculationLedger.
        """
        self.engine = engine
        self.ledger = SpeculationLedger(engine.pool, book, self.reject_speculation)
        self.answers: bool | None = None
        self.fault = ""
        self.leaving = False
        self.in_flight = 0
        self.by_route: Counter[str] = Counter()
        self.leases: set[PlacedRequest] = set()
        self.foreign = 0
        self.reading: Reading | None = None
        self.drift = Drift()
        self.mismatch = ""
        self.rejected: Counter[SpeculationFault] = Counter()
        self.breaker = Breaker()
        self.rests_until = self.back_since = self.active_at = self.succeeded_at = -math.inf
        self.refused_at: float | None = None
        self.suspicion = Suspicion()
        self._warned_at: dict[Failure, float] = {}
        self.index = 0
        self.view = EngineView(engine)
        self._rest_s, self._trials, self._trials_left = 0.0, 0, 0

    def refuse(self, now: float, rest_s: float, trials: int) -> None:
        """Note that it takes no more work: it rests so long, and again after so many further requests."""
        self.refused_at = now
        self._rest_s, self._trials, self._trials_left = rest_s, trials, trials
        self.rests_until = now + rest_s

    def count_trial(self, now: float) -> None:
        """Note that a request is sent to it, which is a trial where it last refused one."""
        if self.refused_at is not None:
            self._trials_left -= 1
            if self._trials_left <= 0:
                self._trials_left, self.rests_until = self._trials, now + self._rest_s

    def end_rest(self) -> None:
        """Forget that it refused work."""
        self.refused_at, self.rests_until = None, -math.inf

    def record_success(self, now: float, begun: float) -> bool:
        """Note an answer to a request sent at `begun`; tell whether it ends a rest."""
        self.succeeded_at, self.suspicion = now, self.suspicion.after_success()
        if self.refused_at is None or begun <= self.refused_at:
            return False
        self.end_rest()
        return True

    def warn_of(self, failure: Failure, told: str, now: float) -> None:
        """Log how requests fail there, each kind of failure once a minute."""
        if now - self._warned_at.get(failure, -math.inf) >= _WARN_EVERY_S:
            self._warned_at[failure] = now
            log.warning("requests fail at engine %s: %s (%s)", self.engine.name, told, failure)

    def reject_speculation(self, fault: SpeculationFault) -> None:
        """Note that an answer's figures of speculation are not counted; the log says so once."""
        if not self.rejected[fault]:
            log.warning(
                "engine %s: what its answers tell of speculation is not counted: %s (%s)",
                self.engine.name,
                _FAULTS[fault],
                fault,
            )
        self.rejected[fault] += 1
