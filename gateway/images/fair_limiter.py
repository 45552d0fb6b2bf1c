"""Limits how much work runs at once, by number and by weight, and shares the places fairly among clients."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

# After so long, half as much time of a client's work is held against it.
_HALF_LIFE_S = 60.0
_MOST_CHARGED = 1024


class _Waiter(NamedTuple):
    """One piece of work that waits.

    Attributes:
        rank: by which a client's work is let in; the lowest first.
        number: of its arrival; no two have the same.
        weight: its weight.
        let_in: done once it may start, or no longer wants to.
    """

    rank: int
    number: int
    weight: int
    let_in: asyncio.Future[None]


class FairLimiter:
    """Lets pieces of work in, so many at once and with a bounded weight in all.

    Clients take turns. Of one client's work light pieces pass heavy ones, so that an ordinary page need not
    wait behind many huge ones. A piece is passed only by so many later ones as there are steps in its weight:
    none waits for ever.
    """

    def __init__(
        self,
        places: int,
        capacity: int,
        step: int = 1024 * 1024,
        reserved: int = 0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Let nothing in yet.

        Args:
            places: how many pieces may run at once.
            capacity: the weight of all that run, at most.
            step: the weight for which one later piece may pass.
            reserved: how many of the places are for clients that have none.
            now: the time in seconds.
        """
        self.capacity = capacity
        self._reserved = reserved
        self._running_of: Counter[str] = Counter()
        self._step = step
        self._places = self._free_places = places
        self._free_capacity = capacity
        self._waiters: dict[str, list[_Waiter]] = {}
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Task[object]] = set()
        self._used: dict[str, tuple[float, float]] = {}
        self._now = now

    @property
    def waiting(self) -> int:
        """How many wait; some of them may have given up."""
        return sum(map(len, self._waiters.values()))

    def resize(self, places: int) -> None:
        """Change the number of places; work beyond them keeps its place until it ends."""
        self._free_places += places - self._places
        self._places = places
        self._let_in()

    async def run(self, client: str, weight: int, work: Callable[[], Coroutine[None, None, T]]) -> T:
        """Wait for a place and run a piece of work; the place is free again when the work ends.

        Args:
            client: whose work it is.
            weight: at most `capacity`.
            work: runs to its end, even where the caller is cancelled.
        """
        await self.enter(client, weight)
        task = asyncio.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self.leave(client, weight))
        return await asyncio.shield(task)

    async def enter(self, client: str, weight: int) -> None:
        """Wait for a place, to be given back with `leave`. A weight above `capacity` never gets one."""
        let_in: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        number = next(self._numbers)
        waiter = _Waiter(number + weight // self._step, number, weight, let_in)
        heappush(self._waiters.setdefault(client, []), waiter)
        self._let_in()
        try:
            await let_in
        except asyncio.CancelledError:
            if not let_in.cancelled():  # it has just got its place
                self.leave(client, weight)
            raise

    def charge(self, client: str, seconds: float) -> None:
        """Note how long a client's work has taken: those whose work took less lately are let in first."""
        self._used[client] = self._used_lately(client) + seconds, self._now()
        if len(self._used) > _MOST_CHARGED:
            del self._used[min(self._used, key=self._used_lately)]

    def _used_lately(self, client: str) -> float:
        seconds, at = self._used.get(client, (0.0, 0.0))
        return seconds * 0.5 ** ((self._now() - at) / _HALF_LIFE_S) if seconds else 0.0

    def leave(self, client: str, weight: int) -> None:
        """Give a place back."""
        self._running_of[client] -= 1
        if not self._running_of[client]:
            del self._running_of[client]
        self._free_places += 1
        self._free_capacity += weight
        self._let_in()

    def _let_in(self) -> None:
        """Let in what fits, until nothing more does; a client that was let in comes last then."""
        while any(self._let_in_one(client) for client in sorted(self._waiters, key=self._used_lately)):
            pass

    def _let_in_one(self, client: str) -> bool:
        """Let a client's next piece in if it fits; return whether it does."""
        waiters = self._waiters[client]
        while waiters and waiters[0].let_in.done():
            heappop(waiters)
        if not waiters:
            del self._waiters[client]
            return False
        weight = waiters[0].weight
        reserved = self._reserved if client in self._running_of else 0
        if self._free_places <= reserved or weight > self._free_capacity:
            return False
        heappop(waiters).let_in.set_result(None)
        self._running_of[client] += 1
        self._free_places -= 1
        self._free_capacity -= weight
        del self._waiters[client]
        if waiters:  # behind all other clients now
            self._waiters[client] = waiters
        return True
