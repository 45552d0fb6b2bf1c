"""Whose request goes first where several clients wait for the same places, and whose is put out."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

T = TypeVar("T", bound="Hashable")


class Ranks:
    """Clients by a count each. Of equals, who has had that count for longest comes first."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._equals: dict[int, OrderedDict[str, None]] = {}

    def put(self, client: str, count: int) -> None:
        """Take a client in, or over to another count."""
        self.drop(client)
        self._counts[client] = count
        self._equals.setdefault(count, OrderedDict())[client] = None

    def drop(self, client: str) -> None:
        """Forget a client."""
        if (count := self._counts.pop(client, None)) is not None:
            equals = self._equals[count]
            del equals[client]
            if not equals:
                del self._equals[count]

    def __contains__(self, client: str) -> bool:
        return client in self._counts

    def least(self) -> str:
        """Return a client with the lowest count; ValueError where there is none."""
        return next(iter(self._equals[min(self._equals)]))

    def most(self) -> str:
        """Return a client with the highest count; ValueError where there is none."""
        return next(iter(self._equals[max(self._equals)]))


class FairQueue(Generic[T]):
    """Requests that wait for places, and how many places each client has.

    The client with the fewest places goes first; of equals, whose turn was longest ago or, if it had none,
    who has waited longest; of one client's requests, the first. So places are shared max-min: who wants less
    than an equal share gets it, and the others share the rest equally, however many requests each has
    waiting. What a step costs grows with the number of different counts, not of clients or requests.

    Attributes:
        places: how many each client has, kept by `started` and `ended`; while nobody waits it may be changed
            directly.
    """

    def __init__(self) -> None:
        self._lines: dict[str, OrderedDict[T, None]] = {}
        self._clients: dict[T, str] = {}
        self.places: Counter[str] = Counter()
        self._by_places = Ranks()
        self._by_waiting = Ranks()

    def __len__(self) -> int:
        return len(self._clients)

    def __contains__(self, item: T) -> bool:
        return item in self._clients

    def heads(self) -> Iterator[T]:
        """Yield the first request of each client that waits."""
        return (next(iter(line)) for line in self._lines.values())

    def join(self, item: T, client: str) -> None:
        """Let a request wait."""
        line = self._lines.setdefault(client, OrderedDict())
        line[item] = None
        self._clients[item] = client
        self._by_waiting.put(client, len(line))
        if client not in self._by_places:
            self._by_places.put(client, self.places[client])

    def leave(self, item: T) -> None:
        """Take a request out; nothing where it does not wait."""
        client = self._clients.pop(item, None)
        if client is None:
            return
        line = self._lines[client]
        del line[item]
        if line:
            self._by_waiting.put(client, len(line))
        else:
            del self._lines[client]
            self._by_waiting.drop(client)
            self._by_places.drop(client)

    def first(self) -> T | None:
        """Return the request that goes first; None where nobody waits."""
        return next(iter(self._lines[self._by_places.least()])) if self._lines else None

    def started(self, client: str) -> None:
        """Note that a client has one more place."""
        self._placed(client, +1)

    def ended(self, client: str) -> None:
        """Note that a client has one place less."""
        self._placed(client, -1)

    def _placed(self, client: str, by: int) -> None:
        places = self.places.get(client, 0) + by
        if places:
            self.places[client] = places
        else:
            del self.places[client]
        if client in self._by_places:
            self._by_places.put(client, places)

    def ahead(self, client: str) -> int:
        """Return how many go before the last request of a client that waits.

        Each other client is served until it has as many places as this one has then.
        """
        own = len(self._lines[client])
        level = self.places[client] + own
        others = (
            min(len(line), max(0, level - self.places[other]))
            for other, line in self._lines.items()
            if other != client
        )
        return own - 1 + sum(others)

    def pushed_out(self, client: str) -> T | None:
        """Return what has to go once a request of a client has joined a full queue; None where it is that.

        It is the last one of the client that has most waiting: "longest queue drop" (McKenney, "Stochastic
        fairness queueing", 1990), which leaves every client its equal share of a queue, whatever others send.
        """
        longest = self._lines[self._by_waiting.most()]
        return next(reversed(longest)) if len(longest) > len(self._lines[client]) else None
