"""The queues before the engines, one a route: who waits, and who is next."""

from __future__ import annotations

from collections import OrderedDict
from itertools import chain
from typing import TYPE_CHECKING

from gateway.policy.admit.admission import QueueSpeed, Turns, idle, next_turn
from gateway.policy.admit.fairness import FairQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gateway.state.lease import Lease

# Tokens a waiting route gets in its turn.
_QUANTUM = 256.0


class Waiter:
    """A request in its route's queue, woken with its `lease`, or without one.

    Attributes:
        avoid: an engine that failed it before.
        pushed_out: it was woken to make room for a client with fewer requests; else its route is no more.
    """

    __slots__ = "avoid", "client", "lease", "pushed_out", "route", "since", "wake"

    def __init__(
        self, route: str, avoid: str | None, client: str, since: float, wake: Callable[[], None]
    ) -> None:
        self.route = route
        self.avoid = avoid
        self.client = client
        self.since = since
        self.wake = wake
        self.lease: Lease | None = None
        self.pushed_out = False


class _Queue:
    """One route's: those that failed elsewhere in the order they came, then the others, fairly."""

    def __init__(self) -> None:
        self.again: OrderedDict[Waiter, None] = OrderedDict()
        self.fair: FairQueue[Waiter] = FairQueue()
        self.speed = QueueSpeed()

    def __len__(self) -> int:
        return len(self.again) + len(self.fair)

    def leave(self, waiter: Waiter) -> None:
        self.again.pop(waiter, None)
        self.fair.leave(waiter)


class Queues:
    """All routes' queues; not shared between threads.

    Attributes:
        total: requests that wait, of all routes.
        fair: by route, those of them that have not failed elsewhere, and how many places each client has.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._queues: dict[str, _Queue] = {}
        self._turns = Turns()
        self.total = 0
        self.fair: dict[str, FairQueue[Waiter]] = {}

    def configure(self, routes: Collection[str]) -> None:
        """Take over the routes there are; who waits for one that has gone is woken without a lease."""
        for route in self._queues.keys() - set(routes):
            queue = self._queues.pop(route)
            self._turns = idle(self._turns, route)
            while waiter := next(iter(queue.again), None) or queue.fair.first():
                queue.leave(waiter)
                self.total -= 1
                waiter.wake()
        for route in routes:
            self._queues.setdefault(route, _Queue())
        self.fair = {route: queue.fair for route, queue in self._queues.items()}

    def __contains__(self, route: str) -> bool:
        return route in self._queues

    def __len__(self) -> int:
        return self.total

    # --- waiting

    def join(
        self, route: str, wake: Callable[[], None], avoid: str | None, client: str, *, first: bool
    ) -> Waiter:
        """Join a route's queue; see State.wait."""
        waiter = Waiter(route, avoid, client, self._clock(), wake)
        queue = self._queues[route]
        queue.speed = queue.speed.watched(waiter.since)
        if first or avoid is not None:
            queue.again[waiter] = None
        else:
            queue.fair.join(waiter, client)
        self.total += 1
        return waiter

    def leave(self, waiter: Waiter) -> bool:
        """Leave the queue; tell whether it was in one."""
        queue = self._queues.get(waiter.route)
        if queue is None or not (waiter in queue.again or waiter in queue.fair):
            return False
        queue.leave(waiter)
        self.total -= 1
        if not queue:
            self._turns = idle(self._turns, waiter.route)
            queue.speed = queue.speed.emptied(self._clock())
        return True

    def pushed_out(self, waiter: Waiter) -> Waiter | None:
        """Return who has to go in a full queue for a waiter that has just joined; None where it is that."""
        return self._queues[waiter.route].fair.pushed_out(waiter.client)

    def push_out(self, waiter: Waiter) -> None:
        """Put a waiter out and tell it."""
        if self.leave(waiter):
            waiter.pushed_out = True
            waiter.wake()

    # --- places

    def take_next(
        self, place: Callable[[str, str | None], str | None], mean_tokens: Callable[[str], float]
    ) -> tuple[Waiter, str] | None:
        """Take out who gets the next place, route by route in turn; None where nobody does.

        Args:
            place: returns an engine that takes a request of a route, but the one to avoid, if there is one.
            mean_tokens: returns the expected output of a route's request, by which routes share places.
        """
        if not self.total:
            return None
        heads = {
            route: head for route, queue in self._queues.items() if (head := _placeable(route, queue, place))
        }
        if not heads:
            return None
        costs = {route: mean_tokens(route) for route in heads}
        route, self._turns = next_turn(self._turns, costs, _QUANTUM)
        queue = self._queues[route]
        queue.speed = queue.speed.started(self._clock())
        self.leave(heads[route][0])
        return heads[route]

    # --- views

    def waiting(self, route: str) -> int:
        """Return how many requests of a route wait."""
        queue = self._queues.get(route)
        return len(queue) if queue is not None else 0

    def ahead(self, waiter: Waiter) -> int:
        """Return how many go before a waiter that has just joined."""
        queue = self._queues[waiter.route]
        return len(queue.again) + queue.fair.ahead(waiter.client)

    def speed(self, route: str) -> float | None:
        """Return how many waiting requests of a route get their turn per second; None while unknown."""
        queue = self._queues.get(route)
        return queue.speed.per_s(self._clock()) if queue is not None else None

    def oldest_wait_s(self, route: str) -> float:
        """Return how long the one that came first has waited; 0 where nobody waits."""
        queue, now = self._queues[route], self._clock()
        return now - min((waiter.since for waiter in chain(queue.again, queue.fair.heads())), default=now)


def _placeable(
    route: str, queue: _Queue, place: Callable[[str, str | None], str | None]
) -> tuple[Waiter, str] | None:
    """The first in a queue that finds room, and where: a retry avoids what others need not."""
    tried = set()
    first = queue.fair.first()
    for waiter in chain(queue.again, (first,) if first else ()):
        if waiter.avoid not in tried:
            tried.add(waiter.avoid)
            if engine := place(route, waiter.avoid):
                return waiter, engine
            if None in tried:
                break
    return None
