"""The figures of speculation that count, summed by route, pool and source."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gateway.model import Speculation
from gateway.policy.account.acceptance import Recent, Source, difference

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gateway.config import Config
    from gateway.policy.account.acceptance import Sample

# Figures of the last minutes are kept up to so many seconds.
_FOLD_S = 1.0


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
