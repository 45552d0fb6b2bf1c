"""One engine's acceptance: which figures its requests gave, and which of them its own counters bear out.

A part of the state; it is told of requests and readings in their order, and has no clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.model import Speculation
from gateway.policy.acceptance import Sample, Source, believable, gain, total

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from gateway.model import Reading

# Streams are held against the counters over about this time; a longer one would hide a change.
_EPOCH_S = 300.0
# Windows that wait for their requests to end, and estimates that wait for a reading; beyond, the oldest are
# given up.
_MAX_WINDOWS = 1024
_MAX_ESTIMATED = 4096


@dataclass(slots=True)
class _Request:
    """A request that has not been settled; its `ordinal` among those that have ended, 0 until then."""

    route: str
    epoch: int
    sample: Sample | None = None
    ordinal: int = 0


@dataclass(slots=True)
class _Window:
    """The time between two readings.

    Attributes:
        requests: those that ran in it and are not settled.
        routes: theirs, and those of the ones settled.
        spoiled: one of them gave a better figure, or others than ours ran in it.
        gained: what the counters grew by; None until it is over, and where that is not known.
    """

    requests: set[Hashable] = field(default_factory=set)
    routes: set[str] = field(default_factory=set)
    spoiled: bool = False
    gained: Speculation | None = None


class Ledger:
    """One engine's account.

    For one request the best figure counts: what the engine told, at once; else the stream's estimate, once
    the counters bear it out; else the counters' own growth, where one route alone had the engine.

    Attributes:
        ended: requests that have ended, in all.
        sums: what the engine's counters grew by since they were first read, restarts notwithstanding; None
            where it does not speculate.
        trusts_streams: the counters bear the streams' estimates out, as far as known.
    """

    def __init__(self, book: Callable[[str, Sample], None]) -> None:
        """Open an account; `book` is called with a route and each figure that counts."""
        self._book = book
        self.ended = 0
        self.sums: Speculation | None = None
        self.trusts_streams = True
        self._requests: dict[Hashable, _Request] = {}
        self._estimated: deque[Hashable] = deque()
        self._windows: deque[_Window] = deque((_Window(),))
        self._last: Reading | None = None
        self._epoch, self._epoch_at = 0, 0.0
        self._claimed = self._counted = 0.0

    def began(self, request: Hashable, route: str) -> None:
        """Note that a request has been sent."""
        self._requests[request] = _Request(route, self._epoch)
        self._windows[-1].requests.add(request)
        self._windows[-1].routes.add(route)

    def finished(self, request: Hashable, sample: Sample | None) -> None:
        """Note that a request has ended, and what it gave; None where it broke off or tells nothing."""
        self.ended += 1
        if sample is None or sample.source is Source.REQUEST:
            self._settle(request, sample)
            return
        told = self._requests[request]
        told.sample, told.ordinal = sample, self.ended
        self._estimated.append(request)
        if len(self._estimated) > _MAX_ESTIMATED:
            self._settle(self._estimated.popleft(), None)

    def read(self, reading: Reading) -> None:
        """Take over a reading of the engine's counters; earlier ones first."""
        last, self._last = self._last, reading
        now, before = reading.speculation, last.speculation if last else None
        gained = gain(before, now) if now and before else None
        if now is None:
            self.sums = None
        elif gained:
            self.sums = total(self.sums, gained)
        else:
            self.sums = self.sums or Speculation(0.0, 0.0, 0.0)
        if last is None or gained is None:
            self._disbelieve()
        else:
            self._counted += gained.accepted
            self._judge(last.ended)
        if reading.at - self._epoch_at > _EPOCH_S:
            self._begin_epoch(reading.at)
        self._turn(last, reading, gained)

    def _turn(self, last: Reading | None, reading: Reading, gained: Speculation | None) -> None:
        """End the window, begin another, and book those whose requests are all settled."""
        window = self._windows[-1]
        window.gained = gained
        window.spoiled |= (
            last is None
            or max(last.load - last.own, reading.load - reading.own) > 0
            or reading.finished - last.finished > self.ended - last.ended
        )
        running = {request: told.route for request, told in self._requests.items() if not told.ordinal}
        self._windows.append(_Window(set(running), set(running.values())))
        if len(self._windows) > _MAX_WINDOWS:
            self._windows.popleft()
        while len(self._windows) > 1 and not self._windows[0].requests:
            self._book_window(self._windows.popleft())

    def _book_window(self, window: _Window) -> None:
        if window.gained and window.gained.drafts and len(window.routes) == 1 and not window.spoiled:
            (route,) = window.routes
            self._book(route, Sample(Source.ENGINE, window.gained))

    def _judge(self, ended: int) -> None:
        """Hold the estimates of requests that had ended by the reading before against the counters.

        An engine counts a step about when it sends its tokens: one reading more, and it surely has.
        """
        ripe = []
        while self._estimated and self._requests[self._estimated[0]].ordinal <= ended:
            ripe.append(self._estimated.popleft())
        for request in ripe:
            told = self._requests[request]
            if told.epoch == self._epoch and told.sample:
                self._claimed += told.sample.speculation.accepted
        if self._claimed:
            self.trusts_streams = believable(self._claimed, self._counted)
        for request in ripe:
            self._settle(request, self._requests[request].sample if self.trusts_streams else None)

    def _disbelieve(self) -> None:
        """Give up what cannot be held against the counters, which began anew."""
        while self._estimated:
            self._settle(self._estimated.popleft(), None)
        self._begin_epoch(self._epoch_at)

    def _begin_epoch(self, at: float) -> None:
        self._epoch, self._epoch_at = self._epoch + 1, at
        self._claimed = self._counted = 0.0

    def _settle(self, request: Hashable, sample: Sample | None) -> None:
        told = self._requests.pop(request)
        for window in self._windows:
            if request in window.requests:
                window.requests.discard(request)
                window.spoiled |= sample is not None
        if sample:
            self._book(told.route, sample)
