"""What a sweep measures next, and about how long that takes.

Both follow from what was measured so far, so that a sweep can be left and taken up again.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from gateway.policy.choose.gain import Z95
from gateway.tools.sweep.crossover import ENDS, compare, decide
from gateway.tools.sweep.sweep_values import SweepCell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gateway.model import Engine
    from gateway.tools.sweep.crossover import Comparison, DepthSchedule
    from gateway.tools.sweep.measure import Timing
    from gateway.tools.sweep.sweep_values import DepthChange, Setting, Window

# How many times a cell is measured whose windows are invalid.
_TRIES = 2
# An interval over more steps of the grid than this asks for more windows.
_STEPS = 2.0
# Repeats beyond the first window that the noise of a route is seen from, at least.
_FREEDOM = 4
# A depth that wins in fewer draws than this is out of the race at a load.
_HOPELESS = 0.025
# Bisection goes on between two loads while the winner in the middle is less sure than this.
_SURE = 0.9
# Differences within this either way are none.
_TIE = 0.02
# Repeats end where those that are left would tell a winner only if they were so many standard deviations off:
# once in ten times they are.
_SLIM = 1.28
# Of a window's length: a warm-up and a drain that nobody has measured yet.
_WARM_GUESS, _DRAIN_GUESS = 0.5, 0.25


@dataclass(frozen=True)
class Options:
    """How much to measure.

    Attributes:
        quick: bisect around the crossover instead of measuring the whole grid.
        repeats_max: windows of one kind, at most.
        rates: requests a second of open loops, after the closed ones.
        pools: by route, those it may use; a route that is not named may use all.
    """

    quick: bool = False
    repeats_max: int = 8
    rates: tuple[float, ...] = ()
    pools: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What a sweep is to measure, and on what.

    Attributes:
        setting: of all windows, earlier runs' too.
        options: how much; its `pools` names the routes to measure, each with the pools it may use.
        engines: those at hand; cells of pools without any are left out.
        timing: of one cell.
        scales: how many times as fast as ours an engine's clock runs, by name; 1 where it is not told.
        patience_s: how long an engine that is not well may take to come back; a restart takes minutes.
    """

    setting: Setting
    options: Options
    engines: Sequence[Engine]
    timing: Timing
    scales: Mapping[str, float] = field(default_factory=dict)
    patience_s: float = 600.0

    @property
    def cell_s(self) -> float:
        """About how long a cell takes before one has been measured, in the engine's seconds."""
        warm_s = min(self.timing.max_warmup_s, _WARM_GUESS * self.timing.window_s)
        return warm_s + self.timing.window_s * (1 + _DRAIN_GUESS)

    def our_cell_s(self, pool: str) -> float:
        """The same in our seconds, by the clock of the pool's slowest engine."""
        scales = [self.scales.get(engine.name, 1.0) for engine in self.engines if engine.pool == pool]
        return self.cell_s / min(scales, default=1.0)


def due(plan: SweepPlan, windows: Iterable[Window], route: str) -> list[SweepCell]:
    """Return a route's cells that are still to be measured, by what is known now.

    Args:
        plan: asks for them.
        windows: valid ones, and the lost ones of this run.
        route: one of `plan.options.pools`.
    """
    own = [window for window in windows if window.cell.route == route]
    allowed = plan.options.pools[route]
    at_hand = {engine.pool for engine in plan.engines}.intersection(allowed)
    # Pools of earlier runs tell where a crossover is, though their engines may have gone.
    known = (*allowed, *(window.cell.pool for window in own))
    cells = next_cells(plan.setting, own, replace(plan.options, pools={route: known}), route)
    return [cell for cell in cells if cell.pool in at_hand]


def ordered(cells: Iterable[SweepCell]) -> list[SweepCell]:
    """Return cells of all routes, the most wanted first: the grid, open loops, then repeats."""
    return sorted(cells, key=lambda cell: (cell.repeat > 0, cell.per_s > 0))


def remaining_s(cells: Iterable[SweepCell], engines: Mapping[str, int], cell_s: Mapping[str, float]) -> float:
    """Return how long cells take: pools are at work side by side, their engines share their cells.

    Args:
        cells: to be measured.
        engines: by pool, how many there are.
        cell_s: by pool, how long one takes.
    """
    counts = Counter(cell.pool for cell in cells)
    return max(
        (-(-counts[pool] // n) * cell_s[pool] for pool, n in engines.items() if pool in counts), default=0.0
    )


def expected(setting: Setting, options: Options) -> int:
    """Return how many windows a sweep takes at least: more where noise hides a crossover."""
    count = len(setting.loads)
    loads = min(count, 3 + max(0, count - 2).bit_length() - 1) if options.quick else count
    repeats = _FREEDOM if options.repeats_max > 1 else 0
    pools = [len(options.pools.get(route, setting.pools)) for route in setting.routes]
    return sum(used * (loads + len(options.rates)) + repeats * (used > 1) for used in pools)


def next_cells(setting: Setting, windows: Sequence[Window], options: Options, route: str) -> list[SweepCell]:
    """Return a route's cells to measure now, the most wanted first; empty when the route is complete.

    With rising load: first one window of each, then open loops, then repeats near the crossovers, a round at
    a time. A cell with an invalid window is asked for once more, then given up. Ask again after each window.
    """
    agenda = _RouteAgenda(setting, windows, options, route)
    first = agenda.first()
    return [*first, *agenda.opened(), *([] if first else agenda.repeats())]


class _RouteAgenda:
    def __init__(self, setting: Setting, windows: Sequence[Window], options: Options, route: str) -> None:
        self._setting = setting
        self._options = options
        self._route = route
        self._pools = [name for name in setting.pools if name in options.pools.get(route, setting.pools)]
        self._windows = [
            window for window in windows if window.cell.route == route and window.cell.pool in self._pools
        ]
        self._tried = Counter(window.cell for window in self._windows)
        self._done = {window.cell for window in self._windows if window.valid}

    def first(self) -> list[SweepCell]:
        """The cells that were not yet measured at all."""
        grid = self._setting.loads
        if not self._options.quick:
            return self._wanted(grid)
        ends = sorted({grid[0], grid[len(grid) // 2], grid[-1]})
        if cells := self._wanted(ends):
            return cells
        found = self._compare()
        if found is None:
            return []
        seen = sorted({grid.index(window.cell.load) for window in self._windows if window.cell.load in grid})
        halves = [(left, (left + right) // 2, right) for left, right in pairwise(seen) if right - left > 1]
        middles = [grid[half[1]] for half in halves if _may_change(found, *(grid[at] for at in half))]
        return self._wanted([grid[at] for at in seen], found) or self._wanted(middles, found)

    def opened(self) -> list[SweepCell]:
        """The cells of open loops."""
        cells = [
            SweepCell(self._route, pool, self._setting.pools[pool].max_load, per_s=rate)
            for rate in self._options.rates
            for pool in self._pools
        ]
        return [cell for cell in cells if self._is_open(cell)]

    def repeats(self) -> list[SweepCell]:
        """The next round of repeats; only once all was measured."""
        found = self._compare() if self._options.repeats_max > 1 else None
        if found is None or len(found.pools) < 2:
            return []
        wanted = [
            cell
            for load in _contested(found, decide(found), self._setting.loads, self._share_done)
            for pool in _racing(found, load)
            if (cell := self._next(pool, load)) and cell.repeat < self._options.repeats_max
        ]
        next_round = min((cell.repeat for cell in wanted), default=0)
        return [cell for cell in wanted if cell.repeat == next_round]

    def _wanted(self, loads: Sequence[int], found: Comparison | None = None) -> list[SweepCell]:
        """Open cells at some loads; of the pools that may win there, once that is known."""
        return [
            cell
            for load in loads
            for pool in self._pools
            if load <= self._setting.pools[pool].max_load
            and self._is_open(cell := SweepCell(self._route, pool, load))
            and (found is None or pool in _racing(found, load))
        ]

    def _is_open(self, cell: SweepCell) -> bool:
        return cell not in self._done and self._tried[cell] < _TRIES

    def _share_done(self, load: int) -> float:
        """The share of a load's windows that were measured, of the pool that has the fewest."""
        counts = Counter(cell.pool for cell in self._done if cell.load == load and not cell.per_s)
        return min(counts.values(), default=0) / self._options.repeats_max

    def _next(self, pool: str, load: int) -> SweepCell | None:
        """The repeat that a pool's cells at a load come to; None where one was given up."""
        cell = SweepCell(self._route, pool, load)
        while cell in self._done:
            cell = SweepCell(self._route, pool, load, cell.repeat + 1)
        return cell if self._is_open(cell) else None

    def _compare(self) -> Comparison | None:
        return compare(self._setting.pools, self._windows, [self._route])


def _may_change(found: Comparison, left: int, middle: int, right: int) -> bool:
    """Whether the best depth differs between two loads, or may be another in their middle."""
    at = np.clip(np.searchsorted(found.loads, [left, middle, right]), 0, len(found.loads) - 1)
    best = [int(found.depths[found.mean[:, place].argmax(), place]) for place in at]
    return best[0] != best[2] or found.chances()[best[0]][at[1]] < _SURE


def _contested(
    found: Comparison, schedule: DepthSchedule, grid: Sequence[int], share_done: Callable[[int], float]
) -> list[int]:
    """The measured loads at which more windows are wanted."""
    wide = [change for change in schedule.changes if _steps(change, grid) > _STEPS]
    loads = {load for change in wide for load in _around(change, found.measured)}
    loads |= {
        load
        for load, depths in found.contenders.items()
        if len(depths) > 1 and not schedule.near(load) and _worthwhile(found, load, share_done(load))
    }
    if found.noise.freedom < _FREEDOM:
        near = {load for change in schedule.changes for load in _around(change, found.measured)}
        loads |= near or {min(found.measured, key=lambda load: _lead(found, load))}
    return sorted(loads)


def _steps(change: DepthChange, grid: Sequence[int]) -> float:
    """Steps of the grid that a crossover's interval spans."""
    low, high = np.interp([change.low, change.high], grid, range(len(grid)))
    return float(high - low)


def _around(change: DepthChange, measured: Sequence[int]) -> Iterator[int]:
    """The measured loads in a crossover's interval, and the ones next to it."""
    first = max((load for load in measured if load < change.low), default=measured[0])
    last = min((load for load in measured if load >= change.high), default=measured[-1])
    yield from (load for load in measured if first <= load <= last)


def _place(found: Comparison, load: int) -> int:
    return int(np.searchsorted(found.loads, load))


def _ranking(found: Comparison, load: int) -> list[int]:
    """The fastest pool at a load, and the fastest of another depth."""
    place = _place(found, load)
    order = np.argsort(-found.mean[:, place]).tolist()
    others = [pool for pool in order if found.depths[pool, place] != found.depths[order[0], place]]
    return [order[0], *others[:1]]


def _racing(found: Comparison, load: int) -> list[str]:
    """The pools that may be the fastest at a load, and the one that comes next."""
    place = _place(found, load)
    wins = np.bincount(found.draws[:, :, place].argmax(axis=1), minlength=len(found.pools))
    racing = set(_ranking(found, load)) | set(np.flatnonzero(wins >= _HOPELESS * len(found.draws)).tolist())
    return [name for pool, name in enumerate(found.pools) if pool in racing]


def _lead(found: Comparison, load: int) -> float:
    """By how much the fastest depth leads at a load: the logarithm of the ratio."""
    place = _place(found, load)
    first, *others = found.mean[_ranking(found, load), place].tolist()
    return float(first - others[0]) if others else float("inf")


def _worthwhile(found: Comparison, load: int, done: float) -> bool:
    """Whether a winner at a load would be worth something, and the windows that are left may well tell one.

    The difference as it will be known at last is normal about the one known now, and must then be beyond an
    error that falls with the root of the windows.
    """
    pair = found.draws[:, _ranking(found, load), _place(found, load)]
    low, lead, high = np.percentile(pair[:, 0] - pair[:, -1], (ENDS[0], 50, ENDS[1]))
    error = (high - low) / (2 * Z95)
    missing = Z95 * error * math.sqrt(done) - lead
    tied = low >= -_TIE and high <= _TIE
    return bool(not tied and missing <= _SLIM * error * math.sqrt(max(0.0, 1 - done)))
