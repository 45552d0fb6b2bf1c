"""What became of requests: the last ones, and each route's since the start."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.policy.account.pace import Pace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gateway.model import RequestRecord

# Of so many requests /status tells what became of them.
_RECENT = 50


@dataclass(slots=True)
class RouteHistory:
    """What became of a route's requests; see snapshot.RouteStatus."""

    pace: Pace
    requests: int = 0
    errors: int = 0


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
        self.routes = {route: self.routes.get(route) or RouteHistory(Pace(now)) for route in routes}

    def record_answer(self, route: str, tokens: int) -> None:
        """Note the length of an answer."""
        if history := self.routes.get(route):
            history.pace = history.pace.after(tokens, self._clock())

    def record_request(self, record: RequestRecord) -> None:
        """Note what became of a request."""
        self._recent.appendleft(record)
        if history := self.routes.get(record.route):
            history.requests += 1
            history.errors += record.code >= 500

    def recent(self) -> tuple[RequestRecord, ...]:
        """Return what became of the last requests, the latest first."""
        return tuple(self._recent)
