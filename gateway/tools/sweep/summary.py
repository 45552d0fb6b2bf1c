"""A route's windows as its plots and tables show them: by pool and load, valid ones apart from the others."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Literal

from gateway.policy.account.acceptance import added

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.model import Speculation
    from gateway.tools.sweep.sweep_values import Findings, Point, Results, Spread, Window

Time = Literal["request_s", "first_token_s", "token_s"]
Part = Literal["mean", "p50", "p95", "p99"]


class Summary:
    """One route of a sweep. An open loop's windows are kept out of everything but `open_loop`."""

    def __init__(self, results: Results, findings: Findings, route: str) -> None:
        """Take a sweep and what it says."""
        self.setting = results.setting
        self.route = route
        self.found = findings.routes.get(route)
        own = [window for window in results.windows if window.cell.route == route]
        self.open_loop = tuple(window for window in own if window.cell.per_s)
        self.windows = tuple(window for window in own if not window.cell.per_s)
        self.pools = by_depth(results, {window.cell.pool for window in self.windows})
        self._all = by_depth(results, {*results.setting.pools, *self.pools})
        self.loads = sorted({window.cell.load for window in self.windows})
        self._points = {
            (pool, point.load): point
            for pool, points in (self.found.points if self.found else {}).items()
            for point in points
        }

    @property
    def baseline(self) -> str | None:
        """The pool without speculation; None where there is none."""
        return next((pool for pool in self.pools if self._plain(pool)), None)

    def depth(self, pool: str) -> int:
        """The pool's depth, the deepest where its engines schedule their own."""
        known = self.setting.pools.get(pool)
        return known.depth if known else 0

    def place(self, pool: str) -> int:
        """Where a pool stands among the sweep's: 0 without speculation, the others from 1 on by depth."""
        drafting = [name for name in self._all if not self._plain(name)]
        return drafting.index(pool) + 1 if pool in drafting else 0

    def fixed(self, pool: str) -> bool:
        """Whether the pool's engines always run at one depth."""
        known = self.setting.pools.get(pool)
        return not (known and known.ranges)

    def label(self, pool: str) -> str:
        """What a reader calls a pool: its depth, and its name where that alone would not tell it."""
        if not self.fixed(pool):
            return f"{pool} (schedules itself)"
        depth = f"depth {self.depth(pool)}"
        same = [other for other in self.pools if self.fixed(other) and self.depth(other) == self.depth(pool)]
        return depth if len(same) < 2 else f"{depth} ({pool})"

    def point(self, pool: str, load: int) -> Point | None:
        """The curve's point; None without a valid window."""
        return self._points.get((pool, load))

    def points(self, pool: str) -> list[Point]:
        """The curve's points by load."""
        return [point for load in self.loads if (point := self.point(pool, load))]

    def best(self, load: int) -> str | None:
        """The pool with most tokens per second at a load; None where nothing valid was measured."""
        rates = {pool: point.rate for pool in self.pools if (point := self.point(pool, load))}
        return max(rates, key=rates.__getitem__, default=None)

    def speed_up(self, pool: str, load: int) -> float | None:
        """Tokens per second over the pool without speculation; None where one of them is missing."""
        point = self.point(pool, load)
        base = self.point(self.baseline, load) if self.baseline else None
        return point.rate / base.rate if point and base and base.rate else None

    def tried(self, pool: str, load: int) -> tuple[Window, ...]:
        """All windows of a pool at a load, invalid ones among them."""
        return tuple(w for w in self.windows if (w.cell.pool, w.cell.load) == (pool, load))

    def valid(self, pool: str, load: int | None = None) -> tuple[Window, ...]:
        """The valid windows of a pool, at one load or all."""
        return tuple(
            w for w in self.windows if w.valid and w.cell.pool == pool and load in (None, w.cell.load)
        )

    def time(self, pool: str, load: int, which: Time, part: Part) -> float | None:
        """Seconds, as the mean over the valid windows' figures; None where none has it."""
        spreads: list[Spread | None] = [getattr(window, which) for window in self.valid(pool, load)]
        figures = [float(getattr(spread, part)) for spread in spreads if spread]
        return fmean(figures) if figures else None

    def speculation(self, pool: str, load: int | None = None) -> Speculation | None:
        """What the valid windows drafted, summed; None where nothing was."""
        return added(w.speculation or w.told for w in self.valid(pool, load))

    def delivered(self, pool: str, load: int | None = None) -> float | None:
        """Tokens that a verification delivers to a request, mean over the valid windows; None as not told."""
        figures = [w.tokens_per_step for w in self.valid(pool, load) if w.tokens_per_step is not None]
        return fmean(figures) if figures else None

    def _plain(self, pool: str) -> bool:
        known = self.setting.pools.get(pool)
        return known is not None and not known.depth and not known.ranges


def routes(results: Results) -> list[str]:
    """Every route of a sweep, in its order; any that only its windows name follow."""
    return list(dict.fromkeys((*results.setting.routes, *(w.cell.route for w in results.windows))))


def by_depth(results: Results, names: Iterable[str]) -> tuple[str, ...]:
    """Sort pools by depth, those that schedule their own behind the others."""
    pools = results.setting.pools

    def order(name: str) -> tuple[bool, int, str]:
        pool = pools.get(name)
        return bool(pool and pool.ranges), pool.depth if pool else 0, name

    return tuple(sorted(names, key=order))
