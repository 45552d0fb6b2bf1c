"""An engine's speed from a sweep's windows: raw points, their noise, and smooth curves through them.

A curve is drawn many times over, each time as it might be given the points: a parametric bootstrap. A truth
is made up, measured with noise at the same loads, and smoothed as the real points are; by what that misses
its truth, the real estimate may be off. So an interval holds the noise, what smoothing bends, and what lies
between the loads. (Matheron's rule for a Gaussian process; Wilson et al., "Efficiently sampling functions
from Gaussian process posteriors", 2020.)
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from gateway.tools.sweep.sweep_values import MeasuredPoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from gateway.tools.sweep.sweep_values import SweptPool, Window

    Floats = NDArray[np.float64]

# The noise of a two-minute window, relative, where nothing was repeated and windows tell no error of their
# own; how many times that error it is taken to be where they do; and the least that any window has.
ASSUMED_NOISE = 0.05
_UNSEEN = 2.0
_LEAST_NOISE = 1e-3
# How the time per token may bend over the logarithm of the load. An engine whose time is a + bN, or that
# saturates, bends within the first pair; the second is for what no smooth curve follows, such as a batch size
# that a kernel likes.
_BEND, _BEND_WIDTH = 0.5, 2.0
_KINK, _KINK_WIDTH = 0.01, 0.7
# Of what curves may be made of, the parts below this share of the largest show nowhere.
_NEGLIGIBLE = 1e-8
# A draw's noise is at most so many times what was seen, however few the repeats.
_MOST_SCALE = 10.0


@dataclass(frozen=True)
class Noise:
    """How windows of one kind differ.

    Attributes:
        deviation: standard deviation of one window's rate, relative; assumed where `freedom` is 0.
        freedom: degrees of freedom of that, repeats beyond the first of each kind.
    """

    deviation: float
    freedom: int

    @property
    def seen(self) -> float | None:
        """The deviation, where it was measured."""
        return self.deviation if self.freedom else None


@dataclass(frozen=True)
class CurveDraws:
    """A pool's curve at some loads: the logarithm of tokens per second.

    Attributes:
        mean: the estimate, by load.
        draws: as it may be; a row each.
    """

    mean: Floats
    draws: Floats


def usable(windows: Iterable[Window], route: str) -> dict[tuple[str, int], list[Window]]:
    """Return a route's windows that curves are made of, by pool and load: the valid ones of a closed loop."""
    found: dict[tuple[str, int], list[Window]] = defaultdict(list)
    for window in windows:
        cell = window.cell
        if cell.route == route and window.valid and not cell.per_s and window.rate > 0:
            found[cell.pool, cell.load].append(window)
    return dict(sorted(found.items()))


def noise_of(groups: Iterable[Sequence[Window]]) -> Noise:
    """Return the noise of repeated windows, pooled over all pools and loads."""
    squares, freedom = 0.0, 0
    for windows in groups:
        rates = np.array([window.rate for window in windows])
        squares += float(np.sum((rates / rates.mean() - 1) ** 2))
        freedom += len(rates) - 1
    return Noise(math.sqrt(squares / freedom), freedom) if freedom else Noise(ASSUMED_NOISE, 0)


def points_of(windows: Iterable[Window], route: str) -> dict[str, tuple[MeasuredPoint, ...]]:
    """Return the raw points of a route's curves, by pool, loads ascending.

    A point's standard error is by the noise that repeats show over the whole route, or that a window tells of
    itself where that is more: one window cannot know how the next will differ. Without repeats it is taken to
    be twice what the window tells, or 5% where it tells nothing.
    """
    groups = usable(windows, route)
    noise = noise_of(groups.values())
    points: dict[str, list[MeasuredPoint]] = defaultdict(list)
    for (pool, load), same in groups.items():
        rate = sum(window.rate for window in same) / len(same)
        variances = [_deviation(window, noise) ** 2 for window in same]
        points[pool].append(
            MeasuredPoint(load, rate, rate * math.sqrt(sum(variances)) / len(same), len(same))
        )
    return {pool: tuple(found) for pool, found in points.items()}


def _deviation(window: Window, noise: Noise) -> float:
    """Standard deviation of windows like this one, relative."""
    own = window.stderr / window.rate
    if not noise.freedom:
        return max(_UNSEEN * own, _LEAST_NOISE) if own else noise.deviation
    return max(noise.deviation, own, _LEAST_NOISE)


def scales(noise: Noise, draws: int, rng: np.random.Generator) -> Floats:
    """Draw factors by which the true noise may exceed the measured one: few repeats leave it uncertain."""
    if not noise.freedom:
        return np.ones(draws)
    drawn: Floats = np.sqrt(noise.freedom / rng.chisquare(noise.freedom, draws))
    return np.minimum(drawn, _MOST_SCALE)


def drawn(
    points: Sequence[MeasuredPoint], pool: SweptPool, loads: Floats, scale: Floats, rng: np.random.Generator
) -> CurveDraws:
    """Smooth a pool's points, and draw what else the curve may be.

    Args:
        points: at least one.
        pool: its own schedule tells where the curve may jump.
        loads: where to know it; every point's load among them.
        scale: by draw, how many times the points' errors the noise is.
        rng: a generator with a seed.
    """
    at = np.searchsorted(loads, [point.load for point in points])
    times = np.log([point.load / point.rate for point in points])
    errors = np.array([point.stderr / point.rate for point in points])
    basis = _basis(tuple(loads.tolist()), tuple(first for first, _, _ in pool.ranges))
    weights = np.linalg.solve(basis[at] @ basis[at].T + np.diag(errors**2), basis[at] @ basis.T).T
    truths = rng.standard_normal((len(scale), basis.shape[1])) @ basis.T
    measured = truths[:, at] + scale[:, None] * errors * rng.standard_normal((len(scale), len(points)))
    level = times.mean()
    mean = np.log(loads) - level - weights @ (times - level)
    return CurveDraws(mean, mean + truths - measured @ weights.T)


@lru_cache(maxsize=64)
def _basis(loads: tuple[float, ...], starts: tuple[int, ...]) -> Floats:
    """Curves, a column each; the log of the time per token is taken for a sum of them, normally distributed.

    Args:
        loads: where to know them.
        starts: loads from which an engine with a schedule of its own runs at another depth.
    """
    place = np.log(loads)
    gap = np.abs(place[:, None] - place)
    piece = np.searchsorted(starts, loads, side="right")
    bends = _BEND**2 * np.exp(-((gap / _BEND_WIDTH) ** 2) / 2)
    near = math.sqrt(3) / _KINK_WIDTH * gap
    kinks = _KINK**2 * (1 + near) * np.exp(-near)
    slope = place - place.mean()
    covariance = 1 + np.outer(slope, slope) + (piece[:, None] == piece) * (bends + kinks)
    values, vectors = np.linalg.eigh(covariance)
    kept = values > _NEGLIGIBLE * values[-1]
    basis: Floats = vectors[:, kept] * np.sqrt(values[kept])
    return basis
