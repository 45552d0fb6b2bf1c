"""What a sweep measures next: a function of what was measured, so that it can be left and taken up again."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from gateway.policy.choose.gain import Z95
from gateway.tools.sweep.crossover import ENDS, contest, decide
from gateway.tools.sweep.sweep_values import Cell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gateway.tools.sweep.crossover import Contest, Outcome
    from gateway.tools.sweep.sweep_values import Change, Setting, Window

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


def next_cells(setting: Setting, windows: Sequence[Window], options: Options) -> list[Cell]:
    """Return the cells to measure now, the most wanted first; empty when the sweep is complete.

    Route by route and with rising load: first one window of each, then open loops, then repeats near the
    crossovers, a round at a time. A cell with an invalid window is asked for once more, then given up.
    Ask again after each window.
    """
    plans = [_Plan(setting, windows, options, route) for route in setting.routes]
    first = [plan.first() for plan in plans]
    repeats = [plan.repeats() for plan, cells in zip(plans, first, strict=True) if not cells]
    opened = [plan.opened() for plan in plans]
    return [cell for cells in (*first, *opened, *repeats) for cell in cells]


def expected(setting: Setting, options: Options) -> int:
    """Return how many windows a sweep takes at least: more where noise hides a crossover."""
    count = len(setting.loads)
    loads = min(count, 3 + max(0, count - 2).bit_length() - 1) if options.quick else count
    repeats = _FREEDOM if options.repeats_max > 1 else 0
    pools = [len(options.pools.get(route, setting.pools)) for route in setting.routes]
    return sum(used * (loads + len(options.rates)) + repeats * (used > 1) for used in pools)


class _Plan:
    """One route's part."""

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

    def first(self) -> list[Cell]:
        """The cells that were not yet measured at all."""
        grid = self._setting.loads
        if not self._options.quick:
            return self._wanted(grid)
        ends = sorted({grid[0], grid[len(grid) // 2], grid[-1]})
        if cells := self._wanted(ends):
            return cells
        found = self._contest()
        if found is None:
            return []
        seen = sorted({grid.index(window.cell.load) for window in self._windows if window.cell.load in grid})
        halves = [(left, (left + right) // 2, right) for left, right in pairwise(seen) if right - left > 1]
        middles = [grid[half[1]] for half in halves if _may_change(found, *(grid[at] for at in half))]
        return self._wanted([grid[at] for at in seen], found) or self._wanted(middles, found)

    def opened(self) -> list[Cell]:
        """The cells of open loops."""
        cells = [
            Cell(self._route, pool, self._setting.pools[pool].max_load, per_s=rate)
            for rate in self._options.rates
            for pool in self._pools
        ]
        return [cell for cell in cells if self._open(cell)]

    def repeats(self) -> list[Cell]:
        """The next round of repeats; only once all was measured."""
        found = self._contest() if self._options.repeats_max > 1 else None
        if found is None or len(found.pools) < 2:
            return []
        wanted = [
            cell
            for load in _contested(found, decide(found), self._setting.loads, self._share_done)
            for pool in _racing(found, load)
            if (cell := self._next(pool, load)) and cell.repeat < self._options.repeats_max
        ]
        round_ = min((cell.repeat for cell in wanted), default=0)
        return [cell for cell in wanted if cell.repeat == round_]

    def _wanted(self, loads: Sequence[int], found: Contest | None = None) -> list[Cell]:
        """Open cells at some loads; of the pools that may win there, once that is known."""
        return [
            cell
            for load in loads
            for pool in self._pools
            if load <= self._setting.pools[pool].max_load
            and self._open(cell := Cell(self._route, pool, load))
            and (found is None or pool in _racing(found, load))
        ]

    def _open(self, cell: Cell) -> bool:
        return cell not in self._done and self._tried[cell] < _TRIES

    def _share_done(self, load: int) -> float:
        """The share of a load's windows that were measured, of the pool that has the fewest."""
        counts = Counter(cell.pool for cell in self._done if cell.load == load and not cell.per_s)
        return min(counts.values(), default=0) / self._options.repeats_max

    def _next(self, pool: str, load: int) -> Cell | None:
        """The repeat that a pool's cells at a load come to; None where one was given up."""
        cell = Cell(self._route, pool, load)
        while cell in self._done:
            cell = Cell(self._route, pool, load, cell.repeat + 1)
        return cell if self._open(cell) else None

    def _contest(self) -> Contest | None:
        return contest(self._setting.pools, self._windows, [self._route])


def _may_change(found: Contest, left: int, middle: int, right: int) -> bool:
    """Whether the best depth differs between two loads, or may be another in their middle."""
    at = np.clip(np.searchsorted(found.loads, [left, middle, right]), 0, len(found.loads) - 1)
    best = [int(found.depths[found.mean[:, place].argmax(), place]) for place in at]
    return best[0] != best[2] or found.chances()[best[0]][at[1]] < _SURE


def _contested(
    found: Contest, outcome: Outcome, grid: Sequence[int], share_done: Callable[[int], float]
) -> list[int]:
    """The measured loads at which more windows are wanted."""
    wide = [change for change in outcome.changes if _steps(change, grid) > _STEPS]
    loads = {load for change in wide for load in _around(change, found.measured)}
    loads |= {
        load
        for load, depths in found.contenders.items()
        if len(depths) > 1 and not outcome.near(load) and _worthwhile(found, load, share_done(load))
    }
    if found.noise.freedom < _FREEDOM:
        near = {load for change in outcome.changes for load in _around(change, found.measured)}
        loads |= near or {min(found.measured, key=lambda load: _lead(found, load))}
    return sorted(loads)


def _steps(change: Change, grid: Sequence[int]) -> float:
    """Steps of the grid that a crossover's interval spans."""
    low, high = np.interp([change.low, change.high], grid, range(len(grid)))
    return float(high - low)


def _around(change: Change, measured: Sequence[int]) -> Iterator[int]:
    """The measured loads in a crossover's interval, and the ones next to it."""
    first = max((load for load in measured if load < change.low), default=measured[0])
    last = min((load for load in measured if load >= change.high), default=measured[-1])
    yield from (load for load in measured if first <= load <= last)


def _place(found: Contest, load: int) -> int:
    return int(np.searchsorted(found.loads, load))


def _ranking(found: Contest, load: int) -> list[int]:
    """The fastest pool at a load, and the fastest of another depth."""
    place = _place(found, load)
    order = np.argsort(-found.mean[:, place]).tolist()
    others = [pool for pool in order if found.depths[pool, place] != found.depths[order[0], place]]
    return [order[0], *others[:1]]


def _racing(found: Contest, load: int) -> list[str]:
    """The pools that may be the fastest at a load, and the one that comes next."""
    place = _place(found, load)
    wins = np.bincount(found.draws[:, :, place].argmax(axis=1), minlength=len(found.pools))
    racing = set(_ranking(found, load)) | set(np.flatnonzero(wins >= _HOPELESS * len(found.draws)).tolist())
    return [name for pool, name in enumerate(found.pools) if pool in racing]


def _lead(found: Contest, load: int) -> float:
    """By how much the fastest depth leads at a load: the logarithm of the ratio."""
    place = _place(found, load)
    first, *others = found.mean[_ranking(found, load), place].tolist()
    return float(first - others[0]) if others else float("inf")


def _worthwhile(found: Contest, load: int, done: float) -> bool:
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
