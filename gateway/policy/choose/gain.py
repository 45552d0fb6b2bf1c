"""What one more request adds to an engine, and the load from which it had better wait.

A *curve* R gives the output tokens per second of ONE engine at each load, for one route on one pool, as a
sweep measures it. N / R(N) is then the time that one request among N takes for a token.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import mul, truediv
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    Ranges = Sequence[tuple[int, int, int]]

K = TypeVar("K")
V = TypeVar("V")

# Two-sided 95% of a normal distribution.
Z95 = 1.96
# Where a profile does not say how far its points may be off: the noise of a two-minute window.
_ASSUMED_ERROR = 0.05
_LEAST_ERROR = 1e-3
# Chi-square per degree of freedom up to which a fit stands: with six of them noise exceeds it once in 200.
_PLAUSIBLE = 3.1
# How far the line over a dip is bent: more than what counts as a tie, less than what changes a rate.
_TRACE = 0.01
# Mixes this close hold at the same load.
_MIX_STEPS = 16
# Of each pool: a MB or so where there are many routes.
_REMEMBERED = 1024


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement: at `load` requests, `rate` tokens per second with standard error `error`."""

    load: float
    rate: float
    error: float


class Curve:
    """One route on one pool, from a sweep's points `(load, tokens per second[, standard error])`.

    What is smooth is the time a request takes per token, N / R(N): a constant, a part that grows with the
    batch, and one that grows faster once verification fills the GPU. A polynomial of these three denoises
    best; where the points do not bear it out, N / R is taken to be straight between them.
    """

    def __init__(self, points: Iterable[Sequence[float]], breaks: Iterable[int] = ()) -> None:
        """Take a sweep's points.

        Args:
            points: at least one; any order.
            breaks: loads from which the engine itself runs at another depth: nothing is smooth across them.
        """
        self.points = tuple(
            sorted(
                (Point(p[0], p[1], _error(*p[1:])) for p in points),
                key=lambda point: point.load,
            )
        )
        self.breaks = tuple(breaks)
        self._loads = np.array([point.load for point in self.points], dtype=float)
        edges = [0, *np.searchsorted(self._loads, self.breaks), len(self.points)]
        self._pieces = [_Piece(self.points[left:right]) for left, right in pairwise(edges) if left < right]

    def rate(self, load: float) -> float:
        """Return R, output tokens per second of an engine with `load` requests, above 0.

        Beyond the last point it goes on falling if it fell, and never rises: that nobody has measured.
        """
        return float(self.rates(np.array([load], dtype=float))[0])

    def rates(self, loads: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return R at several loads; see rate."""
        last = self.points[-1].load
        starts = [piece.start for piece in self._pieces[1:]]
        piece_of = np.searchsorted(starts, loads, side="right")
        rates = np.choose(piece_of, [piece.rates(loads) for piece in self._pieces])
        end = self._pieces[-1].rates(np.array([last]))
        bounded: NDArray[np.float64] = np.where(loads <= last, rates, np.minimum(rates, end))
        return bounded

    def measured(self, load: float) -> Point:
        """Return the measurement at a load, linear between points; outside them the nearest."""
        rate = np.interp(load, self._loads, [point.rate for point in self.points])
        error = np.interp(load, self._loads, [point.error for point in self.points])
        return Point(load, float(rate), float(error))


@dataclass(frozen=True, slots=True)
class Crossover:
    """Where a route's schedule or profile stops favouring a pool's depth.

    Attributes:
        load: requests of one engine from which another depth wins; for a depth that is not left, where its
            reign begins.
        left: another depth does win from there on.
        eased: from this load on, an engine that is not left changes its depth by itself; 0 where none does.
        late: another depth wins at load 1.
    """

    load: int
    left: bool
    eased: int = 0
    late: bool = False


@dataclass(frozen=True, slots=True)
class Appraisal:
    """What an engine has to offer at its present load.

    Attributes:
        gains: by route, what one more request adds: tokens per second of the whole engine where the route has
            profiles, else a score by schedule; only gains of one route compare.
        cap: the load from which requests had better wait.
    """

    gains: tuple[float, ...]
    cap: int


class SpeedTable:
    """What is known of one pool's engines, route by route in the configuration's order."""

    def __init__(
        self,
        curves: Sequence[Curve | None],
        crossovers: Sequence[Crossover],
        max_load: int,
        weights: Sequence[float] | None = None,
    ) -> None:
        """Tabulate the curves.

        Args:
            curves: by route; None where the route goes by its schedule.
            crossovers: by route.
            max_load: the most requests one engine may have.
            weights: by route, what one of its tokens is worth; None where all are worth the same.
        """
        self._curves = curves
        self._crossovers = crossovers
        self.max_load = max_load
        self._slownesses = [_slownesses(curve, max_load + 1) if curve else None for curve in curves]
        self._profiled = any(self._slownesses)
        self._weights = weights or [1.0] * len(curves)
        self._crossing = [crossover.load for crossover in crossovers]
        # What was worked out is remembered in dicts: functools' caches of methods would keep a table that is
        # configured no more until the garbage collector finds it.
        self._holds: dict[tuple[int, ...], int] = {}
        # By schedule it is one number that tells: with many routes their mixes hardly come again.
        self._pressures: dict[float, tuple[float, ...]] = {}

    def appraise(self, own: Sequence[int], foreign: int, mix: Sequence[float]) -> Appraisal:
        """Appraise an engine; it takes 11 us with three routes, so callers remember what they were told.

        Args:
            own: this gateway's requests there, by route.
            foreign: what others sent it; taken to have our own mix.
            mix: this gateway's requests on all engines, by route, for an engine that has none of ours.
        """
        ours = sum(own)
        weights = own if ours else mix if any(mix) else [1] * len(own)
        load = min(ours + foreign, self.max_load)
        share = load / sum(weights)
        counts = [weight * share for weight in weights]
        crowding = sum(map(truediv, counts, self._crossing))
        gains = _remembered(self._pressures, crowding, self._by_schedule)
        if self._profiled:
            pairs = zip(self._gains(counts, load), gains, strict=True)
            gains = tuple([pressure if gain is None else gain for gain, pressure in pairs])
        return Appraisal(gains, self.cap(weights))

    def cap(self, mix: Sequence[float]) -> int:
        """Return the load from which requests had better wait, for an engine with some mix of routes."""
        if not self._profiled:
            return self.max_load
        total = sum(mix)
        weights = tuple(math.ceil(weight * _MIX_STEPS / total) for weight in mix)
        return _remembered(self._holds, weights, self._hold_from)

    def expected_rate(self, counts: Sequence[float]) -> float | None:
        """Return the tokens per second that the profiles promise for requests by route; None without them."""
        curves = [(count, curve) for count, curve in zip(counts, self._curves, strict=True) if count]
        load = sum(counts)
        slowness = 0.0
        for count, curve in curves:
            if curve is None:
                return None
            slowness += count * load / curve.rate(load)
        return load * load / slowness if load else 0.0

    def rate(self, counts: Sequence[float]) -> float:
        """Return what an engine with requests by route, all with curves, writes: its worth per second."""
        load = sum(counts)
        if not load:
            return 0.0
        at = max(1, min(round(load), self.max_load))
        slowness = sum(
            count * table[at] for count, table in zip(counts, self._slownesses, strict=True) if table
        )
        worth = sum(weight * count for weight, count in zip(self._weights, counts, strict=True))
        return load * worth / slowness

    def slownesses(self, route: int) -> Sequence[float] | None:
        """Return N / R of a route at loads N = 0, 1, ... max_load + 1, as the choice takes them."""
        return self._slownesses[route]

    @property
    def routes(self) -> int:
        """How many routes there are."""
        return len(self._curves)

    def profiled(self, route: int) -> bool:
        """Return whether a route has a curve here."""
        return self._curves[route] is not None

    def crossover(self, route: int) -> Crossover:
        """Return where a route leaves this pool."""
        return self._crossovers[route]

    def _gains(self, counts: Sequence[float], load: int) -> list[float | None]:
        """By route, R(N + 1) - R(N) of the engine as it is mixed; None for a route without a curve.

        Requests of one engine share its steps, so the times they take per token average, not their speeds:
        R = sum(w_q n_q) / mean(N / R_q) = N sum(w_q n_q) / sum(n_q N / R_q), with weights w.
        """
        known = [(count, table) for count, table in zip(counts, self._slownesses, strict=True) if table]
        before = sum([count * table[load] for count, table in known])
        after = sum([count * table[load + 1] for count, table in known])
        # A neighbour without a curve of its own is taken to be slowed as the route itself is.
        others = load - sum([count for count, _ in known])
        worth = sum(map(mul, self._weights, counts))
        gains: list[float | None] = []
        for weight, table in zip(self._weights, self._slownesses, strict=True):
            if not table:
                gains.append(None)
                continue
            rate = load * worth / (before + others * table[load]) if load else 0.0
            gains.append((load + 1) * (worth + weight) / (after + (others + 1) * table[load + 1]) - rate)
        return gains

    def _by_schedule(self, crowding: float) -> tuple[float, ...]:
        """By route, less the pressure of one more request: its load, 3 load^2 / crossover where there is one.

        The best splits of two simulated GPUs obey this law, whatever the route: a depth that will be left is
        filled first, up to a third of its crossover, and then ever more slowly. An engine that changes its
        depth by itself fares no worse than one that keeps it, and no worse than a plain one.

        Args:
            crowding: the engine's requests, each as a part of its own route's crossover.
        """
        pressures = []
        for crossover in self._crossovers:
            load = crossover.load * crowding + 1
            if crossover.left:
                pressures.append(-max(3 * load * load / crossover.load, float(crossover.late)))
            else:
                eased = crossover.eased
                pressures.append(-min(load, 3 * load * load / eased) if eased else -load)
        return tuple(pressures)

    def _hold_from(self, weights: tuple[int, ...]) -> int:
        """The load past a peak that is certain: from there on requests wait; else max_load."""
        present = [(weight, curve) for weight, curve in zip(weights, self._curves, strict=True) if weight]
        curves = [curve for _, curve in present if curve]
        total = sum(weights)
        if len(curves) < len(present):
            return self.max_load
        points = [
            _mixed([weight / total for weight, _ in present], curves, load)
            for load in sorted({point.load for curve in curves for point in curve.points})
        ]
        peak = max(points, key=lambda point: point.rate)
        certain = peak.rate - Z95 * peak.error
        upper = [(point.load, point.rate + Z95 * point.error) for point in points]
        last = max(index for index, (_, bound) in enumerate(upper) if bound >= certain)
        if last == len(upper) - 1:
            return self.max_load
        (left, high), (right, low) = upper[last], upper[last + 1]
        past = left + (right - left) * (high - certain) / (high - low)
        enough = next(point.load for point in points if point.rate >= 0.95 * peak.rate)
        return min(max(math.floor(past), math.ceil(enough)), self.max_load)


def _error(rate: float, error: float | None = None) -> float:
    """A point's standard error; none is so exact that it outweighs all others."""
    return _ASSUMED_ERROR * rate if error is None else max(error, _LEAST_ERROR * rate)


def depth_at(ranges: Ranges, load: int, depth: int) -> int:
    """Return the depth that ranges `[from, to, depth]` name for a load; gaps keep the one before, as in vLLM.

    Args:
        ranges: ascending; may be empty.
        load: requests on one engine.
        depth: what applies where no range does.
    """
    index = bisect_right(ranges, load, key=lambda entry: entry[0])
    return ranges[index - 1][2] if index else depth


def _remembered(known: dict[K, V], key: K, work: Callable[[K], V]) -> V:
    """Work a value out once; where too many are known, forget them."""
    value = known.get(key)
    if value is None:
        if len(known) >= _REMEMBERED:
            known.clear()
        value = known[key] = work(key)
    return value


def wins_by_schedule(schedule: Ranges, depths: Sequence[int]) -> list[bool]:
    """Return whether a schedule names a pool's depth, at load 1, 2, ...; empty where there is no schedule.

    Args:
        schedule: the route's.
        depths: the pool's depth at load 1, 2, ...
    """
    if not schedule:
        return []
    return [depth_at(schedule, load, depth) == depth for load, depth in enumerate(depths, start=1)]


def crossover_by_schedule(schedule: Ranges, depths: Sequence[int], max_load: int) -> Crossover:
    """Return where a schedule leaves a pool.

    Args:
        schedule: the route's; empty where it has none.
        depths: the pool's depth at load 1, 2, ... max_load.
        max_load: stands in where the schedule never leaves the pool.
    """
    wins = wins_by_schedule(schedule, depths)
    if not wins:
        return Crossover(max_load, left=False)
    if True not in wins:
        return Crossover(min(schedule[0][1] + 1, max_load), left=False, late=True)
    crossover = replace(_crossover(wins), late=not wins[0])
    changed = next((load for load, depth in enumerate(depths, start=1) if depth != depths[0]), None)
    return crossover if crossover.left or changed is None else replace(crossover, eased=changed)


def wins_by_curves(mine: Curve, others: Sequence[Curve], max_load: int) -> list[bool]:
    """Return whether one pool's curve is the best or as good, at load 1, 2, ... max_load."""
    loads = np.arange(1, max_load + 1, dtype=float)
    best = np.max([other.rates(loads) for other in others], axis=0) if others else np.zeros(max_load)
    wins: list[bool] = (mine.rates(loads) >= best).tolist()
    return wins


def crossover_by_curves(mine: Curve, others: Sequence[Curve], max_load: int) -> Crossover:
    """Return where other pools' curves overtake one pool's; see Crossover."""
    return _crossover(wins_by_curves(mine, others, max_load))


def spans(wins: Sequence[bool]) -> tuple[tuple[int, int], ...]:
    """Return the loads, from and to inclusive, of a depth that wins or does not at load 1, 2, ..."""
    edges = [load for load, (was, now) in enumerate(pairwise([False, *wins, False]), start=1) if was != now]
    return tuple((first, after - 1) for first, after in zip(edges[::2], edges[1::2], strict=True))


def _crossover(wins: Sequence[bool]) -> Crossover:
    """Where a depth that wins or does not at load 1, 2, ... first stops winning."""
    first = next((load for load, won in enumerate(wins, start=1) if won), len(wins) + 1)
    left = next((load for load in range(first, len(wins) + 1) if not wins[load - 1]), None)
    if left is not None:
        return Crossover(left, left=True)
    return Crossover(first if 1 < first <= len(wins) else len(wins), left=False)


def _mixed(shares: Sequence[float], curves: Sequence[Curve], load: float) -> Point:
    """A measurement under a mix: times per token average, independent errors add in squares."""
    points = [curve.measured(load) for curve in curves]
    times = [share * load / point.rate for share, point in zip(shares, points, strict=True)]
    rate = load / sum(times)
    errors = [time * point.error / point.rate for time, point in zip(times, points, strict=True)]
    return Point(load, rate, rate * math.hypot(*errors) / sum(times))


def _slownesses(curve: Curve, max_load: int) -> list[float]:
    """N / R at N = 0, 1, ... max_load, R made concave, lest its tail mislead the greedy."""
    loads = np.arange(max_load + 1, dtype=float)
    rates = np.append(0.0, curve.rates(loads[1:]))
    hull = _concave_majorant(list(zip(loads.tolist(), rates.tolist(), strict=True)))
    smooth = np.interp(loads, [load for load, _ in hull], [rate for _, rate in hull])
    for left, right in pairwise(hull):
        dips = any(left[0] < load < right[0] for load in curve.breaks) or any(
            point.rate + point.error < np.interp(point.load, loads, smooth)
            for point in curve.points
            if left[0] < point.load < right[0]
        )
        # Over a dip, as of an engine that changes its depth, two engines are best at its two ends: that the
        # most loaded wins there, the line that bridges it is bent down by a trace.
        if dips and _slope(left, right) > 0:
            inside = slice(int(left[0]), int(right[0]) + 1)
            bend = (loads[inside] - left[0]) * (right[0] - loads[inside]) / (right[0] - left[0]) ** 2
            smooth[inside] -= _TRACE * (right[1] - left[1]) * bend
    return [0.0, *(loads[1:] / smooth[1:]).tolist()]


class _Piece:
    """The part of a curve over which the engine keeps its depth."""

    def __init__(self, points: Sequence[Point]) -> None:
        self.start = points[0].load
        self._fit = _fitted(points)
        self._loads = [point.load for point in points]
        self._times = [point.load / point.rate for point in points]

    def rates(self, loads: NDArray[np.float64]) -> NDArray[np.float64]:
        if self._fit is not None:
            constant, linear, square = self._fit
            return loads / (constant + linear * loads + square * loads**2)
        times: NDArray[np.float64] = np.interp(loads, self._loads, self._times)
        return loads / times


def _fitted(points: Sequence[Point]) -> tuple[float, float, float] | None:
    """Fit N / R = a + b N + c N^2 with no factor below 0; None where the points do not bear it out.

    Least squares of the relative error, by trying which factors are 0; the fit stands while what remains is
    no more than the points' own errors explain (chi-square per degree of freedom).
    """
    loads = np.array([point.load for point in points])
    rates = np.array([point.rate for point in points])
    weights = np.array([point.rate / point.error for point in points])
    terms = np.stack([np.ones_like(loads), loads, loads**2], axis=1) * (rates / loads)[:, None]
    best, least = None, math.inf
    for powers in ([0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]):
        factors = np.linalg.lstsq(terms[:, powers] * weights[:, None], weights, rcond=None)[0]
        remains = float(np.sum(((terms[:, powers] @ factors - 1) * weights) ** 2))
        if remains < least and factors.min() >= 0:
            best, least = dict(zip(powers, factors.tolist(), strict=True)), remains
    freedom = len(points) - 3
    if best is None or freedom < 1 or least > _PLAUSIBLE * freedom:
        return None
    return best.get(0, 0.0), best.get(1, 0.0), best.get(2, 0.0)


def _concave_majorant(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The vertices of the least concave curve that no point lies above (Andrew's monotone chain)."""
    hull: list[tuple[float, float]] = []
    for x, y in points:
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], (x, y)):
            hull.pop()
        hull.append((x, y))
    return hull


def _slope(left: tuple[float, float], right: tuple[float, float]) -> float:
    return (right[1] - left[1]) / (right[0] - left[0])
