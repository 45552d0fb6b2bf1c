"""The requests of this process: how many are under way, and what became of those that have ended."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from gateway.policy.account.pace import MeanTokens, Pace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gateway.model import RequestRecord

# Of so many requests /status tells what became of them.
_RECENT = 50
# So many answers of a route are counted one by one before its figures are brought up to date.
_MOST_NEW = 64


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
