"""The requests of this process: those under way, the memory they hold, and what became of the others."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

from gateway.errors import Unavailable
from gateway.policy.account.pace import MeanTokens, Pace
from gateway.policy.admit.memory_share import may_hold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gateway.model import RequestRecord

# Of so many requests /status tells what became of them.
_RECENT = 50
# So many answers of a route are counted one by one before its figures are brought up to date.
_MOST_NEW = 64

FULL = "memory_full"
_RETRY_AFTER_S = 2


class OpenRequests:
    """How many requests there are, from receipt to the last byte of the answer, and how far a stop has come.

    Attributes:
        open: how many there are; counted by those who deal with them.
        closing: the gateway is about to stop: work is taken, but clients had better go elsewhere.
        draining: no new work is taken, but for
        kept: clients, by host and port, of connections that could not be told to close before.
    """

    def __init__(self) -> None:
        self.open = 0
        self.closing = self.draining = False
        self.kept: frozenset[tuple[str, int]] = frozenset()

    def announce_stop(self) -> None:
        """Note that the gateway is about to stop."""
        self.closing = True

    def drain(self, kept: frozenset[tuple[str, int]]) -> None:
        """Take new work from these connections only."""
        self.draining, self.kept = True, kept


class BodyMemory:
    """Bytes that requests under way hold, by client: their bodies, their images, whole answers.

    Attributes:
        limit: bytes that may be held in all.
        total: bytes held in all.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._own: Counter[str] = Counter()

    def resize(self, limit: int) -> None:
        """Take over how many bytes may be held in all; what is held stays."""
        self.limit = limit

    def claim(self, client: str) -> MemoryClaim:
        """Open the account of one request of a client."""
        return MemoryClaim(self, client)

    def _change(self, client: str, by: int) -> None:
        self.total += by
        self._own[client] += by
        if not self._own[client]:
            del self._own[client]


class MemoryClaim:
    """What one request holds, until it is closed.

    Attributes:
        size: bytes held.
    """

    def __init__(self, memory: BodyMemory, client: str) -> None:
        self._memory = memory
        self._client = client
        self.size = 0

    def check_room(self, more: int) -> None:
        """Check that so many bytes more could be held as things stand; nothing is counted yet.

        Raises:
            Unavailable: they could not (code `memory_full`).
        """
        memory = self._memory
        if 2 * (memory.total + more) <= memory.limit:
            return  # whoever holds it: no client's share is less
        if not may_hold(more, own=memory._own[self._client], total=memory.total, limit=memory.limit):
            raise _full(memory.limit)

    def add(self, more: int) -> None:
        """Count bytes that are about to be kept.

        Raises:
            Unavailable: the client holds its share of the memory already (code `memory_full`).
        """
        self.check_room(more)
        self._keep(more)

    def add_answer(self, more: int) -> None:
        """Count bytes of an engine's answer: work that is done gets whatever memory there is.

        Raises:
            Unavailable: there is none left (code `memory_full`).
        """
        if self._memory.total + more > self._memory.limit:
            raise _full(self._memory.limit)
        self._keep(more)

    def release(self, fewer: int) -> None:
        """Give bytes back that are kept no more; at the most what is held."""
        fewer = min(fewer, self.size)
        self.size -= fewer
        self._memory._change(self._client, -fewer)

    def _keep(self, more: int) -> None:
        self.size += more
        self._memory._change(self._client, more)

    def close(self) -> None:
        """Give all of it back."""
        self.release(self.size)


def _full(limit: int) -> Unavailable:
    return Unavailable(
        f"requests under way fill the {limit:,} bytes of memory that there are for them, or your share of it "
        "(limits.inflight_bytes); retry when some have been answered",
        code=FULL,
        retry_after=_RETRY_AFTER_S,
    )


class RouteHistory:
    """What became of a route's requests; see snapshot.RouteStatus.

    Attributes:
        requests: that have ended.
        errors: of these, answered with a status of 500 or more.
        answers: tokens and time of those not in the figures yet, which are brought up to date when read.
    """

    def __init__(self, now: float) -> None:
        self.requests = self.errors = 0
        self.answers: list[tuple[int, float]] = []
        self._pace = Pace(now)
        self._mean = MeanTokens()

    def rate(self, now: float) -> float:
        """Return output tokens per second, of about the last half minute."""
        self.fold()
        return self._pace.rate(now)

    def mean_tokens(self) -> float:
        """Return the expected output of one request."""
        self.fold()
        return self._mean.tokens

    def fold(self) -> None:
        """Bring the figures up to date."""
        for tokens, at in self.answers:
            self._pace = self._pace.after(tokens, at)
            self._mean = self._mean.after(tokens)
        self.answers.clear()


class RequestHistory:
    """Not shared between threads.

    Attributes:
        routes: by name, those configured.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.routes: dict[str, RouteHistory] = {}
        self._clock = clock
        self._recent: deque[RequestRecord] = deque(maxlen=_RECENT)

    def configure(self, routes: Iterable[str]) -> None:
        """Take over which routes there are."""
        now = self._clock()
        self.routes = {route: self.routes.get(route) or RouteHistory(now) for route in routes}

    def record_request(self, record: RequestRecord) -> None:
        """Note what became of a request."""
        self._recent.appendleft(record)
        if history := self.routes.get(record.route):
            history.requests += 1
            history.errors += record.code >= 500
            if record.usage and record.code == 200:
                self.record_answer(record.route, record.usage.completion_tokens)

    def record_answer(self, route: str, tokens: int) -> None:
        """Note the length of an answer, by which routes share places, and their pace."""
        if history := self.routes.get(route):
            history.answers.append((tokens, self._clock()))
            if len(history.answers) >= _MOST_NEW:
                history.fold()

    def mean_tokens(self, route: str) -> float:
        """Return the expected output of one of a route's requests."""
        return self.routes[route].mean_tokens()

    def recent(self) -> tuple[RequestRecord, ...]:
        """Return what became of the last requests, the latest first."""
        return tuple(self._recent)
