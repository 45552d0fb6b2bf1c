"""One route as its plots and tables show it: figures by pool and load, of the valid windows alone."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Literal

from gateway.policy.account.acceptance import added

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.model import Speculation
    from gateway.tools.sweep.sweep_values import DeeperDraft, Findings, MeasuredPoint, Results, Spread, Window

TimeName = Literal["request_s", "first_token_s", "token_s"]
SpreadPart = Literal["mean", "p50", "p95", "p99"]


class RouteSummary:
    """One route of a sweep. Windows of an open loop are in `open_loop` only.

    Attributes:
        name: the route's.
        setting: the sweep's.
        found: what the findings say of the route; None where they say nothing.
        windows: of the closed loop, invalid ones too.
        open_loop: the other windows.
        pools: those with windows, by depth.
        loads: those with windows, ascending.
    """

    def __init__(self, results: Results, findings: Findings, route: str) -> None:
        self.setting = results.setting
        self.name = route
        self.found = findings.routes.get(route)
        own = [window for window in results.windows if window.cell.route == route]
        self.open_loop = tuple(window for window in own if window.cell.per_s)
        self.windows = tuple(window for window in own if not window.cell.per_s)
        self.pools = by_depth(results, {window.cell.pool for window in self.windows})
        self.loads = sorted({window.cell.load for window in self.windows})
        every = by_depth(results, {*results.setting.pools, *self.pools})
        self._speculating = [pool for pool in every if not self._is_plain(pool)]
        self._points = {
            (pool, point.load): point
            for pool, points in (self.found.points if self.found else {}).items()
            for point in points
        }
        self._deeper = {
            ((one.shallow, one.deep), one.load): one for one in (self.found.deeper if self.found else ())
        }

    @property
    def baseline(self) -> str | None:
        """The pool without speculation; None where there is none."""
        return next((pool for pool in self.pools if self._is_plain(pool)), None)

    @property
    def drafting(self) -> list[str]:
        """The pools whose valid windows drafted something."""
        return [pool for pool in self.pools if self.speculation(pool)]

    def depth(self, pool: str) -> int:
        """The pool's depth, the deepest where its engines schedule their own."""
        known = self.setting.pools.get(pool)
        return known.depth if known else 0

    def place(self, pool: str) -> int:
        """The pool's place in the sweep: 0 without speculation, the others from 1 on by depth."""
        return self._speculating.index(pool) + 1 if pool in self._speculating else 0

    def fixed(self, pool: str) -> bool:
        """Whether the pool's engines always run at one depth."""
        known = self.setting.pools.get(pool)
        return not (known and known.ranges)

    def label(self, pool: str) -> str:
        """What a reader calls a pool: its depth, and its name where several pools have that depth."""
        if not self.fixed(pool):
            return f"{pool} (schedules itself)"
        depth = f"depth {self.depth(pool)}"
        same = [other for other in self.pools if self.fixed(other) and self.depth(other) == self.depth(pool)]
        return depth if len(same) < 2 else f"{depth} ({pool})"

    def point(self, pool: str, load: int) -> MeasuredPoint | None:
        """The curve's point; None without a valid window."""
        return self._points.get((pool, load))

    def points(self, pool: str) -> list[MeasuredPoint]:
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

    def absent(self, pool: str, load: int) -> str:
        """What stands in a table where there is no figure: all windows were invalid, or there was none."""
        return "invalid" if self.tried(pool, load) and not self.valid(pool, load) else "-"

    def time(self, pool: str, load: int, which: TimeName, part: SpreadPart) -> float | None:
        """Seconds, as the mean over the valid windows' figures; None where none has it."""
        spreads: list[Spread | None] = [getattr(window, which) for window in self.valid(pool, load)]
        figures = [float(getattr(spread, part)) for spread in spreads if spread]
        return fmean(figures) if figures else None

    def has_times(self, which: TimeName) -> bool:
        """Whether any valid window tells them."""
        return any(self.time(pool, load, which, "mean") for pool in self.pools for load in self.loads)

    def speculation(self, pool: str, load: int | None = None) -> Speculation | None:
        """What the valid windows drafted, summed; None where nothing was."""
        return added(w.speculation or w.told for w in self.valid(pool, load))

    def delivered(self, pool: str, load: int | None = None) -> float | None:
        """Tokens that a verification delivers to a request, mean over the valid windows; None if unknown."""
        figures = [w.tokens_per_step for w in self.valid(pool, load) if w.tokens_per_step is not None]
        return fmean(figures) if figures else None

    @property
    def depth_pairs(self) -> list[tuple[int, int]]:
        """Neighbouring depths, shallow and deep, that were compared at some load."""
        return sorted({pair for pair, _ in self._deeper})

    def deeper(self, pair: tuple[int, int], load: int) -> DeeperDraft | None:
        """How two neighbouring depths compare at a load; None where they were not compared there."""
        return self._deeper.get((pair, load))

    def accepted_beyond(self, pair: tuple[int, int]) -> str:
        """The share of the deeper one's drafts accepted at each position that the shallower one lacks."""
        shares = [one.accepted for (of, _), one in self._deeper.items() if of == pair]
        means = [fmean(position) for position in zip(*shares, strict=False)]
        return ", ".join(f"{pair[0] + 1 + place}: {share:.2f}" for place, share in enumerate(means))

    def _is_plain(self, pool: str) -> bool:
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
