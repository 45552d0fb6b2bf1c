"""Which fleet serves a load best: how many engines at which depth, and which routes share them.

A load is a histogram of populations: requests in the system by route, in flight or waiting. The system is
taken to be closed: the same requests are there whatever the fleet. Then the most tokens per second is also
the least mean latency. What a fleet makes of a population is its best split between the engines, which the
gateway's choice comes near; engines past a peak that is certain hold, and what fits on none of them waits,
of every route the same part.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gateway.policy.choose.gain import Crossover, Curve, SpeedTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    # Engines of each kind.
    Fleet = tuple[int, ...]

# More engines than this are moved in groups.
_MOST_GROUPS = 8
# Up to so many compositions all are tried; beyond that, engines are exchanged while it helps.
_EXHAUSTIVE = 200
# So many ways to keep the busiest routes apart are tried, each on a kind of its own, and so many routes each
# on an engine of its own; the rest stays spread.
_WAYS, _APART = 64, 3
# Requests move by this share of the population at first, and at last.
_FIRST_STEP, _COARSE_STEP, _LAST_STEP = 1 / 4, 1 / 16, 1 / 128
# How finely mixes of routes are told apart where engines hold, by number of routes: it bounds a table.
_MIX_STEPS = {1: 16, 2: 16, 3: 16, 4: 8}
# Draws of the profiles' errors.
_DRAWS = 100
# A fleet is better where it is in so many of the draws, and by more than these figures are good for: what
# fleets make of a simulated day (bench/results/plan.json) is within 2% of them (standard deviation).
_SURE, TIE = 0.8, 0.02
_LEAST = 0.05
# Waiting less than this is rounding.
_A_REQUEST = 0.1
# No fleet is larger.
_MOST_ENGINES = 1024
# Times that requests without a place are taken out of a population: all routes' alike.
_ROUNDS = 4
# Routes with less of an engine's requests than this are passers-by.
_PRESENT = 0.1


@dataclass(frozen=True, slots=True)
class Kind:
    """A pool's engines: its name, and by route its curve; None where nobody measured it."""

    name: str
    curves: tuple[Curve | None, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """A histogram: shares of the time, which add up to 1, and requests in the system by route."""

    weights: Floats
    populations: Floats


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a fleet makes of a load.

    Attributes:
        fleet: engines by kind.
        rate: tokens per second of the whole fleet, each worth its route's weight; mean over the time.
        rates: the same for each population.
        waiting: for each population, requests that fit on no engine.
        kinds: of each group of engines that have the same requests.
        engines: how many are in the group.
        splits: by population, group and route, requests on all the group's engines.
    """

    fleet: Fleet
    rate: float
    rates: Floats
    waiting: Floats
    kinds: Ints
    engines: Ints
    splits: Floats


@dataclass(frozen=True, slots=True)
class Rival:
    """Another fleet beside the recommended one.

    Attributes:
        outcome: what it makes of the load.
        gain: of the recommended one over it, relative.
        low, high: 95% interval of the gain, by the profiles' errors.
        sure: share of the draws in which the recommended one is better.
    """

    outcome: Outcome
    gain: float
    low: float
    high: float
    sure: float

    @property
    def tied(self) -> bool:
        """Whether the two cannot be told apart."""
        return self.sure < _SURE or self.gain < TIE


@dataclass(frozen=True, slots=True)
class Band:
    """Populations of a size.

    Attributes:
        first, last: requests in the system.
        time: share of the time.
        rate: of the recommended fleet, tokens per second.
        best: the fleet that is best there.
        regret: what the recommended one lacks of that, relative.
        apart: what it gains there by keeping routes apart, over every engine having the same mix; relative.
        shared: the routes on its engines, and how many engines have them; most of the band's time.
    """

    first: int
    last: int
    time: float
    rate: float
    best: Fleet
    regret: float
    apart: float
    shared: tuple[tuple[int, int, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Size:
    """The best fleet of some size, and the share of the time in which requests wait for a place."""

    outcome: Outcome
    held: float


@dataclass(frozen=True, slots=True)
class Advice:
    """Which fleet to run.

    Attributes:
        chosen: the recommended one.
        best: the one with the highest figure; another one where a simpler fleet cannot be told from it.
        rivals: all others of this size that were valued, best first.
        compositions: how many there are.
        bands: by size of the population, ascending.
        sizes: one engine fewer, as many, one more.
        enough: the smallest fleet of one kind on which nothing waits; None where there is none.
        own: the figure of a fleet whose engines schedule their depth themselves, an estimate; None where a
            profile of one is among the kinds.
    """

    chosen: Outcome
    best: Outcome
    rivals: tuple[Rival, ...]
    compositions: int
    bands: tuple[Band, ...]
    sizes: tuple[Size, ...]
    enough: Fleet | None
    own: Outcome | None


class Market:
    """Kinds of engines, and what fleets of them make of loads."""

    def __init__(self, kinds: Sequence[Kind], max_load: int, worth: Sequence[float]) -> None:
        """Tabulate the curves.

        Args:
            kinds: at least one.
            max_load: the most requests one engine may have.
            worth: by route, what one of its tokens is worth.
        """
        self.kinds = tuple(kinds)
        self._most = max_load
        self._worth = np.array(worth, dtype=float)
        routes = len(worth)
        nowhere = [Crossover(max_load, left=False)] * routes
        self._tables = [SpeedTable(kind.curves, nowhere, max_load, worth) for kind in kinds]
        unknown = np.zeros(max_load + 2)
        self._times = np.array(
            [
                np.stack([table.slownesses(route) or unknown for route in range(routes)], axis=-1)
                for table in self._tables
            ]
        )
        self._may = np.array([[curve is not None for curve in kind.curves] for kind in kinds])
        self._steps = _MIX_STEPS.get(routes, 4)
        self._caps = np.zeros((len(kinds), (self._steps + 1) ** routes), dtype=np.int64)
        # What a request without a place costs: more than any place for it could, so that none waits in vain.
        self._dear = (
            2
            * max(point.rate for kind in kinds for curve in kind.curves if curve for point in curve.points)
            * float(self._worth.max())
        )

    def outcome(self, fleet: Fleet, load: Load) -> Outcome | None:
        """Return what a fleet makes of a load; None where a route of it has nowhere to go."""
        kinds, engines = _grouped(fleet)
        may = self._may[kinds]
        if not (may.any(axis=0) | ~load.populations.any(axis=0)).all():
            return None
        splits = self._split(kinds, engines, load.populations)
        served = load.populations.copy()
        for _ in range(_ROUNDS):
            _, waiting = self._values(kinds, splits / engines[:, None])
            share = (waiting * engines).sum(axis=-1) / np.maximum(served.sum(axis=-1), 1e-9)
            full = share > 1e-4
            if not full.any():
                break
            served[full] *= 1 - share[full, None]
            splits[full] = self._split(kinds, engines, served[full])
        return self._outcome(fleet, kinds, engines, splits, load)

    def _split(self, kinds: Ints, engines: Ints, populations: Floats) -> Floats:
        """The best split of populations: by population, group and route."""
        starts = list(self._starts(kinds, engines, populations))
        moves = np.eye(len(self._worth))[None]
        coarse = self._climbed(kinds, engines, np.concatenate(starts), moves, _FIRST_STEP, _COARSE_STEP)
        scores = self._score(kinds, engines, coarse).sum(axis=-1).reshape(len(starts), -1)
        ends = coarse.reshape(len(starts), *starts[0].shape)
        best = ends[scores.argmax(axis=0), np.arange(len(populations))]
        return self._climbed(kinds, engines, best, moves, _COARSE_STEP, _LAST_STEP)

    def alike(self, outcome: Outcome, load: Load) -> Floats:
        """Return a fleet's rates where every engine has the same mix of routes, by population."""
        kinds, engines = outcome.kinds, outcome.engines
        if not self._may[kinds].all():
            return outcome.rates
        served = outcome.splits.sum(axis=1)
        mixes = served / np.maximum(served.sum(axis=1, keepdims=True), 1e-9)
        even = next(self._starts(kinds, engines, served))
        splits = self._climbed(kinds, engines, even, mixes[:, None, :], _FIRST_STEP, _LAST_STEP)
        return self._outcome(outcome.fleet, kinds, engines, splits, load).rates

    def beside(self, kind: Kind) -> Market:
        """Return a market of another kind alone."""
        return Market([kind], self._most, self._worth.tolist())

    def redrawn(self, rng: np.random.Generator) -> Market:
        """Return a market whose curves are other than measured by their errors; engines hold as they did."""
        market = copy(self)
        market._times = self._times.copy()
        loads = np.arange(1.0, self._most + 2)
        for kind, found in enumerate(self.kinds):
            for route, curve in enumerate(found.curves):
                if curve:
                    ratio = curve.rates(loads) / _redrawn(curve, rng).rates(loads)
                    market._times[kind, 1:, route] *= ratio
        return market

    def rate(self, outcome: Outcome, load: Load) -> float:
        """Return the mean tokens per second of a fleet whose requests are split as in an outcome."""
        rates, _ = self._values(outcome.kinds, outcome.splits / outcome.engines[:, None])
        return float(load.weights @ (rates * outcome.engines).sum(axis=-1))

    def _outcome(self, fleet: Fleet, kinds: Ints, engines: Ints, splits: Floats, load: Load) -> Outcome:
        values, left = self._values(kinds, splits / engines[:, None])
        rates = (values * engines).sum(axis=-1)
        served = splits * (1 - left * engines / np.maximum(splits.sum(axis=-1), 1e-9))[..., None]
        waiting = load.populations.sum(axis=1) - served.sum(axis=(1, 2))
        return Outcome(fleet, float(load.weights @ rates), rates, waiting, kinds, engines, served)

    def _starts(self, kinds: Ints, engines: Ints, populations: Floats) -> Iterator[Floats]:
        """Splits to start from: all spread evenly, then the busiest routes each on a part of the fleet."""
        may = self._may[kinds]
        shares = may * engines[:, None]
        shares = shares / np.maximum(shares.sum(axis=0), 1)
        spread: Floats = populations[:, None, :] * shares
        yield spread
        busy = populations.sum(axis=0).argsort()[::-1].tolist()
        parts = [kinds == kind for kind in sorted(set(kinds.tolist()))]
        first = busy[: int(math.log(_WAYS, max(len(parts), 2)))]
        for way in itertools.product(parts, repeat=len(first)):
            yield from self._placed(spread, may, engines, first, way, populations)
        for order in itertools.permutations(busy[:_APART]):
            places = [place * len(kinds) // len(order) for place in range(len(order))]
            way = tuple(np.arange(len(kinds)) == place for place in places)
            yield from self._placed(spread, may, engines, order, way, populations)

    def _placed(
        self,
        spread: Floats,
        may: NDArray[np.bool_],
        engines: Ints,
        routes: Sequence[int],
        way: Sequence[NDArray[np.bool_]],
        populations: Floats,
    ) -> Iterator[Floats]:
        """The spread with some routes each on a part of the engines; nothing where one may not go there."""
        split = spread.copy()
        for route, part in zip(routes, way, strict=True):
            if not may[part, route].all():
                return
            share = part * engines
            split[:, :, route] = populations[:, route, None] * share / share.sum()
        yield split

    def _climbed(
        self, kinds: Ints, engines: Ints, splits: Floats, moves: Floats, first: float, last: float
    ) -> Floats:
        """Move requests from group to group, ever fewer at a time, while that pays.

        Args:
            kinds: by group.
            engines: by group.
            splits: by population, group and route.
            moves: by population, or the same for all, what may move at a time: requests by route, one in all.
            first: how many of these, as a share of the population, move at first.
            last: and at last.
        """
        splits = splits.copy()
        moves = np.broadcast_to(moves, (len(splits), *moves.shape[1:]))
        totals = splits.sum(axis=(1, 2))
        steps = totals * first
        scores = self._score(kinds, engines, splits)
        closed = ((moves[:, None, :, :] > 0) & ~self._may[kinds][None, :, None, :]).any(axis=-1)
        here = np.eye(len(kinds), dtype=bool)[None, :, :, None]
        active = np.flatnonzero(totals > 0)
        while len(active):
            now = splits[active][:, :, None, :]
            moved = steps[active, None, None, None] * moves[active][:, None, :, :]
            before = scores[active][:, :, None]
            less = self._score(kinds[:, None], engines[:, None], np.maximum(now - moved, 0.0)) - before
            more = self._score(kinds[:, None], engines[:, None], now + moved) - before
            less[~(now >= moved - 1e-9).all(axis=-1)] = -np.inf
            more[closed[active]] = -np.inf
            gains = np.where(here, -np.inf, less[:, :, None, :] + more[:, None, :, :])
            flat = gains.reshape(len(active), -1)
            chosen = flat.argmax(axis=1)
            pays = flat[np.arange(len(active)), chosen] > 1e-6 * self._dear
            source, target, move = np.unravel_index(chosen[pays], gains.shape[1:])
            rows = active[pays]
            amount = moved[pays, 0, move]
            splits[rows, source] = np.maximum(splits[rows, source] - amount, 0.0)
            splits[rows, target] += amount
            scores[rows] = self._score(kinds, engines, splits[rows])
            steps[active[~pays]] /= 2
            active = active[steps[active] >= totals[active] * last]
        return splits

    def _score(self, kinds: Ints, engines: Ints, splits: Floats) -> Floats:
        """What groups write, less what is lost by requests without a place."""
        rates, waiting = self._values(kinds, splits / engines[..., None])
        score: Floats = engines * (rates - self._dear * waiting)
        return score

    def _values(self, kinds: Ints, counts: Floats) -> tuple[Floats, Floats]:
        """What single engines with requests by route write, and how many of these wait.

        As Table.rate, between whole loads too; an engine with less than one request has one for a part of
        the time.
        """
        loads = counts.sum(axis=-1)
        mixes = counts / np.maximum(loads, 1e-9)[..., None]
        caps = self._capped(kinds, mixes)
        served = np.minimum(loads, caps)
        below = np.clip(np.floor(served).astype(np.int64), 1, self._most)
        part = np.clip(served - below, 0.0, 1.0)[..., None]
        times = self._times[kinds, below] * (1 - part) + self._times[kinds, below + 1] * part
        rates = served * (mixes @ self._worth) / np.maximum((mixes * times).sum(axis=-1), 1e-12)
        return rates, loads - served

    def _capped(self, kinds: Ints, mixes: Floats) -> Ints:
        """The loads from which engines with these mixes hold."""
        rounded = np.ceil(mixes * self._steps - 1e-9).astype(np.int64)
        base = self._steps + 1
        keys = rounded @ base ** np.arange(mixes.shape[-1])
        kinds = np.broadcast_to(kinds, keys.shape)
        caps: Ints = self._caps[kinds, keys]
        if not caps.all():
            unknown = set(zip(kinds[caps == 0].tolist(), keys[caps == 0].tolist(), strict=True))
            for kind, key in unknown:
                mix = [key // base**place % base for place in range(mixes.shape[-1])]
                self._caps[kind, key] = self._tables[kind].cap(mix) if any(mix) else self._most
            caps = self._caps[kinds, keys]
        return caps


def compositions(kinds: int, engines: int) -> Iterator[Fleet]:
    """Yield every way to have so many engines of so many kinds."""
    for bars in itertools.combinations(range(engines + kinds - 1), kinds - 1):
        edges = (-1, *bars, engines + kinds - 1)
        yield tuple(right - left - 1 for left, right in itertools.pairwise(edges))


def advise(market: Market, load: Load, engines: int, rng: np.random.Generator) -> Advice:
    """Recommend a fleet.

    Args:
        market: the kinds of engines there are; some fleet of them serves every route of the load.
        load: what it must serve; not always nothing.
        engines: how many there will be, at least 1.
        rng: draws the profiles' errors.

    Raises:
        ValueError: no fleet of this size serves every route of the load.
    """
    found = _valued(market, load, engines)
    if not found:
        raise ValueError(f"no fleet of {engines} serves every route")
    draws = [market.redrawn(rng) for _ in range(_DRAWS)]
    rates = {outcome.fleet: np.array([draw.rate(outcome, load) for draw in draws]) for outcome in found}
    tied = [outcome for outcome in found if _rival(found[0], outcome, rates).tied or outcome is found[0]]
    chosen = min(tied, key=lambda outcome: np.count_nonzero(outcome.fleet))
    schedule = own_schedule(market.kinds, load)
    own = market.beside(schedule).outcome((engines,), load) if schedule else None
    return Advice(
        chosen=chosen,
        best=found[0],
        rivals=tuple(_rival(chosen, outcome, rates) for outcome in found if outcome is not chosen),
        compositions=_ways(len(market.kinds), engines),
        bands=tuple(_bands(market, chosen, found, load)),
        sizes=tuple(_sizes(market, load, chosen)),
        enough=_enough(market, load),
        own=own,
    )


def own_schedule(kinds: Sequence[Kind], load: Load) -> Kind | None:
    """Return what engines would be that run at the best of the kinds' depths for each number of requests.

    An estimate: nothing is lost where they change their depth, and at each load all routes of an engine get
    the depth that is best for them together, each by its share of the load. None where that is always the
    same, where a kind schedules its depth itself, and where one lacks a curve that another one has.
    """
    routes = [route for route, count in enumerate(load.weights @ load.populations) if count]
    curves = [[kind.curves[route] for route in routes] for kind in kinds]
    known = [[curve for curve in row if curve and not curve.breaks] for row in curves]
    if any(len(row) < len(routes) for row in known):
        return None
    last = min(int(curve.points[-1].load) for row in known for curve in row)
    loads = np.arange(1.0, last + 1)
    rates = np.array([[curve.rates(loads) for curve in row] for row in known])
    shares = (load.weights @ load.populations)[routes]
    best = np.einsum("kra,r->ka", rates / rates.max(axis=0), shares).argmax(axis=0)
    breaks = [int(place) + 1 for place in np.flatnonzero(np.diff(best)) + 1]
    if not breaks:
        return None
    merged: list[Curve | None] = [None] * load.populations.shape[1]
    for place, route in enumerate(routes):
        measured = {int(point.load) for row in known for point in row[place].points if point.load <= last}
        at = sorted(measured.union(breaks, (change - 1 for change in breaks)))
        merged[route] = Curve(
            [
                (n, float(rates[best[n - 1], place, n - 1]), known[best[n - 1]][place].measured(n).error)
                for n in at
            ],
            breaks,
        )
    return Kind("own schedule", tuple(merged))


def _ways(kinds: int, engines: int) -> int:
    return math.comb(engines + kinds - 1, engines)


def _valued(market: Market, load: Load, engines: int) -> list[Outcome]:
    """What fleets of a size make of a load, the best first: all of them, or those that a search came by.

    The search starts from every fleet of one kind and from an even mix, and exchanges engines of the best, a
    quarter of them at a time and ever fewer, while that helps.
    """
    kinds = len(market.kinds)
    found: dict[Fleet, Outcome | None] = {}

    def value(fleet: Fleet) -> float:
        if fleet not in found:
            found[fleet] = market.outcome(fleet, load)
        outcome = found[fleet]
        return outcome.rate if outcome else -math.inf

    if _ways(kinds, engines) <= _EXHAUSTIVE:
        for fleet in compositions(kinds, engines):
            value(fleet)
    else:
        even, rest = divmod(engines, kinds)
        starts = [_alone(kind, kinds, engines) for kind in range(kinds)]
        best = max([*starts, tuple(even + (place < rest) for place in range(kinds))], key=value)
        step = max(1, engines // 4)
        while step:
            better = max(_exchanges(best, step), key=value, default=best)
            if value(better) > value(best):
                best = better
            else:
                step //= 2
    outcomes = [outcome for outcome in found.values() if outcome]
    return sorted(outcomes, key=lambda outcome: -outcome.rate)


def _exchanges(fleet: Fleet, step: int) -> Iterator[Fleet]:
    """Fleets that differ by engines of one kind replaced by another."""
    for source, target in itertools.permutations(range(len(fleet)), 2):
        if fleet[source] >= step:
            change = {source: -step, target: step}
            yield tuple(count + change.get(place, 0) for place, count in enumerate(fleet))


def _grouped(fleet: Fleet) -> tuple[Ints, Ints]:
    """A fleet as groups of equal engines: each by itself in a small one. Kinds and engines by group."""
    total = sum(fleet)
    kinds, engines = [], []
    for kind, count in enumerate(fleet):
        groups = count if total <= _MOST_GROUPS else min(count, max(1, round(_MOST_GROUPS * count / total)))
        kinds += [kind] * groups
        engines += [(count + place) // groups for place in range(groups)]
    return np.array(kinds), np.array(engines)


def _rival(mine: Outcome, other: Outcome, rates: Mapping[Fleet, Floats]) -> Rival:
    ratios = rates[mine.fleet] / rates[other.fleet] - 1
    low, high = np.quantile(ratios, (0.025, 0.975)).tolist()
    return Rival(other, mine.rate / other.rate - 1, low, high, float((ratios > 0).mean()))


def _bands(market: Market, chosen: Outcome, found: Sequence[Outcome], load: Load) -> Iterator[Band]:
    """Populations by the powers of two of their size, each against the fleet that is best there."""
    totals = load.populations.sum(axis=1)
    powers = np.floor(np.log2(np.maximum(np.round(totals), 1)))
    alike = market.alike(chosen, load)
    for power in np.unique(powers[totals > 0]):
        here = (powers == power) & (totals > 0)
        weights = np.where(here, load.weights, 0.0)
        time = float(weights.sum())
        best = max(found, key=lambda outcome: float(weights @ outcome.rates))
        mine = float(weights @ chosen.rates)
        yield Band(
            first=round(totals[here].min()),
            last=round(totals[here].max()),
            time=time,
            rate=mine / time,
            best=best.fleet,
            regret=1 - mine / float(weights @ best.rates),
            apart=mine / float(weights @ alike) - 1,
            shared=_shared(chosen, int(np.argmax(weights * totals))),
        )


def _shared(outcome: Outcome, population: int) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """Kind, engines and their routes, of a population's split."""
    found: dict[tuple[int, tuple[int, ...]], int] = {}
    for kind, engines, counts in zip(
        outcome.kinds.tolist(), outcome.engines.tolist(), outcome.splits[population], strict=True
    ):
        routes = tuple(np.flatnonzero(counts > _PRESENT * counts.sum()).tolist())
        found[kind, routes] = found.get((kind, routes), 0) + engines
    return tuple((kind, engines, routes) for (kind, routes), engines in found.items())


def _sizes(market: Market, load: Load, chosen: Outcome) -> Iterator[Size]:
    """The chosen fleet and the best with an engine fewer or more: of its like, and of those of one kind."""
    kinds, engines = len(market.kinds), sum(chosen.fleet)
    for size in (engines - 1, engines, engines + 1) if engines > 1 else (engines, engines + 1):
        fleets = {_alone(kind, kinds, size) for kind in range(kinds)}
        for kind in range(kinds):
            changed = (*chosen.fleet[:kind], chosen.fleet[kind] + size - engines, *chosen.fleet[kind + 1 :])
            fleets |= {changed} if min(changed) >= 0 else set()
        found = [market.outcome(fleet, load) for fleet in sorted(fleets)] if size != engines else [chosen]
        best = max((outcome for outcome in found if outcome), key=lambda outcome: outcome.rate, default=None)
        if best:
            yield Size(best, float(load.weights @ (best.waiting > _A_REQUEST)))


def _enough(market: Market, load: Load) -> Fleet | None:
    """The smallest fleet of one kind on which nothing waits."""
    kinds = len(market.kinds)
    # Where the largest populations, of all routes and of each, have places, all have.
    peaks = {int(np.argmax(load.populations.sum(axis=1))), *load.populations.argmax(axis=0).tolist()}
    most = Load(np.ones(len(peaks)), load.populations[sorted(peaks)])
    fleets = []
    for kind in range(kinds):

        def suffices(engines: int, kind: int = kind) -> bool:
            outcome = market.outcome(_alone(kind, kinds, engines), most)
            return outcome is not None and bool(outcome.waiting.max() <= _A_REQUEST)

        engines = bisect_left(range(1, _MOST_ENGINES + 1), True, key=suffices) + 1
        if engines <= _MOST_ENGINES:
            fleets.append(_alone(kind, kinds, engines))
    return min(fleets, key=sum, default=None)


def _alone(kind: int, kinds: int, engines: int) -> Fleet:
    return tuple(engines * (place == kind) for place in range(kinds))


def _redrawn(curve: Curve, rng: np.random.Generator) -> Curve:
    """A curve that might as well have been measured."""
    points = []
    for point in curve.points:
        rate = point.rate + point.error * float(rng.standard_normal())
        points.append((point.load, max(rate, _LEAST * point.rate), point.error))
    return Curve(points, curve.breaks)
