"""One engine's acceptance: what its requests tell of it, and how far the engine's own counters bear that out.

A part of the state: told of requests and readings in the order they come, and without a clock.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.model import Speculation
from gateway.policy.acceptance import Sample, Source, believable, gain, total

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.model import Reading

# Streams are held against the counters over about this time; over a longer one a change would not show.
_EPOCH_S = 300.0
# What waits is bounded: readings that wait for requests to end, and estimates that wait for readings.
_MAX_WINDOWS = 1024
_MAX_ESTIMATES = 4096


@dataclass(slots=True, eq=False)
class Entry:
    """A request.

    Attributes:
        route: its route.
        epoch: the epoch it began in.
        first: the window it began in.
        last: the window it ended in.
        ordinal: its place among those that have ended.
        sample: the estimate that waits to be believed.
    """

    route: str
    epoch: int
    first: int
    last: int = 0
    ordinal: int = 0
    sample: Sample | None = None


@dataclass(slots=True)
class _Window:
    """The time between two readings.

    Attributes:
        routes: those that had requests in it.
        open: how many of the requests that began in it are not settled.
        counted_from: how many that count by themselves began in it.
        counted_to: how many of them ended in it.
        shared: requests of others ran in it.
        gained: what the counters grew by; None until it is over, and where that is not known.
    """

    routes: set[str] = field(default_factory=set)
    open: int = 0
    counted_from: int = 0
    counted_to: int = 0
    shared: bool = False
    gained: Speculation | None = None


class Ledger:
    """One engine's account.

    For one request the best figure counts: what the engine told of it, at once; else the estimate from its
    stream, once the counters bear such estimates out; else its part in what the counters grew by while its
    route alone had the engine.

    Attributes:
        ended: requests that have ended, in all.
        sums: what the counters grew by since they were first read, over restarts; None where the engine does
            not speculate.
        streams_told_true: whether the counters bear the estimates out; None while that is not known.
    """

    def __init__(self, book: Callable[[str, Sample], None]) -> None:
        """Open an account; `book` is called with a route and each figure that counts for it."""
        self.ended = 0
        self.sums: Speculation | None = None
        self.streams_told_true: bool | None = None
        self._book = book
        self._running: Counter[str] = Counter()
        self._estimates: deque[Entry] = deque()
        self._windows: deque[_Window] = deque((_Window(),))
        self._closed = self._counting = 0
        self._last: Reading | None = None
        self._epoch, self._epoch_at = 0, 0.0
        self._claimed = self._counted = 0.0

    def began(self, route: str) -> Entry:
        """Note that a request has been sent."""
        self._running[route] += 1
        window = self._windows[-1]
        window.open += 1
        window.routes.add(route)
        return Entry(route, self._epoch, self._number)

    def finished(self, entry: Entry, sample: Sample | None) -> None:
        """Note that a request has ended, and what it told; None where it broke off or tells nothing."""
        self.ended += 1
        self._running[entry.route] -= 1
        entry.last = self._number
        if sample is None or sample.source is Source.REQUEST:
            self._settle(entry, sample)
            return
        entry.sample, entry.ordinal = sample, self.ended
        self._estimates.append(entry)
        if len(self._estimates) > _MAX_ESTIMATES:
            self._settle(self._estimates.popleft(), None)

    @property
    def _number(self) -> int:
        """The present window's."""
        return self._closed + len(self._windows) - 1

    def read(self, reading: Reading) -> None:
        """Take over a reading of the engine's counters."""
        last, self._last = self._last, reading
        now, before = reading.speculation, last.speculation if last else None
        gained = gain(before, now) if before and now else None
        if now is None:
            self.sums = None
        elif gained and self.sums:
            self.sums = total(self.sums, gained)
        else:
            self.sums = self.sums or Speculation(0.0, 0.0, 0.0)
        if last and gained:
            self._judge(last.ended, gained.accepted)
        else:  # what cannot be held against the counters is given up
            while self._estimates:
                self._settle(self._estimates.popleft(), None)
        if gained is None or reading.at - self._epoch_at > _EPOCH_S:
            self._epoch, self._epoch_at = self._epoch + 1, reading.at
            self._claimed = self._counted = 0.0
        self._turn(last, reading, gained)

    def _judge(self, ended: int, accepted: float) -> None:
        """Hold the estimates of requests that had ended by the last reading against the counters.

        An engine counts a step at about the time it sends its tokens: by one reading more it surely has.
        Where that one makes the difference, nothing is decided yet.
        """
        ripe = list(itertools.takewhile(lambda entry: entry.ordinal <= ended, self._estimates))
        claims = [
            entry.sample.speculation.accepted
            for entry in ripe
            if entry.sample
            and entry.epoch == self._epoch  # else a part of it is not in the sum of the counters
        ]
        before, self._counted = self._counted, self._counted + accepted
        if claims:
            claimed = self._claimed + sum(claims)
            if believable(claimed, before):
                self.streams_told_true = True
            elif not believable(claimed, self._counted):
                self.streams_told_true = False
            else:
                return
            self._claimed = claimed
        for entry in ripe:
            self._estimates.popleft()
            self._settle(entry, entry.sample if self.streams_told_true else None)

    def _turn(self, last: Reading | None, reading: Reading, gained: Speculation | None) -> None:
        """End the window and begin another; book those whose requests are all settled."""
        window = self._windows[-1]
        window.gained = gained
        window.shared = (
            last is None
            or max(last.load - last.own, reading.load - reading.own) > 0
            or reading.finished - last.finished > self.ended - last.ended
        )
        self._windows.append(_Window({route for route, count in self._running.items() if count}))
        if len(self._windows) > _MAX_WINDOWS:
            self._close()
        while len(self._windows) > 1 and not self._windows[0].open:
            self._close()

    def _close(self) -> None:
        """Book the first window, unless others had a part in it, or requests that count by themselves."""
        window = self._windows.popleft()
        self._closed += 1
        self._counting += window.counted_from
        alone = len(window.routes) == 1 and not (window.shared or window.open or self._counting)
        self._counting -= window.counted_to
        if alone and window.gained and window.gained.drafts:
            (route,) = window.routes
            self._book(route, Sample(Source.ENGINE, window.gained))

    def _settle(self, entry: Entry, sample: Sample | None) -> None:
        """Decide what a request counts by itself: by this, or not."""
        if entry.first >= self._closed:
            self._windows[entry.first - self._closed].open -= 1
        if sample:
            if entry.last >= self._closed:
                self._windows[max(entry.first - self._closed, 0)].counted_from += 1
                self._windows[entry.last - self._closed].counted_to += 1
            self._book(entry.route, sample)
