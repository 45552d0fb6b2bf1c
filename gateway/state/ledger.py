"""The accounts of speculation: one for each engine, and the sums of all figures that count.

An engine's account is made of what its requests tell, and of what its own counters make of that. It hears of
requests and readings in the order they come, and has no clock.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import TYPE_CHECKING, NamedTuple

from gateway.model import Speculation, SpeculationFault
from gateway.policy.account.acceptance import (
    Recent,
    Sample,
    Source,
    difference,
    gain,
    is_step_by_step,
    total,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gateway.config import Config
    from gateway.model import Reading

# So long holds what the counters said of a route's streams; so long an estimate waits for that; so long is
# the longest stretch they are asked about: over a longer one a change would not show.
_VERDICT_S, _ESTIMATE_S, _STRETCH_S = 300.0, 30.0, 60.0
# Who else uses an engine shows when their request ends, if not before: so long the growth is held back.
_HELD_BACK_S = 30.0
# Readings in a row that the engine may have ended more or fewer requests than we saw end.
_UNEVEN = 3
# What waits is bounded; beyond, the oldest is given up.
_MAX_WAITING = 4096
# Figures of the last minutes are kept up to so many seconds.
_FOLD_S = 1.0


class AnswerKind(IntEnum):
    """What a request's answer shows of its steps.

    Attributes:
        WHOLE: nothing: it is not streamed.
        STREAM: each chunk is a step.
        OPAQUE: a stream whose chunks are not.
    """

    WHOLE = auto()
    STREAM = auto()
    OPAQUE = auto()


class RequestTraits(NamedTuple):
    """What matters of a request to the time it runs in; `estimable`: an estimate of it may count."""

    route: str
    kind: AnswerKind
    estimable: bool


@dataclass(slots=True, eq=False)
class LedgerEntry:
    """A request.

    Attributes:
        traits: what it is.
        began_at: the reading before its beginning.
        steps: chunks so far.
        ended_at: the reading before its end.
        sample: the estimate that waits to be judged.
    """

    traits: RequestTraits
    began_at: float = 0.0
    steps: int = 0
    ended_at: float = 0.0
    sample: Sample | None = None


@dataclass(slots=True)
class _StreamsOnly:
    """A stretch of readings in which nothing ran but streams of ours: their chunks, and the engine's drafts.

    Attributes:
        since: when it began.
        chunks: that had come by then.
        apart: by how many steps the counts may have been apart then.
        routes: whose streams there were.
        drafts: what the engine's counter grew by.
    """

    since: float = 0.0
    chunks: int = 0
    apart: int = 0
    routes: set[str] = field(default_factory=set)
    drafts: float = 0.0


@dataclass(slots=True)
class _OneRouteOnly:
    """A stretch of readings in which one route had the engine.

    Attributes:
        ahead: how many requests more than we the engine had ended when it began.
        routes: whose it is, one at most.
        growth: what the counters grew by.
        uneven: readings in a row at which it was not as far ahead as that.
    """

    ahead: float = 0.0
    routes: set[str] = field(default_factory=set)
    growth: Speculation | None = None
    uneven: int = 0


@dataclass(slots=True)
class _PendingGrowth:
    """Growth that is a route's, unless another user of the engine shows yet."""

    at: float
    route: str
    growth: Speculation


class SpeculationLedger:
    """One engine's account.

    For one request the best figure counts: what the engine told of it, at once; else the estimate from its
    stream, where chunks are steps; else, of an engine that tells nothing, what its counters grew by while
    one route alone had it.

    Attributes:
        sums: what the counters grew by since they were first read, over restarts; None while the engine has
            not been seen to speculate.
        recent: the last minutes of it.
        merges_chunks: its streams' chunks are not its steps, as far as known.
        chunks: of its streams, but the first of each.
    """

    def __init__(
        self,
        pool: str,
        book: Callable[[str, str, Sample], bool],
        reject: Callable[[SpeculationFault], None],
    ) -> None:
        """Open an account.

        Args:
            pool: the engine's.
            book: called with route, pool and each figure that counts for them; returns whether it is of the
                pool's depth.
            reject: called where an answer's figures are not.
        """
        self.sums: Speculation | None = None
        self.recent = Recent()
        self.merges_chunks = False
        self.chunks = 0
        self._pool = pool
        self._book = book
        self._reject = reject
        self._tells: bool | None = None
        self._counted_at = 0.0
        self._closed = False
        self._last: Reading | None = None
        self._complete = 0
        # What runs now, has run since the last reading, and has ended: an engine works on for a moment after
        # that, and writes its page a moment before it is read.
        self._running: Counter[RequestTraits] = Counter()
        self._seen: set[RequestTraits] = set()
        self._ended: Counter[RequestTraits] = Counter()
        self._estimates: deque[LedgerEntry] = deque()
        self._borne_out: dict[str, float] = {}
        self._streams_only = _StreamsOnly()
        self._one_route = _OneRouteOnly()
        self._pending: deque[_PendingGrowth] = deque()

    def request_sent(self, route: str, kind: AnswerKind) -> LedgerEntry:
        """Note that a request is sent."""
        traits = RequestTraits(route, kind, kind is AnswerKind.STREAM and not self.merges_chunks)
        self._running[traits] += 1
        self._seen.add(traits)
        return LedgerEntry(traits, self._last.at if self._last else 0.0)

    def mark_uncountable(self, entry: LedgerEntry) -> None:
        """Note that the chunks of a stream are not its steps after all."""
        self._running[entry.traits] -= 1
        entry.traits = RequestTraits(entry.traits.route, AnswerKind.OPAQUE, estimable=False)
        self._running[entry.traits] += 1
        self._seen.add(entry.traits)

    def count_step(self, entry: LedgerEntry) -> None:
        """Note a chunk of a stream; the first is the prompt's step, and has no drafts."""
        entry.steps += 1
        if entry.steps > 1:
            self.chunks += 1

    def request_ended(self, entry: LedgerEntry, sample: Sample | None, *, complete: bool) -> None:
        """Note that a request has ended.

        Args:
            entry: which.
            sample: what it told; None where that is nothing.
            complete: with an answer, and all of it.
        """
        self._running[entry.traits] -= 1
        self._ended[entry.traits] += 1
        self._complete += complete
        if sample and sample.source is Source.REQUEST:
            self._tells = True
            self._pending.clear()
            # An answer without a draft tells nothing either: until then this one's beginning may have been
            # booked by the counters, and counts.
            route = entry.traits.route
            if entry.began_at >= self._counted_at and not self._book(route, self._pool, sample):
                self._reject(SpeculationFault.POOL_DEPTH)
            return
        if complete and self._tells is None:
            self._tells = False
        if sample and entry.traits.estimable:
            entry.sample, entry.ended_at = sample, self._last.at if self._last else 0.0
            self._estimates.append(entry)
            if self._closed:
                self._settle_estimates()
            elif len(self._estimates) > _MAX_WAITING:
                self._estimates.popleft()

    def mark_merged(self) -> None:
        """Note that a chunk carried several steps."""
        self.merges_chunks = True
        self._borne_out.clear()
        self._estimates.clear()

    def confirms_steps(self, route: str) -> bool:
        """Whether the counters have lately shown that the chunks of a route's streams are steps."""
        return route in self._borne_out

    def close(self) -> None:
        """Judge what is left by what is known: there are no readings to come."""
        self._closed = True
        self._settle_estimates()

    def record_reading(self, reading: Reading) -> None:
        """Take over a reading of the engine's counters."""
        last, self._last = self._last, reading
        running = Counter({key: count for key, count in self._running.items() if count})
        seen, ended = self._seen, self._ended
        self._seen, self._ended = {*running, *ended}, Counter()
        growth = None
        if last and reading.finished >= last.finished and reading.generation_tokens >= last.generation_tokens:
            growth = gain(last.speculation, reading.speculation)
        if growth is None:
            self._tells = None  # it may have been started anew, with other options
        if reading.speculation and self.sums is None:
            self.sums = Speculation(0.0, 0.0, 0.0)
        if growth and self.sums:
            self.sums, self.recent = total(self.sums, growth), self.recent.after(growth, reading.at)
        if last is None or max(last.load - last.own, reading.load - reading.own) > 0:
            growth = None  # others use it too
            self._pending.clear()
        # The engine counted at some moment of the reading, and a step of each request may be on its way.
        apart = max(0, self.chunks - reading.chunks) + (running.total() or ended.total())
        self._judge_chunks(seen, growth, apart, reading.at)
        self._judge_growth(seen, growth, reading)

    def _judge_chunks(
        self, seen: set[RequestTraits], growth: Speculation | None, apart: int, at: float
    ) -> None:
        """Hold a stretch's chunks against its drafts, once there are enough; judge the estimates by that."""
        stretch = self._streams_only
        if growth is None or any(traits.kind is not AnswerKind.STREAM for traits in seen):
            self._streams_only = _StreamsOnly(at, self.chunks, apart)
        else:
            stretch.routes |= {traits.route for traits in seen}
            stretch.drafts += growth.drafts
            chunks = self.chunks - stretch.chunks
            found = is_step_by_step(chunks, stretch.drafts, apart=stretch.apart + apart)
            if found:
                self.merges_chunks = False
                self._borne_out |= dict.fromkeys(stretch.routes, at)
                self._settle_estimates()
            elif found is False:
                self.mark_merged()
            # Where the engine has come to rest, what follows is judged by itself.
            if found is False or (found and not apart) or at - stretch.since > _STRETCH_S:
                self._streams_only = _StreamsOnly(at, self.chunks, apart)
        for route in [route for route, since in self._borne_out.items() if at - since > _VERDICT_S]:
            del self._borne_out[route]
        self._settle_estimates(ended_by=at - _ESTIMATE_S)

    def _settle_estimates(self, ended_by: float = math.inf) -> None:
        """Count the estimates of streams that have ended by then and are borne out, and give up the rest."""
        while self._estimates and self._estimates[0].ended_at <= ended_by:
            entry = self._estimates.popleft()
            if entry.sample and self.confirms_steps(entry.traits.route):
                self._book(entry.traits.route, self._pool, entry.sample)

    def _judge_growth(self, seen: set[RequestTraits], growth: Speculation | None, reading: Reading) -> None:
        """Add to what the counters grew by while one route had the engine; count it if nobody else shows.

        A request that others sent between two readings shows by its end: the engine has then ended more
        than we saw end, and not only for the moment that an answer takes to arrive.
        """
        alone, ahead = self._one_route, reading.finished - self._complete
        routes = {traits.route for traits in seen}
        counted = self._tells or any(traits.estimable for traits in seen)
        if growth is None or counted or len(alone.routes | routes) > 1:
            self._one_route = _OneRouteOnly(ahead)
        elif growth.drafts and not routes:
            self._drop_growth(ahead)
        else:
            alone.routes |= routes
            alone.growth = total(alone.growth, growth)
            alone.uneven = alone.uneven + 1 if ahead != alone.ahead else 0
            if alone.uneven >= _UNEVEN:
                self._drop_growth(ahead)
            elif not alone.uneven:
                if alone.routes and alone.growth.drafts:
                    self._pending.append(_PendingGrowth(reading.at, alone.routes.pop(), alone.growth))
                self._one_route = _OneRouteOnly(ahead)
        if len(self._pending) > _MAX_WAITING:
            self._pending.popleft()
        while self._tells is False and self._pending and reading.at - self._pending[0].at >= _HELD_BACK_S:
            done = self._pending.popleft()
            self._counted_at = done.at
            # Where it is not of the pool's depth, the engine's `mismatch` tells.
            self._book(done.route, self._pool, Sample(Source.ENGINE, done.growth))

    def _drop_growth(self, ahead: float) -> None:
        """Give up what may be another's."""
        self._pending.clear()
        self._one_route = _OneRouteOnly(ahead)


class SpeculationTally:
    """Sums of one route, pool and source.

    Attributes:
        drafts: in all, as are the next three.
        accepted: accepted tokens.
        draft_tokens: 0 where they are not known.
        positions: accepted tokens by draft position.
        recent: the last minutes of it, as of the last `fold`.
    """

    def __init__(self, depth: int = 0) -> None:
        self.drafts = self.accepted = self.draft_tokens = 0.0
        self.positions = [0.0] * depth
        self.recent = Recent()
        self._folded = Speculation(0.0, 0.0, 0.0)

    def add(self, speculation: Speculation) -> None:
        """Add a figure."""
        self.drafts += speculation.drafts
        self.accepted += speculation.accepted
        self.draft_tokens += speculation.draft_tokens or 0.0
        if len(self.positions) < len(speculation.accepted_per_position):
            self.positions += [0.0] * (len(speculation.accepted_per_position) - len(self.positions))
        for position, accepted in enumerate(speculation.accepted_per_position):
            self.positions[position] += accepted

    def fold(self, now: float) -> None:
        """Bring `recent` up to date."""
        if self.drafts > self._folded.drafts:
            sums = Speculation(self.drafts, self.accepted, self.draft_tokens or None, tuple(self.positions))
            self.recent = self.recent.after(difference(sums, self._folded), now)
            self._folded = sums


class SpeculationTallies:
    """All sums; those of routes and pools that have gone are kept, since counters do not fall.

    Attributes:
        by_key: by route, pool and source.
    """

    def __init__(self) -> None:
        self.by_key: dict[tuple[str, str, Source], SpeculationTally] = {}
        self._listener: Callable[[str, str, Sample], None] | None = None
        self._depths: Mapping[str, int] = {}
        self._folded_at = -math.inf

    def configure(self, config: Config) -> None:
        """Take over which pools speculate, how deep, and for which routes."""
        self._depths = {name: pool.depth for name, pool in config.pools.items()}
        for route in config.routes:
            for pool in config.pools_of(route):
                if depth := self._depths[pool]:
                    for source in Source:
                        positions = 0 if source is Source.STREAM else depth
                        self.by_key.setdefault((route, pool, source), SpeculationTally(positions))

    def listen(self, listener: Callable[[str, str, Sample], None]) -> None:
        """Have a listener called with route, pool and sample of each figure that counts."""
        self._listener = listener

    def book(self, route: str, pool: str, sample: Sample) -> bool:
        """Count a figure, unless it is of another depth than its pool's; tell whether it is counted."""
        positions = len(sample.speculation.accepted_per_position)
        if positions and positions != self._depths.get(pool, positions):
            return False
        key = route, pool, sample.source
        if key not in self.by_key:
            self.by_key[key] = SpeculationTally()
        self.by_key[key].add(sample.speculation)
        if self._listener:
            self._listener(route, pool, sample)
        return True

    def fold_if_due(self, now: float) -> None:
        """Bring the last minutes' figures up to date, if that was not done just now."""
        if now - self._folded_at >= _FOLD_S:
            self.fold(now)

    def fold(self, now: float) -> None:
        """Bring the last minutes' figures up to date."""
        self._folded_at = now
        for tally in self.by_key.values():
            tally.fold(now)

    def recent(self, route: str, now: float) -> dict[tuple[str, Source], Recent]:
        """Return the last minutes of a route, by pool and source, where there was a draft in them."""
        return {
            (pool, source): tally.recent
            for (of, pool, source), tally in self.by_key.items()
            if of == route and tally.recent.drafts(now) >= 1
        }
