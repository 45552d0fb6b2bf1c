"""A few at a time: who may use threads and memory next, fairly among clients."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from heapq import heappop, heappush
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")
Entry = tuple[int, int, int, asyncio.Future[None]]


class Turns:
    """Lets work in, `places` at a time and with at most `room` of weight in all.

    Clients take turns. Of one client's work light pieces pass heavy ones, so that a page need not wait behind
    bombs; but of those that came later only as many as there are steps in a weight: none waits for ever.
    """

    def __init__(self, places: int, room: int, step: int = 1024 * 1024, spared: int = 0) -> None:
        """Have so many places, and so much room; `spared` of the places are for clients that have none."""
        self.room = room
        self._spared = spared
        self._of: Counter[str] = Counter()
        self._step = step
        self._all = self._places = places
        self._left = room
        self._waiting: dict[str, list[Entry]] = {}
        self._order = itertools.count()
        self._working: set[asyncio.Task[object]] = set()

    @property
    def waiting(self) -> int:
        """How many wait; those that have given up may be among them."""
        return sum(map(len, self._waiting.values()))

    def resize(self, places: int) -> None:
        """Have so many places; who has one beyond them keeps it until it leaves."""
        self._places += places - self._all
        self._all = places
        self._let_in()

    async def run(self, client: str, weight: int, work: Callable[[], Coroutine[None, None, T]]) -> T:
        """Wait for a turn and work in it; the turn ends with the work, not with the patience of who waits.

        Args:
            client: whose work it is.
            weight: at most `room`.
            work: goes on when whoever waits for it is cancelled.
        """
        await self.enter(client, weight)
        task = asyncio.create_task(work())
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        task.add_done_callback(lambda _: self.leave(client, weight))
        return await asyncio.shield(task)

    async def enter(self, client: str, weight: int) -> None:
        """Wait for a turn; who has had it calls `leave`. A weight above `room` never gets one."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        order = next(self._order)
        entry = (order + weight // self._step, order, weight, turn)
        heappush(self._waiting.setdefault(client, []), entry)
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was its turn already
                self.leave(client, weight)
            raise

    def leave(self, client: str, weight: int) -> None:
        """Let the next ones in."""
        self._of[client] -= 1
        if not self._of[client]:
            del self._of[client]
        self._places += 1
        self._left += weight
        self._let_in()

    def _let_in(self) -> None:
        for client in tuple(self._waiting):
            entries = self._waiting[client]
            while entries and entries[0][3].done():
                heappop(entries)
            spared = self._spared if client in self._of else 0
            if entries and self._places > spared and entries[0][2] <= self._left:
                _, _, weight, turn = heappop(entries)
                self._of[client] += 1
                self._places -= 1
                self._left -= weight
                turn.set_result(None)
                del self._waiting[client]
                if entries:  # again behind all others
                    self._waiting[client] = entries
            elif not entries:
                del self._waiting[client]
