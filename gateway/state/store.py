"""The state of one process: decides who gets which engine, and takes over what is learned of engines."""

from __future__ import annotations

import logging
import math
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from gateway.policy.choose.balance import Choice, Fitness
from gateway.policy.fail.breaker import Outcome
from gateway.policy.fail.retry import Failure
from gateway.state import outcomes, readings
from gateway.state.alarm import Alarm
from gateway.state.engine_roster import EngineRoster
from gateway.state.ledger import SpeculationTallies
from gateway.state.pool_split import PoolSplit
from gateway.state.queues import Queues
from gateway.state.quotas import Quotas
from gateway.state.requests import BodyMemory, OpenRequests, RequestHistory
from gateway.state.retry_budget import RetryBudget
from gateway.state.snapshot import EngineStatus, RouteStatus, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from random import Random

    from gateway.model import Engine, Reading
    from gateway.policy.choose.split import SplitInputs, SplitPlan
    from gateway.state.alarm import Timer
    from gateway.state.fleet import Fleet
    from gateway.state.lease import Lease
    from gateway.state.queues import Waiter

log = logging.getLogger(__name__)

# What requests may hold in memory where nobody says: room enough for anything but a real load.
_INFLIGHT_BYTES = 2**30


class EngineActivity(NamedTuple):
    """What this gateway has at an engine and has had of it.

    Attributes:
        in_flight: its requests there.
        chunks: that have come of its streams, but the first of each.
        active_at: when a part of an answer last came, on the state's clock.
    """

    in_flight: int = 0
    chunks: int = 0
    active_at: float = -math.inf


class State:
    """Engines, leases and queues of one process; not shared between threads.

    Attributes:
        fleet: the configuration in force.
        requests: those being dealt with, and whether new ones are taken.
        queues: who waits; joined and left by `wait` and `leave`.
        memory: what requests under way hold.
        quotas: what API keys have used of their limits.
        retries: the budget of further attempts.
        speculation: the figures of speculation that count.
        history: what became of requests.
        unresolved: by pool, its names that have no address now, each with the reason.
    """

    def __init__(
        self,
        fleet: Fleet,
        engines: Iterable[Engine],
        clock: Callable[[], float],
        rng: Random,
        pending: Iterable[str] = (),
        inflight_bytes: int = _INFLIGHT_BYTES,
        call_later: Callable[[float, Callable[[], None]], Timer] | None = None,
    ) -> None:
        """Start with a fleet.

        Args:
            fleet: the configuration's.
            engines: those known by now.
            clock: returns the time in seconds; any that never goes back.
            rng: decides between equal engines.
            pending: pools of which more may be known in a moment.
            inflight_bytes: what requests may hold in memory where the configuration does not say.
            call_later: has a function called in so many seconds, as an event loop does: requests that wait
                get an engine that may take them because time has passed. Without it they wait for an event.
        """
        self.fleet = fleet
        self.requests = OpenRequests()
        self.queues = Queues(clock)
        self.memory = BodyMemory(inflight_bytes)
        self.quotas = Quotas(clock)
        self.retries = RetryBudget(fleet.config, clock)
        self.speculation = SpeculationTallies()
        self.history = RequestHistory(clock)
        self.unresolved: Mapping[str, Sequence[str]] = {}
        self._inflight_bytes = inflight_bytes
        self._clock = clock
        self._started = clock()
        self._split = PoolSplit()
        self._roster = EngineRoster(
            fleet, self._split, self.queues, clock, rng, self.speculation.book, self.pump
        )
        self._alarm = Alarm(call_later, self.pump) if call_later else None
        self.configure(fleet, engines, pending)

    # --- the fleet

    def configure(
        self,
        fleet: Fleet,
        engines: Iterable[Engine],
        pending: Iterable[str] = (),
        inflight_bytes: int | None = None,
    ) -> None:
        """Take over a fleet: leases are kept, engines no longer listed get no more work and go when idle.

        Args:
            fleet: what is configured.
            engines: those known by now.
            pending: pools of which more may be known in a moment.
            inflight_bytes: what requests may hold in memory where the configuration does not say; None for
                as much as before.
        """
        self.fleet = fleet
        self._inflight_bytes = inflight_bytes or self._inflight_bytes
        self._split.clear()
        self.retries.configure(fleet.config)
        self.memory.resize(fleet.config.limits.inflight_bytes or self._inflight_bytes)
        self.quotas.configure(fleet.config)
        self.queues.configure(fleet.routes)
        self.history.configure(fleet.routes)
        self.speculation.configure(fleet.config)
        self._roster.configure(fleet, engines, pending)
        self.pump()

    def set_engines(self, engines: Iterable[Engine], pending: Iterable[str] = ()) -> None:
        """Take over the list of engines alone; see configure."""
        self._roster.set_engines(engines, pending)
        self.pump()

    def engines(self) -> tuple[Engine, ...]:
        """Return every engine that is to be watched: those listed, and those leaving with work on them."""
        return tuple(record.engine for record in self._roster.records.values())

    # --- choosing, leases, queues

    def choose(self, route: str, avoid: str | None = None) -> Choice:
        """Choose an engine for one more request of a route, without taking the place."""
        return self._roster.choose(route, avoid)

    def take(self, route: str, avoid: str | None = None, client: str = "") -> Lease | Choice:
        """Take a place at once; where none may be had, or others wait already, tell why."""
        if not self.queues.total:
            return self._roster.take(route, avoid, client)
        # Requests are served in the order in which they came.
        choice = self._roster.choose(route, avoid)
        return choice if choice.view is None else Choice(None, Fitness.HELD)

    def wait(
        self,
        route: str,
        wake: Callable[[], None],
        avoid: str | None = None,
        *,
        client: str = "",
        first: bool = False,
    ) -> Waiter:
        """Join a route's queue; `wake` is called when the waiter has its lease, which may be at once.

        Args:
            route: whose queue.
            wake: called once, with the waiter's `lease` set, or without one; see Waiter.
            avoid: an engine that failed this request before; such requests go before the others.
            first: it goes before the others, since it has waited before.
            client: whose request it is: clients share places fairly.
        """
        waiter = self.queues.join(route, wake, avoid, client, first=first)
        self.pump()
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """Leave the queue; a lease that came meanwhile stays with the waiter."""
        if self.queues.leave(waiter):
            self.pump()

    def pump(self) -> None:
        """Give free places to waiting requests, route by route in turn."""
        if not (self.queues.total or (self._alarm and self._alarm.timer)):
            return  # as nearly always
        now = self._clock()  # not later: a rest may end between its engine's being passed over and the alarm
        while turn := self.queues.take_next(self._free_engine, self.history.mean_tokens):
            waiter, engine = turn
            waiter.lease = self._roster.lease(engine, waiter.route, waiter.client)
            waiter.wake()
        if self._alarm:
            if self.queues.total:
                self._alarm.set(self._roster.available_at(now), now)
            else:
                self._alarm.clear()

    def _free_engine(self, route: str, avoid: str | None) -> str | None:
        view = self.choose(route, avoid).view
        return view.engine.name if view else None

    # --- the split between pools

    def split_inputs(self) -> SplitInputs | None:
        """Return what policy.choose.split may make a plan of; None without all profiles."""
        in_flight = [self._roster.in_flight[route] for route in self.fleet.routes]
        waiting = [self.queues.waiting(route) for route in self.fleet.routes]
        return self._split.inputs(self.fleet, self._roster.records.values(), in_flight, waiting)

    def adopt_split(self, plan: SplitPlan | None) -> None:
        """Take a plan over, or end the one there is."""
        if self._split.adopt(plan):
            self._roster.refresh_all(self._clock())
            self.pump()

    # --- what is learned of engines

    def mark(self, name: str, *, up: bool, fault: str = "") -> bool:
        """Note whether an engine answers; tell whether that is news.

        Args:
            name: which.
            up: it does.
            fault: why it does not; where that is empty, what was known of it stays.
        """
        record = self._roster.records.get(name)
        if record is None:
            return False
        record.fault = "" if up else fault or record.fault
        if record.answers == up:
            return False
        now = self._clock()
        outcomes.record_health(record, now, self.fleet.rules, up=up, uptime_s=now - self._started)
        self._roster.refresh(record, now)
        self.pump()
        return True

    def mark_lost(self, name: str, *, down: bool = True) -> None:
        """Take an engine for hung or gone: requests that wait there for a first byte are told.

        Args:
            name: which.
            down: nothing more is sent to it; else that is left to its breaker, which what is lost feeds.
        """
        if down:
            self.mark(name, up=False)
        if record := self._roster.records.get(name):
            for lease in list(record.leases):
                if lease.on_lost:
                    lease.on_lost()

    def record_failure(self, lease: Lease, failure: Failure, told: str = "") -> Failure:
        """Draw the conclusions of a failed attempt on its engine; return how it failed in their light.

        Args:
            lease: the attempt's place.
            failure: what went wrong.
            told: what the log is told of it; empty where it has been told already.
        """
        record, now = lease.record, self._clock()
        outcomes.record_refusal(record, failure, now)
        fault = record.fault or "no connection to it"
        if failure is Failure.UNREACHABLE and self.mark(lease.engine.name, up=False, fault=fault):
            log.warning("engine %s is down: %s", lease.engine.name, fault)
        peers = self._roster.of_route(lease.route)
        judged, outcome = outcomes.judge(failure, record, peers, lease.client, now, self.fleet.rules)
        if told and (outcome is Outcome.FAILURE or judged is Failure.BUSY):
            record.warn_of(judged, told, now)
        lease.record_outcome(outcome)
        self._roster.refresh(record, now)
        return judged

    def ask_another(self, lease: Lease) -> bool:
        """Tell whether another engine is to be asked at once to answer what a lease's engine has refused."""
        record, now = lease.record, self._clock()
        if self.queues.total or not record.suspicion.may_ask(now):
            return False
        view = self.choose(lease.route, lease.engine.name).view
        if view is None or view.engine.name == lease.engine.name:
            return False
        record.suspicion = record.suspicion.asked(now)
        return True

    def record_opinion(self, lease: Lease, *, other_answered: bool) -> None:
        """Note whether another engine has answered what a lease's engine has refused."""
        outcomes.record_opinion(lease.record, other_answered=other_answered)
        self._roster.refresh(lease.record, self._clock())
        self.pump()

    def record_reading(self, name: str, reading: Reading) -> None:
        """Take over a reading of an engine's metrics."""
        record = self._roster.records.get(name)
        if record is None:
            return
        now = self._clock()
        readings.record_reading(record, reading, self.fleet, now)
        self.speculation.fold_if_due(now)
        self._roster.refresh(record, now)
        self.pump()

    def activity(self, name: str) -> EngineActivity:
        """Return what this gateway has at an engine; nothing where there is no such engine."""
        if record := self._roster.records.get(name):
            return EngineActivity(record.in_flight, record.ledger.chunks, record.active_at)
        return EngineActivity()

    # --- views

    def is_up(self, route: str) -> bool:
        """Return whether a route has an engine that answers."""
        return any(record.view.up for record in self._roster.of_route(route))

    def snapshot(self) -> Snapshot:
        """Return how everything stands at this moment."""
        now = self._clock()
        self._roster.update(now)
        self.speculation.fold(now)
        return Snapshot(
            engines=tuple(
                EngineStatus.of(record, self.fleet, now) for record in self._roster.records.values()
            ),
            routes=MappingProxyType({route: self._route_status(route, now) for route in self.fleet.routes}),
            retry_budget=self.retries.remaining(),
            draining=self.requests.draining,
            split=self._split.plan,
            recent=self.history.recent(),
            unresolved=MappingProxyType(dict(self.unresolved)),
        )

    def _route_status(self, route: str, now: float) -> RouteStatus:
        history = self.history.routes[route]
        return RouteStatus(
            in_flight=self._roster.in_flight[route],
            waiting=self.queues.waiting(route),
            oldest_wait_s=self.queues.oldest_wait_s(route),
            mean_tokens=history.mean_tokens(),
            requests=history.requests,
            errors=history.errors,
            rate=history.rate(now),
            acceptance=MappingProxyType(self.speculation.recent(route, now)),
        )
