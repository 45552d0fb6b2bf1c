"""The only mutable store: engines and what is known of them, leases, queues, breakers, the retry budget."""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gateway.policy.account.acceptance import Source, are_merged, of_answer
from gateway.policy.account.drift import Drift
from gateway.policy.account.pace import Pace
from gateway.policy.choose.balance import WARM_S, Board, Choice, EngineView, Fitness
from gateway.policy.choose.split import Plan, Pool, Situation
from gateway.policy.fail.breaker import Breaker, Outcome, Phase
from gateway.policy.fail.retry import Budget, Failure, blame, may_retry
from gateway.state.body_memory import Memory
from gateway.state.ledger import Kind, Ledger, Tally
from gateway.state.queues import Queues
from gateway.state.quotas import Quotas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from random import Random
    from types import TracebackType
    from typing import Self

    from gateway.model import Engine, Reading, RequestRecord, Speculation
    from gateway.policy.account.acceptance import Recent, Sample
    from gateway.state.fleet import Fleet
    from gateway.state.ledger import Entry
    from gateway.state.queues import Waiter

log = logging.getLogger(__name__)

# An engine that says it takes no more work is left alone this long, and again after so many trials, until it
# answers one: else all who wait would be sent there each time, and the retry budget would be theirs.
_REST_S = 1.0
_TRIALS = 4
# One that shuts down is left alone longer, and gets a single trial then: it comes back as another process,
# which shows by its having been down, or at another address.
_STOPPING_REST_S = 10.0
# Engines first seen this soon after the start are the fleet as it stands, not newcomers to it.
_STARTING_S = 10.0
# Figures of the last minutes are kept up to so many seconds.
_FOLD_S = 1.0
# What requests may hold in memory where nobody says: room enough for anything but a real load.
_INFLIGHT_BYTES = 2**30
# Of so many requests /status tells what became of them.
_RECENT = 50


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
        leaving: it is on its way out.
        speculation: what its own counters grew by since they were first read; None where it does not
            speculate.
        recent: the last minutes of that.
        merges: its streams' chunks are not its steps, and give no estimates.
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
    leaving: bool
    speculation: Speculation | None
    recent: Recent
    merges: bool
    simulated: bool


@dataclass(frozen=True, slots=True)
class RouteStatus:
    """One route at one moment: requests on engines, requests waiting, and for how long the first has.

    Attributes:
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
    """Everything at one moment; `plan` is how routes are kept apart, if they are.

    `recent` is what became of the last requests, the latest first.
    """

    engines: tuple[EngineStatus, ...]
    routes: Mapping[str, RouteStatus]
    retry_budget: float
    draining: bool
    plan: Plan | None
    recent: tuple[RequestRecord, ...]


class Lease:
    """A request's place on an engine, taken from its making until `release`, which counts once.

    Attributes:
        engine: where.
        begun: when, on the state's clock.
        depth: the depth it runs at under the load the request made.
        on_lost: called when the engine is found hung or gone.
        sample: what the answer told of speculation.
        chosen_by: what the choice went by: its route's rule (Fleet.chosen_by), or `kept apart` under a plan.
    """

    __slots__ = (
        "_client",
        "_complete",
        "_entry",
        "_held",
        "_places",
        "_slot",
        "_state",
        "_step_depth",
        "begun",
        "chosen_by",
        "depth",
        "engine",
        "on_lost",
        "route",
        "sample",
    )

    def __init__(self, state: State, slot: _Slot, route: str, client: str) -> None:
        self._state = state
        self._slot = slot
        self._held = True
        self.route = route
        self.engine = slot.engine
        self.on_lost: Callable[[], None] | None = None
        self.sample: Sample | None = None
        self._entry: Entry | None = None
        self._complete = False
        self._step_depth = state.fleet.step_depths.get(slot.engine.pool, 0)
        slot.leases.add(self)
        self._client = client
        self._places = state.queues.started(route, client)
        self.begun = state._clock()
        slot.tried(self.begun)
        state._changed(slot, route, +1)
        self.depth = state.fleet.depth(slot.engine.pool, slot.ours + slot.foreign)
        apart = state._plan and state._plan.targets
        self.chosen_by = "kept apart" if apart else state.fleet.chosen_by[route]

    def heard(self) -> None:
        """Note a sign of life from the engine."""
        self._slot.heard_at = self._state._clock()

    def outcome(self, outcome: Outcome) -> None:
        """Feed the engine's breaker with what its work says of it."""
        self._state._judge(self._slot, outcome, self.begun)

    def sent(self, kind: Kind) -> None:
        """Note that the request is sent, and what its answer will show of its steps."""
        self._entry = self._slot.ledger.began(self.route, kind)

    def stepped(self) -> None:
        """Note a chunk with tokens."""
        if self._entry:
            self._slot.ledger.stepped(self._entry)

    def blurs(self) -> None:
        """Note that the chunks are not the engine's steps."""
        if self._entry:
            self._slot.ledger.blurs(self._entry)

    def told(self, speculation: Speculation | None, completion_tokens: int) -> None:
        """Note that the answer is complete, and what it told; see policy.acceptance.of_answer."""
        self._complete = True
        steps = self._entry.steps if self._entry and self._entry.work.kind is Kind.STREAM else 0
        self.sample = of_answer(
            speculation, completion_tokens=completion_tokens, steps=steps, depth=self._step_depth
        )
        if speculation is None and are_merged(completion_tokens, steps, self._step_depth):
            self._slot.ledger.merged()

    def believed(self) -> Sample | None:
        """Return what was told, but for estimates while the engine's counters do not bear them out."""
        estimated = self.sample and self.sample.source is Source.STREAM
        return None if estimated and not self._slot.ledger.bears_out(self.route) else self.sample

    def release(self) -> None:
        """Give the place back."""
        if self._held:
            self._held = False
            self._slot.leases.discard(self)
            if self._entry:
                self._slot.ledger.finished(self._entry, self.sample, complete=self._complete)
            self._places.ended(self._client)
            self._state._changed(self._slot, self.route, -1)
            self._state.pump()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class _Slot:
    """All that is known of one engine."""

    def __init__(self, engine: Engine, book: Callable[[str, str, Sample], None]) -> None:
        self.engine = engine
        self.ledger = Ledger(lambda route, sample: book(route, engine.pool, sample))
        self.answers: bool | None = None
        self.leaving = False
        self.own: Counter[str] = Counter()
        self.ours = 0
        self.place = 0
        self.leases: set[Lease] = set()
        self.foreign = 0
        self.reading: Reading | None = None
        self.drift = Drift()
        self.mismatch = ""
        self.breaker = Breaker()
        self.rests_until = self.back_since = self.heard_at = self.succeeded_at = -math.inf
        self.refused_at: float | None = None
        self.erring_since: float | None = None
        self.rest = _REST_S, _TRIALS
        self.trials = 0
        self.view = EngineView(engine)

    def refuse(self, now: float, rest_s: float = _REST_S, trials: int = _TRIALS) -> None:
        """Note that it takes no more work."""
        self.refused_at, self.rest = now, (rest_s, trials)
        self.trials, self.rests_until = trials, now + rest_s

    def tried(self, now: float) -> None:
        """Note that work is sent to it."""
        if self.refused_at is not None:
            self.trials -= 1
            if self.trials <= 0:
                rest_s, self.trials = self.rest
                self.rests_until = now + rest_s

    def takes_work(self) -> None:
        """Forget that it took none."""
        self.refused_at, self.rests_until = None, -math.inf

    def worked(self, now: float, begun: float) -> bool:
        """Note an answer to a request that was sent to it at `begun`; tell whether it takes work again."""
        self.succeeded_at, self.erring_since = now, None
        if self.refused_at is None or begun <= self.refused_at:
            return False
        self.takes_work()
        return True


@dataclass(slots=True)
class _Done:
    """What came of a route's requests since the start; see RouteStatus."""

    pace: Pace
    requests: int = 0
    errors: int = 0


class State:
    """Engines, leases and queues of one process; not shared between threads.

    Attributes:
        fleet: the configuration in force.
        closing: the gateway is about to stop: work is taken, but clients had better go elsewhere.
        draining: no new work is taken, but for
        kept: clients, by host and port, of connections that could not be told to close before it began.
        open: requests being dealt with, from their receipt to the last byte of their answers.
        queues: who waits; joined and left by `wait` and `leave`.
        memory: what requests under way hold.
        quotas: what API keys have used of their limits.
        tallies: the figures of speculation that count, by route, pool and source.
        on_sample: hears of each.
    """

    def __init__(
        self,
        fleet: Fleet,
        engines: Iterable[Engine],
        clock: Callable[[], float],
        rng: Random,
        pending: Iterable[str] = (),
        inflight_bytes: int = _INFLIGHT_BYTES,
    ) -> None:
        """Start with a fleet.

        Args:
            fleet: the configuration's.
            engines: those known by now.
            clock: returns the time in seconds; any that never goes back.
            rng: decides between equal engines.
            pending: pools of which more may be known in a moment.
            inflight_bytes: what requests may hold in memory where the configuration does not say.
        """
        self.fleet = fleet
        self.closing = self.draining = False
        self.kept: frozenset[tuple[str, int]] = frozenset()
        self.open = 0
        self.on_sample: Callable[[str, str, Sample], None] = lambda *_: None
        self._clock = clock
        self._rng = rng
        self._started = clock()
        self._slots: dict[str, _Slot] = {}
        self._by_route: dict[str, list[_Slot]] = {}
        self._board = Board((), (), 0)
        self._unseen: set[_Slot] = set()
        self._in_flight: Counter[str] = Counter()
        self.queues = Queues(clock)
        self.memory = Memory(inflight_bytes)
        self.quotas = Quotas(clock)
        self._inflight_bytes = inflight_bytes
        self.tallies: dict[tuple[str, str, Source], Tally] = {}
        self._folded_at = -math.inf
        self._recent: deque[RequestRecord] = deque(maxlen=_RECENT)
        self._done: dict[str, _Done] = {}
        self._budget = Budget(fleet.config.retry.budget)
        self._plan: Plan | None = None
        self._plan_engines: Counter[str] = Counter()
        self._plan_share = 1.0
        self.configure(fleet, engines, pending)

    # --- the fleet

    def configure(self, fleet: Fleet, engines: Iterable[Engine], pending: Iterable[str] = ()) -> None:
        """Take over a fleet: leases are kept, engines no longer listed get no more work and go when idle.

        Args:
            fleet: what is configured.
            engines: those known by now.
            pending: pools of which more may be known in a moment.
        """
        self.fleet = fleet
        self._plan = None
        self._budget = replace(self._budget, share=fleet.config.retry.budget)
        self.memory.limit = fleet.config.limits.inflight_bytes or self._inflight_bytes
        self.quotas.configure(fleet.config)
        self.queues.configure(fleet.routes)
        done, now = self._done, self._clock()
        self._done = {route: done.get(route) or _Done(Pace(now)) for route in fleet.routes}
        for route in fleet.routes:
            for pool in fleet.config.pools_of(route):
                if depth := fleet.config.pools[pool].depth:
                    for source in Source:
                        positions = 0 if source is Source.STREAM else depth
                        self.tallies.setdefault((route, pool, source), Tally(positions))
        self.set_engines(engines, pending)

    def set_engines(self, engines: Iterable[Engine], pending: Iterable[str] = ()) -> None:
        """Take over the list of engines alone; see configure."""
        self._pending = frozenset(pending)
        wanted = {engine.name: engine for engine in engines}
        for name, engine in wanted.items():
            slot = self._slots.get(name)
            if slot is None or (slot.engine.url, slot.engine.pool) != (engine.url, engine.pool):
                if slot:
                    slot.ledger.close()
                slot = self._slots[name] = _Slot(engine, self._book)
            if slot.leaving:
                slot.back_since = self._clock()
            slot.engine, slot.leaving = engine, False
        for name, slot in list(self._slots.items()):
            if name not in wanted:
                slot.leaving = True
                if not slot.leases:
                    slot.ledger.close()
                    del self._slots[name]
        for slot in self._slots.values():
            slot.view = self._view(slot)
        self._line_up()
        self.pump()

    def _line_up(self) -> None:
        """Take over which engines there are, and which routes may use them."""
        pools_of = {route: self.fleet.config.pools_of(route) for route in self.fleet.routes}
        self._by_route = {
            route: [slot for slot in self._slots.values() if slot.engine.pool in pools]
            for route, pools in pools_of.items()
        }
        slots = list(self._slots.values())
        serves = [self.fleet.serves.get(slot.engine.pool, ()) for slot in slots]
        self._board = Board([slot.view for slot in slots], serves, len(self.fleet.routes))
        for place, slot in enumerate(slots):
            slot.place = place

    def engines(self) -> tuple[Engine, ...]:
        """Return every engine that is to be watched: those listed, and those leaving with work on them."""
        return tuple(slot.engine for slot in self._slots.values())

    # --- choosing, leases, queues

    def choose(self, route: str, avoid: str | None = None) -> Choice:
        """Choose an engine for one more request of a route, without taking the place."""
        if route not in self.queues:
            return Choice(None, Fitness.DOWN)
        self._see()
        now, index = self._clock(), self.fleet.routes.index(route)
        rules, rng = self.fleet.rules, self._rng
        choice = None
        if self._plan and self._plan.targets and (pool := self._planned(route, self._plan)):
            choice = self._board.choose(index, now=now, rules=rules, rng=rng, avoid=avoid, pool=pool)
        if choice is None or choice.view is None:
            choice = self._board.choose(index, now=now, rules=rules, rng=rng, avoid=avoid)
        if choice.reason is Fitness.DOWN and not self._pending.isdisjoint(self.fleet.config.pools_of(route)):
            choice = replace(choice, reason=Fitness.RESTING)
        if log.isEnabledFor(logging.DEBUG):
            chosen = choice.view.engine.name if choice.view else choice.reason
            candidates = self._board.candidates(index, now, rules)
            fields = {"route": route, "chosen": chosen, "avoided": avoid, "candidates": candidates}
            log.debug("choice", extra={"fields": fields})
        return choice

    def take(self, route: str, avoid: str | None = None, client: str = "") -> Lease | Choice:
        """Take a place at once; where none may be had, or others wait already, tell why."""
        choice = self.choose(route, avoid)
        if choice.view is None:
            return choice
        if self.queues:  # who came first is served first
            return Choice(None, Fitness.HELD)
        return Lease(self, self._slots[choice.view.engine.name], route, client)

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
            avoid: an engine that failed this request before; such requests, too, are
            first: before the others; for requests that have waited before.
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
        while turn := self.queues.take_next(self._room):
            waiter, engine = turn
            waiter.lease = Lease(self, self._slots[engine], waiter.route, waiter.client)
            waiter.wake()

    def _room(self, route: str, avoid: str | None) -> str | None:
        view = self.choose(route, avoid).view
        return view.engine.name if view else None

    def situation(self) -> Situation | None:
        """Return what policy.plan may split on purpose; None without all profiles."""
        fleet = self.fleet
        up: Counter[str] = Counter(slot.engine.pool for slot in self._slots.values() if slot.view.up)
        last = self._plan if up == self._plan_engines else None
        self._plan_engines = up
        ours = self._in_flight.total()
        foreign = sum(slot.foreign for slot in self._slots.values() if slot.view.up)
        self._plan_share = ours / (ours + foreign) if ours else 1.0
        population = [
            round((self._in_flight[route] + self.queues.waiting(route)) / self._plan_share)
            for route in fleet.routes
        ]
        pools = {name: Pool(fleet.tables[name], count, fleet.serves[name]) for name, count in up.items()}
        return Situation(last, population, pools) if fleet.profiled else None

    def follow(self, plan: Plan | None) -> None:
        """Take a plan over, or end the one there is."""
        before, self._plan = self._plan, plan
        parts = plan.targets if plan else {}
        if plan is before or not (parts or (before and before.targets)):
            return
        told = {pool: [round(count) for count in part] for pool, part in parts.items()}
        log.info("routes are kept apart: %s", told) if told else log.info("routes are kept apart no more")
        for slot in self._slots.values():
            self._refresh(slot)
        self.pump()

    def _planned(self, route: str, plan: Plan) -> str:
        """The pool in which a route is furthest below its part of the plan; empty where it has none.

        A plan knows better than a peak which load its engines are to have.
        """
        index = self.fleet.routes.index(route)
        have: Counter[str] = Counter()
        for slot in self._by_route[route]:
            have[slot.engine.pool] += slot.own[route]
        lacking = {
            pool: part[index] * self._plan_share - have[pool]
            for pool, part in plan.targets.items()
            if part[index]
        }
        return max(lacking, key=lacking.__getitem__, default="")

    def answered(self, route: str, tokens: int) -> None:
        """Note the length of an answer, by which routes share places, and their pace."""
        self.queues.answered(route, tokens)
        if done := self._done.get(route):
            done.pace = done.pace.after(tokens, self._clock())

    def ended(self, record: RequestRecord) -> None:
        """Note what became of a request."""
        self._recent.appendleft(record)
        if done := self._done.get(record.route):
            done.requests += 1
            done.errors += record.code >= 500

    # --- what is learned of engines

    def mark(self, name: str, *, up: bool) -> bool:
        """Note whether an engine answers; tell whether that is news."""
        slot = self._slots.get(name)
        if slot is None or slot.answers == up:
            self.pump()  # an engine that was left alone for a while may take work again
            return False
        now = self._clock()
        if up and (slot.answers is False or now - self._started > _STARTING_S):
            slot.breaker = slot.breaker.revived(now, self.fleet.rules)
            slot.takes_work()
            slot.back_since = now
        slot.answers = up
        self._refresh(slot)
        self.pump()
        return True

    def lost(self, name: str, *, down: bool = True) -> None:
        """Take an engine for hung or gone: whoever waits there for a first byte is told.

        Args:
            name: which.
            down: nothing more is sent to it; else that is left to its breaker, which what is lost feeds.
        """
        if down:
            self.mark(name, up=False)
        if slot := self._slots.get(name):
            for lease in list(slot.leases):
                if lease.on_lost:
                    lease.on_lost()

    def blame(self, lease: Lease, failure: Failure) -> None:
        """Draw the conclusions of a failed attempt on its engine."""
        slot = lease._slot
        if failure is Failure.BUSY:
            slot.refuse(self._clock())
            self._refresh(slot)
        if failure is Failure.STOPPING:
            if slot.refused_at is None:
                log.info("engine %s shuts down", slot.engine.name)
            slot.refuse(self._clock(), _STOPPING_REST_S, trials=1)
            self._refresh(slot)
        if failure is Failure.UNREACHABLE and self.mark(slot.engine.name, up=False):
            log.warning("engine %s is down: no connection to it", slot.engine.name)
        if failure is Failure.ERROR and slot.erring_since is None:
            slot.erring_since = self._clock()
        # An engine that answers 500 again and again, while others succeed at the like, was not just given bad
        # requests.
        others = (other for other in self._by_route.get(lease.route, ()) if other is not slot)
        since = slot.erring_since if slot.erring_since is not None else math.inf
        agree = slot.answers is False or any(other.succeeded_at > since for other in others)
        lease.outcome(blame(failure, others_agree=agree))

    def _judge(self, slot: _Slot, outcome: Outcome, begun: float) -> None:
        now = self._clock()
        takes_work = outcome is Outcome.SUCCESS and slot.worked(now, begun)
        before = slot.breaker.at(now, self.fleet.rules)
        slot.breaker = before.after(outcome, now, self.fleet.rules, begun=begun)
        if takes_work or (slot.breaker is not before and slot.breaker != before):
            if before.phase is Phase.HALF_OPEN and slot.breaker.phase is Phase.CLOSED:
                slot.back_since = now  # its probes went well: the crowd may come, but not all at once
            if slot.breaker.phase != before.phase:
                log.warning(
                    "the breaker of engine %s is %s", slot.engine.name, slot.breaker.phase.name.lower()
                )
            self._refresh(slot)

    def read(self, name: str, reading: Reading) -> None:
        """Take over a reading of an engine's metrics."""
        polling = self.fleet.config.polling
        slot = self._slots.get(name)
        if slot is None:
            return
        last, slot.reading = slot.reading, reading
        if last and reading.awake and not last.awake:
            slot.back_since = self._clock()
        # Across a gap nobody knows what load it had.
        near = last and last.at < reading.at <= last.at + max(polling.stale_s, 2 * polling.scrape_s)
        if last and near and reading.generation_tokens >= last.generation_tokens:
            before = slot.drift.off
            slot.drift = slot.drift.after(
                reading.generation_tokens - last.generation_tokens,
                reading.at - last.at,
                self._promised(slot, (last.load + reading.load) / 2),
            )
            if slot.drift.off and not before:
                log.warning("engine %s writes %.2f times what its profiles say", name, slot.drift.ratio)
        slot.ledger.read(reading)
        if self._clock() - self._folded_at >= _FOLD_S:
            self._fold(self._clock())
        slot.foreign = max(0, reading.load - reading.own)
        if slot.mismatch != reading.mismatch:
            slot.mismatch = reading.mismatch
            if slot.mismatch:
                log.warning("engine %s differs from its pool's configuration: %s", name, slot.mismatch)
        self._refresh(slot)
        self.pump()

    def _book(self, route: str, pool: str, sample: Sample) -> None:
        """Count a figure of speculation."""
        positions, config = len(sample.speculation.accepted_per_position), self.fleet.config
        if positions and pool in config.pools and positions != config.pools[pool].depth:
            return  # it runs at another depth than its pool's, which `mismatch` tells
        key = route, pool, sample.source
        if key not in self.tallies:
            self.tallies[key] = Tally()
        self.tallies[key].add(sample.speculation)
        self.on_sample(route, pool, sample)

    def _fold(self, now: float) -> None:
        self._folded_at = now
        for tally in self.tallies.values():
            tally.fold(now)

    def heard_at(self, name: str) -> float:
        """Return when an engine last sent a part of an answer, on the state's clock."""
        slot = self._slots.get(name)
        return slot.heard_at if slot else -math.inf

    def ours(self, name: str) -> int:
        """Return how many of an engine's requests are this gateway's."""
        slot = self._slots.get(name)
        return slot.ours if slot else 0

    def chunks(self, name: str) -> int:
        """Return how many chunks of an engine's streams have come, but the first of each."""
        slot = self._slots.get(name)
        return slot.ledger.chunks if slot else 0

    # --- the retry budget

    def begun(self) -> None:
        """Note that one more request begins, which adds to what may be retried."""
        self._budget = self._budget.begun(self._clock())

    def may_retry(self, failure: Failure, *, attempts: int, seconds_left: float) -> bool:
        """Decide on another attempt, and take it from the budget; see policy.retry.may_retry."""
        decision = may_retry(
            failure,
            attempts=attempts,
            per_request=self.fleet.config.retry.per_request,
            seconds_left=seconds_left,
            budget=self._budget,
            now=self._clock(),
        )
        self._budget = decision.budget
        return decision.retry

    # --- views

    def up(self, route: str) -> bool:
        """Return whether a route has an engine that answers."""
        return any(slot.view.up for slot in self._by_route[route])

    def snapshot(self) -> Snapshot:
        """Return everything at this moment."""
        self._see()
        now = self._clock()
        self._fold(now)
        routes = {
            route: RouteStatus(
                self._in_flight[route],
                self.queues.waiting(route),
                self.queues.oldest_wait_s(route),
                self.queues.mean_tokens(route),
                self._done[route].requests,
                self._done[route].errors,
                self._done[route].pace.rate(now),
                {
                    (pool, source): tally.recent
                    for (of, pool, source), tally in self.tallies.items()
                    if of == route and tally.recent.drafts(now) >= 1
                },
            )
            for route in self.fleet.routes
        }
        engines = tuple(self._status(slot, now) for slot in self._slots.values())
        left = self._budget.remaining(now)
        return Snapshot(engines, routes, left, self.draining, self._plan, tuple(self._recent))

    def _status(self, slot: _Slot, now: float) -> EngineStatus:
        age = now - slot.reading.at if slot.reading else None
        return EngineStatus(
            view=slot.view,
            phase=slot.breaker.at(now, self.fleet.rules).phase,
            fitness=slot.view.fitness(now, self.fleet.rules),
            reading_age_s=age,
            stale=age is not None and age > self.fleet.config.polling.stale_s,
            rate=slot.drift.rate,
            ratio=slot.drift.ratio,
            drifts=slot.drift.off,
            mismatch=slot.mismatch,
            leaving=slot.leaving,
            speculation=slot.ledger.sums,
            recent=slot.ledger.recent,
            merges=slot.ledger.merges,
            simulated=slot.reading is not None and slot.reading.simulated,
        )

    def _promised(self, slot: _Slot, load: float) -> float | None:
        """The tokens per second the profiles promise for an engine's load, in its own mix."""
        own = [slot.own[route] for route in self.fleet.routes]
        ours = sum(own)
        if not load:
            return 0.0
        table = self.fleet.tables.get(slot.engine.pool)
        return table.expected_rate([count * load / ours for count in own]) if table and ours else None

    def _changed(self, slot: _Slot, route: str, by: int) -> None:
        slot.own[route] += by
        slot.ours += by
        self._in_flight[route] += by
        if slot.leaving and not slot.leases and self._slots.get(slot.engine.name) is slot:
            slot.ledger.close()
            del self._slots[slot.engine.name]
            self._line_up()
            return
        self._unseen.add(slot)

    def _fresh(self, slot: _Slot) -> int:
        """Requests sent since an engine came back or its breaker moved; older ones tell nothing of it now."""
        since = slot.back_since
        if slot.breaker.phase is not Phase.CLOSED:
            since = max(since, slot.breaker.since)
        elif since == -math.inf or self._clock() - since > WARM_S:
            return 0
        return sum(lease.begun >= since for lease in slot.leases)

    def _see(self) -> None:
        """Work out anew how engines stand whose requests came or went since: often once for two of them."""
        while self._unseen:
            self._refresh(self._unseen.pop())

    def _refresh(self, slot: _Slot) -> None:
        """Work out an engine's view anew."""
        slot.view = self._view(slot)
        if self._slots.get(slot.engine.name) is slot:
            self._board.put(slot.place, slot.view)

    def _view(self, slot: _Slot) -> EngineView:
        pool, routes = slot.engine.pool, self.fleet.routes
        own = tuple([slot.own[route] for route in routes])
        load = slot.ours + slot.foreign
        table = self.fleet.tables.get(pool)
        if table is None:  # its pool has been taken out of the configuration
            return slot.view._replace(up=False, own=own, ours=slot.ours, load=load)
        appraisal = table.appraise(own, slot.foreign, () if any(own) else self._mix(pool))
        cap = appraisal.cap
        if self._plan:
            cap = max(cap, math.ceil(self._plan.loads.get(pool, 0)))
        awake = slot.reading is None or slot.reading.awake
        return EngineView(
            engine=slot.engine,
            up=bool(slot.answers) and awake and not slot.leaving,
            known=slot.answers is not None or slot.leaving,
            own=own,
            ours=slot.ours,
            fresh=self._fresh(slot),
            load=load,
            gains=appraisal.gains,
            cap=cap,
            share=math.ceil(cap / self.fleet.config.server.replicas),
            breaker=slot.breaker,
            rests_until=slot.rests_until,
            back_since=slot.back_since,
        )

    def _mix(self, pool: str) -> list[int]:
        """Our requests everywhere, by route, of those that may use a pool."""
        serves = zip(self.fleet.routes, self.fleet.serves[pool], strict=True)
        return [self._in_flight[route] if may else 0 for route, may in serves]
