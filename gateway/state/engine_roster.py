"""All engines: which there are, what each has to do, and the leases of requests on them."""

from __future__ import annotations

import logging
import math
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.policy.choose.balance import WARM_S, Board, Choice, EngineView, Fitness
from gateway.policy.fail.breaker import Phase
from gateway.state import outcomes
from gateway.state.engine_record import EngineRecord
from gateway.state.lease import Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from random import Random

    from gateway.model import Engine
    from gateway.policy.account.acceptance import Sample
    from gateway.policy.choose.gain import Appraisal
    from gateway.policy.fail.breaker import Outcome
    from gateway.state.fleet import Fleet
    from gateway.state.pool_split import PoolSplit
    from gateway.state.queues import Queues

log = logging.getLogger(__name__)

# What is appraised: own requests by route, others', and our mix where there are none of ours.
_Appraised = tuple[tuple[int, ...], int, tuple[int, ...]]
# Appraisals of one pool's engines that are kept: a megabyte or so where there are many routes.
_REMEMBERED = 1024


class EngineRoster:
    """The records of all engines, and the board on which they are compared.

    A record's view is worked out anew by `refresh` when something of it has changed; when requests have come
    or gone, not before somebody looks, which is often once for two of them.

    Attributes:
        records: by name, of all engines that are to be watched: those listed, and those leaving with work.
        in_flight: this gateway's requests on engines, by route.
    """

    def __init__(
        self,
        fleet: Fleet,
        split: PoolSplit,
        queues: Queues,
        clock: Callable[[], float],
        rng: Random,
        book: Callable[[str, str, Sample], bool],
        pump: Callable[[], None],
    ) -> None:
        """Start without engines.

        Args:
            fleet: the configuration in force.
            split: how routes are kept apart, if they are.
            queues: count the places of clients.
            clock: the state's, in seconds.
            rng: decides between equal engines.
            book: called with each figure of speculation; see EngineRecord.
            pump: called when a request has left an engine while others wait.
        """
        self.records: dict[str, EngineRecord] = {}
        self.in_flight: Counter[str] = Counter()
        self._fleet = fleet
        self._split = split
        self._queues = queues
        self._clock = clock
        self._rng = rng
        self._book = book
        self._pump = pump
        self._by_route: dict[str, list[EngineRecord]] = {}
        self._pending: frozenset[str] = frozenset()
        self._board = Board((), (), 0)
        self._outdated: set[EngineRecord] = set()
        self._appraisals: dict[str, dict[_Appraised, Appraisal]] = {}

    # --- which there are

    def configure(self, fleet: Fleet, engines: Iterable[Engine], pending: Iterable[str]) -> None:
        """Take a fleet over; see State.configure."""
        self._fleet = fleet
        self._appraisals.clear()
        self.set_engines(engines, pending)

    def set_engines(self, engines: Iterable[Engine], pending: Iterable[str]) -> None:
        """Take over which engines are listed; those no longer listed go when they are idle."""
        self._pending = frozenset(pending)
        listed = {engine.name: engine for engine in engines}
        for name, engine in listed.items():
            record = self.records.get(name)
            if record is None or (record.engine.url, record.engine.pool) != (engine.url, engine.pool):
                if record:
                    record.ledger.close()
                record = self.records[name] = EngineRecord(engine, self._book)
            if record.leaving:
                record.back_since = self._clock()
            record.engine, record.leaving = engine, False
        for name, record in list(self.records.items()):
            if name not in listed:
                record.leaving = True
                if not record.leases:
                    record.ledger.close()
                    del self.records[name]
        now = self._clock()
        for record in self.records.values():
            record.view = self._view(record, now)
        self._line_up()

    def _line_up(self) -> None:
        """Set up the board, and which engines each route may use."""
        records = list(self.records.values())
        for index, record in enumerate(records):
            record.index = index
        pools_of = {route: self._fleet.config.pools_of(route) for route in self._fleet.routes}
        self._by_route = {
            route: [record for record in records if record.engine.pool in pools]
            for route, pools in pools_of.items()
        }
        serves = [self._fleet.serves.get(record.engine.pool, ()) for record in records]
        self._board = Board([record.view for record in records], serves, len(self._fleet.routes))

    def of_route(self, route: str) -> Sequence[EngineRecord]:
        """Return those of the engines that a route may use."""
        return self._by_route.get(route, ())

    # --- what they have to do

    def take(self, route: str, avoid: str | None, client: str) -> Lease | Choice:
        """Take a place on the engine that is chosen; where none may be had, tell why."""
        choice = self.choose(route, avoid)
        return choice if choice.view is None else self.lease(choice.view.engine.name, route, client)

    def lease(self, engine: str, route: str, client: str) -> Lease:
        """Take a place on an engine."""
        record, fleet, now = self.records[engine], self._fleet, self._clock()
        if record.refused_at is not None:
            record.count_trial(now)
        record.by_route[route] += 1
        record.in_flight += 1
        self.in_flight[route] += 1
        self._outdated.add(record)
        fair = self._queues.fair[route]
        if self._queues.total:
            fair.started(client)
        else:  # nobody waits, as nearly always: there is no order to keep
            fair.places[client] += 1
        pool = record.engine.pool
        depths = fleet.depths[pool]
        depth = depths[min(record.in_flight + record.foreign, len(depths)) - 1]
        step_depth = fleet.step_depths.get(pool, 0)
        chosen_by = "kept apart" if self._split.keeps_apart else fleet.chosen_by[route]
        # By keyword the call takes 1 us more.
        lease = Lease(record, route, client, self, fair, self._clock, now, depth, step_depth, chosen_by)
        record.leases.add(lease)
        return lease

    def lease_released(self, lease: Lease) -> None:
        """Take a place back, once for each lease; an engine that is leaving goes with its last one."""
        record, route, places = lease.record, lease.route, lease.fair.places
        if self._queues.total:
            lease.fair.ended(lease.client)
        elif places[lease.client] > 1:
            places[lease.client] -= 1
        else:
            del places[lease.client]
        record.by_route[route] -= 1
        record.in_flight -= 1
        self.in_flight[route] -= 1
        self._outdated.add(record)
        if record.leaving and not record.leases and self.records.get(record.engine.name) is record:
            record.ledger.close()
            del self.records[record.engine.name]
            self._outdated.discard(record)
            self._line_up()
        if self._queues.total:
            self._pump()

    def record_outcome(self, lease: Lease, outcome: Outcome) -> None:
        """Feed an engine's breaker with what a request says of it."""
        now, record = self._clock(), lease.record
        if outcomes.record_outcome(record, outcome, now, self._fleet.rules, begun=lease.begun):
            self.refresh(record, now)

    # --- how they stand

    def choose(self, route: str, avoid: str | None) -> Choice:
        """Choose an engine for one more request of a route; none where no such route is configured."""
        if route not in self._by_route:
            return Choice(None, Fitness.DOWN)
        now = self._clock()
        self.update(now)
        fleet, board = self._fleet, self._board
        index = fleet.routes.index(route)
        choice = None
        if self._split.keeps_apart and (pool := self._split.pool_for(route, index, self._by_route[route])):
            choice = board.choose(index, now=now, rules=fleet.rules, rng=self._rng, avoid=avoid, pool=pool)
        if choice is None or choice.view is None:
            choice = board.choose(index, now=now, rules=fleet.rules, rng=self._rng, avoid=avoid)
        if choice.reason is Fitness.DOWN and not self._pending.isdisjoint(fleet.config.pools_of(route)):
            choice = replace(choice, reason=Fitness.RESTING)
        if log.isEnabledFor(logging.DEBUG):
            chosen = choice.view.engine.name if choice.view else choice.reason
            candidates = board.candidates(index, now, fleet.rules)
            fields = {"route": route, "chosen": chosen, "avoided": avoid, "candidates": candidates}
            log.debug("choice", extra={"fields": fields})
        return choice

    def available_at(self, now: float) -> float:
        """Return when the next engine may take requests again only because time passes; infinity if none."""
        self.update(now)
        return self._board.available_at(now, self._fleet.rules)

    def update(self, now: float) -> None:
        """Work out anew how engines stand whose requests came or went since."""
        while self._outdated:
            self.refresh(self._outdated.pop(), now)

    def refresh(self, record: EngineRecord, now: float) -> None:
        """Work out anew how an engine stands."""
        record.view = self._view(record, now)
        if self.records.get(record.engine.name) is record:
            self._board.put(record.index, record.view)

    def refresh_all(self, now: float) -> None:
        """Work out anew how all engines stand."""
        for record in self.records.values():
            self.refresh(record, now)

    def _view(self, record: EngineRecord, now: float) -> EngineView:
        fleet, pool = self._fleet, record.engine.pool
        own = tuple([record.by_route[route] for route in fleet.routes])
        load = record.in_flight + record.foreign
        table = fleet.tables.get(pool)
        if table is None:  # its pool has been taken out of the configuration
            return record.view._replace(up=False, own=own, ours=record.in_flight, load=load)
        known, asked = self._appraisals.setdefault(pool, {}), (own, record.foreign, self._mix(pool, own))
        if (appraisal := known.get(asked)) is None:
            if len(known) >= _REMEMBERED:
                known.clear()
            appraisal = known[asked] = table.appraise(*asked)
        cap = appraisal.cap
        if self._split.plan:
            cap = max(cap, self._split.load(pool))
        awake = record.reading is None or record.reading.awake
        return EngineView(
            engine=record.engine,
            up=bool(record.answers) and awake and not record.leaving,
            known=record.answers is not None or record.leaving,
            own=own,
            ours=record.in_flight,
            fresh=fresh_requests(record, now),
            load=load,
            gains=appraisal.gains,
            cap=cap,
            share=math.ceil(cap / fleet.config.server.replicas),
            breaker=record.breaker,
            rests_until=record.rests_until,
            back_since=record.back_since,
        )

    def _mix(self, pool: str, own: tuple[int, ...]) -> tuple[int, ...]:
        """For an engine without requests of ours: those on all engines, by route, that may use its pool."""
        if any(own):
            return ()
        serves = zip(self._fleet.routes, self._fleet.serves[pool], strict=True)
        return tuple([self.in_flight[route] if may else 0 for route, may in serves])


def fresh_requests(record: EngineRecord, now: float) -> int:
    """Return how many of an engine's requests were sent since it came back or its breaker moved.

    Older ones tell nothing of how it is now.
    """
    since = record.back_since
    if record.breaker.phase is not Phase.CLOSED:
        since = max(since, record.breaker.since)
    elif now - since > WARM_S:
        return 0
    return sum(lease.begun >= since for lease in record.leases)
