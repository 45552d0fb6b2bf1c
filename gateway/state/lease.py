"""A request's place on an engine, and what the request tells of that engine while it lasts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from gateway.model import Speculation
from gateway.policy.account.acceptance import Source, are_merged, fault_of, of_answer
from gateway.policy.fail.breaker import Outcome, Phase
from gateway.state.ledger import AnswerKind

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from gateway.model import ToldSpeculation
    from gateway.policy.account.acceptance import Sample
    from gateway.policy.admit.fairness import FairQueue
    from gateway.state.engine_record import EngineRecord
    from gateway.state.ledger import LedgerEntry


class LeaseKeeper(Protocol):
    """Gives leases out and hears of them: the EngineRoster."""

    def record_outcome(self, lease: Lease, outcome: Outcome) -> None:
        """Take over what a request's work says of its engine."""

    def lease_released(self, lease: Lease) -> None:
        """Take a place back."""


class Lease:
    """A request's place on an engine, from its making until `release`, which counts once.

    Attributes:
        engine: where.
        record: what is known of that engine.
        route: whose request it is.
        client: whose that is.
        fair: the route's queue, which counts the client's places.
        begun: when, on the state's clock.
        depth: the depth the engine runs at under the load the request made.
        chosen_by: what the choice went by: its route's rule (Fleet.chosen_by), or `kept apart` under a split.
        held: it has not been released.
        on_lost: called when the engine is found hung or gone.
        sample: what the answer told of speculation.
    """

    __slots__ = (
        "_clock",
        "_complete",
        "_entry",
        "_keeper",
        "_step_depth",
        "begun",
        "chosen_by",
        "client",
        "depth",
        "engine",
        "fair",
        "held",
        "on_lost",
        "record",
        "route",
        "sample",
    )

    def __init__(
        self,
        record: EngineRecord,
        route: str,
        client: str,
        keeper: LeaseKeeper,
        fair: FairQueue[Any],
        clock: Callable[[], float],
        begun: float,
        depth: int,
        step_depth: int,
        chosen_by: str,
    ) -> None:
        """Make a lease of a place that has been counted already.

        Args:
            record: of the engine where the place is.
            route: whose request has it.
            client: whose request that is.
            keeper: hears of the request's outcomes, and of the end.
            fair: see the attributes.
            clock: the state's, in seconds.
            begun: now.
            depth: see the attributes.
            step_depth: the most tokens that a step of the engine drafts; 0 where it need not draft any.
            chosen_by: see the attributes.
        """
        self.record = record
        self.engine = record.engine
        self.route = route
        self.client = client
        self.fair = fair
        self.begun = begun
        self.depth = depth
        self.chosen_by = chosen_by
        self.held = True
        self.on_lost: Callable[[], None] | None = None
        self.sample: Sample | None = None
        self._keeper = keeper
        self._clock = clock
        self._step_depth = step_depth
        self._entry: LedgerEntry | None = None
        self._complete = False

    def record_activity(self) -> None:
        """Note a sign of life from the engine."""
        self.record.active_at = self._clock()

    def record_outcome(self, outcome: Outcome) -> None:
        """Feed the engine's breaker with what its work says of it."""
        record, breaker = self.record, self.record.breaker
        is_sound = breaker.phase is Phase.CLOSED and not breaker.failures and record.refused_at is None
        if outcome is Outcome.SUCCESS and is_sound and not record.suspicion.refusals:
            record.succeeded_at = self._clock()  # nothing else changes, as nearly always
        else:
            self._keeper.record_outcome(self, outcome)

    def request_sent(self, kind: AnswerKind) -> None:
        """Note that the request is sent, and what its answer will show of the engine's steps."""
        self._entry = self.record.ledger.request_sent(self.route, kind)

    def count_step(self) -> None:
        """Note a chunk with tokens."""
        if self._entry:
            self.record.ledger.count_step(self._entry)

    def mark_uncountable(self) -> None:
        """Note that the chunks are not the engine's steps."""
        if self._entry:
            self.record.ledger.mark_uncountable(self._entry)

    def answer_complete(self, speculation: ToldSpeculation, completion_tokens: int) -> None:
        """Note that all of the answer is there, and what it told; see policy.account.acceptance.of_answer.

        Args:
            speculation: what the engine told of it: figures, why they are none, or nothing.
            completion_tokens: the answer's length; 0 where the engine did not tell.
        """
        self._complete = True
        steps = self._entry.steps if self._entry and self._entry.traits.kind is AnswerKind.STREAM else 0
        self.sample = of_answer(
            speculation, completion_tokens=completion_tokens, steps=steps, depth=self._step_depth
        )
        if self.sample and self.sample.source is Source.REQUEST:
            return
        if fault := fault_of(speculation, completion_tokens):
            self.record.reject_speculation(fault)
        if not isinstance(speculation, Speculation) and are_merged(
            completion_tokens, steps, self._step_depth
        ):
            self.record.ledger.mark_merged()

    def trusted_sample(self) -> Sample | None:
        """Return what was told; of estimates only those that the engine's counters confirm."""
        estimated = self.sample and self.sample.source is Source.STREAM
        return None if estimated and not self.record.ledger.confirms_steps(self.route) else self.sample

    def release(self, outcome: Outcome | None = None) -> None:
        """Give the place back, once what the work says of the engine has been noted; None where that was."""
        if outcome is not None:
            self.record_outcome(outcome)
        if not self.held:
            return
        self.held = False
        self.record.leases.discard(self)
        if self._entry:
            self.record.ledger.request_ended(self._entry, self.sample, complete=self._complete)
        self._keeper.lease_released(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
