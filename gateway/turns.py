"""A few at a time: who may use threads and memory next, fairly among clients."""

from __future__ import annotations

import asyncio
import itertools
from heapq import heappop, heappush

Entry = tuple[int, int, asyncio.Future[None]]


class Turns:
    """Lets work in, `places` at a time and with at most `room` of weight in all.

    Clients take turns; of one client's work the lightest goes first, so that a page need not wait behind
    bombs.
    """

    def __init__(self, places: int, room: int) -> None:
        self.room = room
        self._places = places
        self._left = room
        self._waiting: dict[str, list[Entry]] = {}
        self._order = itertools.count()

    @property
    def waiting(self) -> int:
        """How many wait; those that have given up may be among them."""
        return sum(map(len, self._waiting.values()))

    async def enter(self, client: str, weight: int) -> None:
        """Wait for a turn; who has had it calls `leave`. A weight above `room` never gets one."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(self._waiting.setdefault(client, []), (weight, next(self._order), turn))
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was its turn already
                self.leave(weight)
            raise

    def leave(self, weight: int) -> None:
        """Let the next ones in."""
        self._places += 1
        self._left += weight
        self._let_in()

    def _let_in(self) -> None:
        for client in tuple(self._waiting):
            entries = self._waiting[client]
            while entries and entries[0][2].done():
                heappop(entries)
            if entries and self._places and entries[0][0] <= self._left:
                weight, _, turn = heappop(entries)
                self._places -= 1
                self._left -= weight
                turn.set_result(None)
                del self._waiting[client]
                if entries:  # again behind all others
                    self._waiting[client] = entries
            elif not entries:
                del self._waiting[client]
