"""What a fleet of engines makes of a load: its tokens per second, and which requests go to which engine.

A load is a histogram of populations: requests in the system by route, in flight or waiting. The system is
taken to be closed: the same requests are there whatever the fleet. Then the most tokens per second is also
the least mean latency. What a fleet makes of a population is its best split between the engines, which the
gateway's choice comes near. Engines past a peak that is certain take no more; requests without a place wait,
the same part of every route.
"""

from __future__ import annotations

import itertools
import math
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gateway.policy.choose.gain import Crossover, Curve, SpeedTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    # Engines of each kind.
    Composition = tuple[int, ...]

# More engines than this are moved in groups.
_MOST_GROUPS = 8
# So many ways to keep the busiest routes apart are tried, each on a kind of its own, and so many routes each
# on an engine of its own; the rest stays spread.
_WAYS, _APART = 64, 3
# Requests move by this share of the population at first, and at last.
_FIRST_STEP, _COARSE_STEP, _LAST_STEP = 1 / 4, 1 / 16, 1 / 128
# How finely mixes of routes are told apart where engines are full, by number of routes: it bounds a table.
_MIX_STEPS = {1: 16, 2: 16, 3: 16, 4: 8}
# A resampled point keeps at least this share of its rate.
_LEAST = 0.05
# Times that requests without a place are taken out of a population, the same part of every route.
_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class EngineKind:
    """A pool's engines: its name, and by route its curve; None where nobody measured it."""

    name: str
    curves: tuple[Curve | None, ...]


@dataclass(frozen=True, slots=True)
class LoadHistogram:
    """A histogram: shares of the time, which add up to 1, and requests in the system by route."""

    weights: Floats
    populations: Floats


@dataclass(frozen=True, slots=True)
class FleetOutcome:
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

    fleet: Composition
    rate: float
    rates: Floats
    waiting: Floats
    kinds: Ints
    engines: Ints
    splits: Floats


class FleetModel:
    """Kinds of engines, and what fleets of them make of loads."""

    def __init__(self, kinds: Sequence[EngineKind], max_load: int, worth: Sequence[float]) -> None:
        """Tabulate the curves.

        Args:
            kinds: at least one.
            max_load: the most requests one engine may have.
            worth: by route, what one of its tokens is worth.
        """
        self.kinds = tuple(kinds)
        self._max_load = max_load
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
        self._allowed = np.array([[curve is not None for curve in kind.curves] for kind in kinds])
        self._steps = _MIX_STEPS.get(routes, 4)
        self._caps = np.zeros((len(kinds), (self._steps + 1) ** routes), dtype=np.int64)
        # What a request without a place costs: more than any place for it could, so that none waits in vain.
        self._waiting_cost = (
            2
            * max(point.rate for kind in kinds for curve in kind.curves if curve for point in curve.points)
            * float(self._worth.max())
        )

    def outcome(self, fleet: Composition, load: LoadHistogram) -> FleetOutcome | None:
        """Return what a fleet makes of a load; None where a route of it has nowhere to go."""
        kinds, engines = _grouped(fleet)
        may = self._allowed[kinds]
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
        coarse = self._improved(kinds, engines, np.concatenate(starts), moves, _FIRST_STEP, _COARSE_STEP)
        scores = self._score(kinds, engines, coarse).sum(axis=-1).reshape(len(starts), -1)
        ends = coarse.reshape(len(starts), *starts[0].shape)
        best = ends[scores.argmax(axis=0), np.arange(len(populations))]
        return self._improved(kinds, engines, best, moves, _COARSE_STEP, _LAST_STEP)

    def equal_mix_rates(self, outcome: FleetOutcome, load: LoadHistogram) -> Floats:
        """Return a fleet's rates where every engine has the same mix of routes, by population."""
        kinds, engines = outcome.kinds, outcome.engines
        if not self._allowed[kinds].all():
            return outcome.rates
        served = outcome.splits.sum(axis=1)
        mixes = served / np.maximum(served.sum(axis=1, keepdims=True), 1e-9)
        even = next(self._starts(kinds, engines, served))
        splits = self._improved(kinds, engines, even, mixes[:, None, :], _FIRST_STEP, _LAST_STEP)
        return self._outcome(outcome.fleet, kinds, engines, splits, load).rates

    def of_one_kind(self, kind: EngineKind) -> FleetModel:
        """Return a model of another kind of engines alone."""
        return FleetModel([kind], self._max_load, self._worth.tolist())

    def resampled(self, rng: np.random.Generator) -> FleetModel:
        """Return a model with curves that might as well have been measured; engines are full as before."""
        model = copy(self)
        model._times = self._times.copy()
        loads = np.arange(1.0, self._max_load + 2)
        for kind, found in enumerate(self.kinds):
            for route, curve in enumerate(found.curves):
                if curve:
                    ratio = curve.rates(loads) / _resampled(curve, rng).rates(loads)
                    model._times[kind, 1:, route] *= ratio
        return model

    def rate(self, outcome: FleetOutcome, load: LoadHistogram) -> float:
        """Return the mean tokens per second of a fleet whose requests are split as in an outcome."""
        rates, _ = self._values(outcome.kinds, outcome.splits / outcome.engines[:, None])
        return float(load.weights @ (rates * outcome.engines).sum(axis=-1))

    def _outcome(
        self, fleet: Composition, kinds: Ints, engines: Ints, splits: Floats, load: LoadHistogram
    ) -> FleetOutcome:
        values, left = self._values(kinds, splits / engines[:, None])
        rates = (values * engines).sum(axis=-1)
        served = splits * (1 - left * engines / np.maximum(splits.sum(axis=-1), 1e-9))[..., None]
        waiting = load.populations.sum(axis=1) - served.sum(axis=(1, 2))
        return FleetOutcome(fleet, float(load.weights @ rates), rates, waiting, kinds, engines, served)

    def _starts(self, kinds: Ints, engines: Ints, populations: Floats) -> Iterator[Floats]:
        """Splits to start from: all spread evenly, then the busiest routes each on a part of the fleet."""
        may = self._allowed[kinds]
        shares = may * engines[:, None]
        shares = shares / np.maximum(shares.sum(axis=0), 1)
        spread: Floats = populations[:, None, :] * shares
        yield spread
        busy = populations.sum(axis=0).argsort()[::-1].tolist()
        parts = [kinds == kind for kind in sorted(set(kinds.tolist()))]
        first = busy[: int(math.log(_WAYS, max(len(parts), 2)))]
        for way in itertools.product(parts, repeat=len(first)):
            yield from self._kept_apart(spread, may, engines, first, way, populations)
        for order in itertools.permutations(busy[:_APART]):
            places = [place * len(kinds) // len(order) for place in range(len(order))]
            way = tuple(np.arange(len(kinds)) == place for place in places)
            yield from self._kept_apart(spread, may, engines, order, way, populations)

    def _kept_apart(
        self,
        spread: Floats,
        may: NDArray[np.bool_],
        engines: Ints,
        routes: Sequence[int],
        way: Sequence[NDArray[np.bool_]],
        populations: Floats,
    ) -> Iterator[Floats]:
        """The even spread, with some routes each on a part of the engines; nothing if one is not allowed."""
        split = spread.copy()
        for route, part in zip(routes, way, strict=True):
            if not may[part, route].all():
                return
            share = part * engines
            split[:, :, route] = populations[:, route, None] * share / share.sum()
        yield split

    def _improved(
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
        closed = ((moves[:, None, :, :] > 0) & ~self._allowed[kinds][None, :, None, :]).any(axis=-1)
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
            pays = flat[np.arange(len(active)), chosen] > 1e-6 * self._waiting_cost
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
        """Tokens per second of groups of engines, less the cost of requests without a place."""
        rates, waiting = self._values(kinds, splits / engines[..., None])
        score: Floats = engines * (rates - self._waiting_cost * waiting)
        return score

    def _values(self, kinds: Ints, counts: Floats) -> tuple[Floats, Floats]:
        """Tokens per second of single engines with requests by route, and how many of these wait.

        As Table.rate, between whole loads too; an engine with less than one request has one for a part of
        the time.
        """
        loads = counts.sum(axis=-1)
        mixes = counts / np.maximum(loads, 1e-9)[..., None]
        caps = self._capped(kinds, mixes)
        served = np.minimum(loads, caps)
        below = np.clip(np.floor(served).astype(np.int64), 1, self._max_load)
        part = np.clip(served - below, 0.0, 1.0)[..., None]
        times = self._times[kinds, below] * (1 - part) + self._times[kinds, below + 1] * part
        rates = served * (mixes @ self._worth) / np.maximum((mixes * times).sum(axis=-1), 1e-12)
        return rates, loads - served

    def _capped(self, kinds: Ints, mixes: Floats) -> Ints:
        """The loads at which engines with these mixes of routes are full."""
        rounded = np.ceil(mixes * self._steps - 1e-9).astype(np.int64)
        base = self._steps + 1
        keys = rounded @ base ** np.arange(mixes.shape[-1])
        kinds = np.broadcast_to(kinds, keys.shape)
        caps: Ints = self._caps[kinds, keys]
        if not caps.all():
            unknown = set(zip(kinds[caps == 0].tolist(), keys[caps == 0].tolist(), strict=True))
            for kind, key in unknown:
                mix = [key // base**place % base for place in range(mixes.shape[-1])]
                self._caps[kind, key] = self._tables[kind].cap(mix) if any(mix) else self._max_load
            caps = self._caps[kinds, keys]
        return caps


def _grouped(fleet: Composition) -> tuple[Ints, Ints]:
    """Kinds and engines of a fleet by groups of equal engines; in a small fleet each engine is a group."""
    total = sum(fleet)
    kinds, engines = [], []
    for kind, count in enumerate(fleet):
        groups = count if total <= _MOST_GROUPS else min(count, max(1, round(_MOST_GROUPS * count / total)))
        kinds += [kind] * groups
        engines += [(count + place) // groups for place in range(groups)]
    return np.array(kinds), np.array(engines)


def _resampled(curve: Curve, rng: np.random.Generator) -> Curve:
    """A curve that might as well have been measured."""
    points = []
    for point in curve.points:
        rate = point.rate + point.error * float(rng.standard_normal())
        points.append((point.load, max(rate, _LEAST * point.rate), point.error))
    return Curve(points, curve.breaks)
