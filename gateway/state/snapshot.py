"""What the state hands out: how everything stands at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.model import RequestRecord, Speculation, SpeculationFault
    from gateway.policy.account.acceptance import Recent, Source
    from gateway.policy.choose.balance import EngineView, Fitness
    from gateway.policy.choose.split import SplitPlan
    from gateway.policy.fail.breaker import Phase
    from gateway.state.engine_record import EngineRecord
    from gateway.state.fleet import Fleet


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """One engine at one moment, as metrics and /status show it.

    Attributes:
        view: what choosing sees.
        phase: its breaker's, by now.
        fitness: whether it may take one more request.
        reading_age_s: seconds since its metrics were read; None where they never were.
        stale: that is longer than `polling.stale_s`; the load that others put on it is the last one seen.
        rate: its live output tokens per second.
        ratio: that against the profiles; None where they promise nothing.
        drifts: the profiles no longer describe it.
        mismatch: how it differs from its pool's configuration; empty where it does not, or it is not known.
        fault: why it is down; empty where it is not.
        leaving: it is on its way out.
        speculation: what its own counters grew by since they were first read; None where it does not
            speculate.
        recent: the last minutes of that.
        merges_chunks: its streams' chunks are not its steps, and give no estimates.
        rejected: answers whose figures of speculation are not counted, by why.
        simulated: it says of itself that it is simulated.
    """

    view: EngineView
    phase: Phase
    fitness: Fitness
    reading_age_s: float | None
    stale: bool
    rate: float
    ratio: float | None
    drifts: bool
    mismatch: str
    fault: str
    leaving: bool
    speculation: Speculation | None
    recent: Recent
    merges_chunks: bool
    rejected: Mapping[SpeculationFault, int]
    simulated: bool

    @classmethod
    def of(cls, record: EngineRecord, fleet: Fleet, now: float) -> EngineStatus:
        """Return how an engine stands now, by its record."""
        age = now - record.reading.at if record.reading else None
        awake = record.reading is None or record.reading.awake
        return cls(
            view=record.view,
            phase=record.breaker.at(now, fleet.rules).phase,
            fitness=record.view.fitness(now, fleet.rules),
            reading_age_s=age,
            stale=age is not None and age > fleet.config.polling.stale_s,
            rate=record.drift.rate,
            ratio=record.drift.ratio,
            drifts=record.drift.off,
            mismatch=record.mismatch,
            fault=record.fault or ("" if awake else "it sleeps, by its metrics"),
            leaving=record.leaving,
            speculation=record.ledger.sums,
            recent=record.ledger.recent,
            merges_chunks=record.ledger.merges_chunks,
            rejected=MappingProxyType(dict(record.rejected)),
            simulated=record.reading is not None and record.reading.simulated,
        )


@dataclass(frozen=True, slots=True)
class RouteStatus:
    """One route at one moment.

    Attributes:
        in_flight: its requests on engines.
        waiting: those in its queue.
        oldest_wait_s: seconds that the one that came first has waited.
        mean_tokens: of an answer.
        requests: that have ended since the start.
        errors: of these, answered with a status of 500 or more.
        rate: output tokens per second, of the last half minute.
        acceptance: speculation of the last minutes, by pool and source.
    """

    in_flight: int
    waiting: int
    oldest_wait_s: float
    mean_tokens: float
    requests: int
    errors: int
    rate: float
    acceptance: Mapping[tuple[str, Source], Recent]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one moment.

    Attributes:
        engines: each that is watched.
        routes: by name.
        retry_budget: further attempts that may be made at once.
        draining: no new work is taken.
        split: how routes are kept apart, if they are.
        recent: what became of the last requests, the latest first.
        unresolved: by pool, its names that have no address now, each with the reason.
    """

    engines: tuple[EngineStatus, ...]
    routes: Mapping[str, RouteStatus]
    retry_budget: float
    draining: bool
    split: SplitPlan | None
    recent: tuple[RequestRecord, ...]
    unresolved: Mapping[str, Sequence[str]]
