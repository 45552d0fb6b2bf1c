"""Which fleet serves a load best: how many engines of which kind, and which routes share them."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gateway.policy.choose.fleet_model import EngineKind, LoadHistogram
from gateway.policy.choose.gain import Curve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gateway.policy.choose.fleet_model import Composition, FleetModel, FleetOutcome, Floats

# Up to so many compositions all are tried; beyond that, engines are exchanged while it helps.
_EXHAUSTIVE = 200
# Draws of the profiles' errors.
_DRAWS = 100
# A fleet is better where it is in so many of the draws, and by more than these figures are good for: what
# fleets make of a simulated day (bench/results/plan.json) is within 2% of them (standard deviation).
_SURE, TIE = 0.8, 0.02
# Waiting less than this is rounding.
_A_REQUEST = 0.1
# No fleet is larger.
_MOST_ENGINES = 1024
# Routes with less of an engine's requests than this are not counted among those it serves.
_PRESENT = 0.1


@dataclass(frozen=True, slots=True)
class Rival:
    """Another fleet, compared with the recommended one.

    Attributes:
        outcome: what it makes of the load.
        gain: of the recommended one over it, relative.
        low, high: 95% interval of the gain, by the profiles' errors.
        sure: share of the draws in which the recommended one is better.
    """

    outcome: FleetOutcome
    gain: float
    low: float
    high: float
    sure: float

    @property
    def tied(self) -> bool:
        """Whether the two cannot be told apart."""
        return self.sure < _SURE or self.gain < TIE


@dataclass(frozen=True, slots=True)
class LoadBand:
    """The populations of about one size.

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
    best: Composition
    regret: float
    apart: float
    shared: tuple[tuple[int, int, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class FleetSize:
    """The best fleet of some size, and the share of the time in which requests wait for a place."""

    outcome: FleetOutcome
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

    chosen: FleetOutcome
    best: FleetOutcome
    rivals: tuple[Rival, ...]
    compositions: int
    bands: tuple[LoadBand, ...]
    sizes: tuple[FleetSize, ...]
    enough: Composition | None
    own: FleetOutcome | None


def compositions(kinds: int, engines: int) -> Iterator[Composition]:
    """Yield every way to have so many engines of so many kinds."""
    for bars in itertools.combinations(range(engines + kinds - 1), kinds - 1):
        edges = (-1, *bars, engines + kinds - 1)
        yield tuple(right - left - 1 for left, right in itertools.pairwise(edges))


def advise(model: FleetModel, load: LoadHistogram, engines: int, rng: np.random.Generator) -> Advice:
    """Recommend a fleet.

    Args:
        model: the kinds of engines there are; some fleet of them serves every route of the load.
        load: what it must serve; not always nothing.
        engines: how many there will be, at least 1.
        rng: draws the profiles' errors.

    Raises:
        ValueError: no fleet of this size serves every route of the load.
    """
    found = _valued(model, load, engines)
    if not found:
        raise ValueError(f"no fleet of {engines} serves every route")
    draws = [model.resampled(rng) for _ in range(_DRAWS)]
    rates = {outcome.fleet: np.array([draw.rate(outcome, load) for draw in draws]) for outcome in found}
    tied = [outcome for outcome in found if _rival(found[0], outcome, rates).tied or outcome is found[0]]
    chosen = min(tied, key=lambda outcome: np.count_nonzero(outcome.fleet))
    schedule = own_schedule(model.kinds, load)
    own = model.of_one_kind(schedule).outcome((engines,), load) if schedule else None
    return Advice(
        chosen=chosen,
        best=found[0],
        rivals=tuple(_rival(chosen, outcome, rates) for outcome in found if outcome is not chosen),
        compositions=_ways(len(model.kinds), engines),
        bands=tuple(_bands(model, chosen, found, load)),
        sizes=tuple(_sizes(model, load, chosen)),
        enough=_enough(model, load),
        own=own,
    )


def own_schedule(kinds: Sequence[EngineKind], load: LoadHistogram) -> EngineKind | None:
    """Return the kind of engines that run at the best of all depths for each number of requests.

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
    return EngineKind("own schedule", tuple(merged))


def _ways(kinds: int, engines: int) -> int:
    return math.comb(engines + kinds - 1, engines)


def _valued(model: FleetModel, load: LoadHistogram, engines: int) -> list[FleetOutcome]:
    """Outcomes of the fleets of a size, the best first: of all of them, or of those that a search visited.

    The search starts from every fleet of one kind and from an even mix, and exchanges engines of the best, a
    quarter of them at a time and ever fewer, while that helps.
    """
    kinds = len(model.kinds)
    found: dict[Composition, FleetOutcome | None] = {}

    def value(fleet: Composition) -> float:
        if fleet not in found:
            found[fleet] = model.outcome(fleet, load)
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


def _exchanges(fleet: Composition, step: int) -> Iterator[Composition]:
    """Fleets in which some engines of one kind are replaced by another kind."""
    for source, target in itertools.permutations(range(len(fleet)), 2):
        if fleet[source] >= step:
            change = {source: -step, target: step}
            yield tuple(count + change.get(place, 0) for place, count in enumerate(fleet))


def _rival(mine: FleetOutcome, other: FleetOutcome, rates: Mapping[Composition, Floats]) -> Rival:
    ratios = rates[mine.fleet] / rates[other.fleet] - 1
    low, high = np.quantile(ratios, (0.025, 0.975)).tolist()
    return Rival(other, mine.rate / other.rate - 1, low, high, float((ratios > 0).mean()))


def _bands(
    model: FleetModel, chosen: FleetOutcome, found: Sequence[FleetOutcome], load: LoadHistogram
) -> Iterator[LoadBand]:
    """Populations by the powers of two of their size, each against the fleet that is best there."""
    totals = load.populations.sum(axis=1)
    powers = np.floor(np.log2(np.maximum(np.round(totals), 1)))
    equal_mix_rates = model.equal_mix_rates(chosen, load)
    for power in np.unique(powers[totals > 0]):
        here = (powers == power) & (totals > 0)
        weights = np.where(here, load.weights, 0.0)
        time = float(weights.sum())
        best = max(found, key=lambda outcome: float(weights @ outcome.rates))
        mine = float(weights @ chosen.rates)
        yield LoadBand(
            first=round(totals[here].min()),
            last=round(totals[here].max()),
            time=time,
            rate=mine / time,
            best=best.fleet,
            regret=1 - mine / float(weights @ best.rates),
            apart=mine / float(weights @ equal_mix_rates) - 1,
            shared=_shared(chosen, int(np.argmax(weights * totals))),
        )


def _shared(outcome: FleetOutcome, population: int) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """Kind, engines and their routes, of a population's split."""
    found: dict[tuple[int, tuple[int, ...]], int] = {}
    for kind, engines, counts in zip(
        outcome.kinds.tolist(), outcome.engines.tolist(), outcome.splits[population], strict=True
    ):
        routes = tuple(np.flatnonzero(counts > _PRESENT * counts.sum()).tolist())
        found[kind, routes] = found.get((kind, routes), 0) + engines
    return tuple((kind, engines, routes) for (kind, routes), engines in found.items())


def _sizes(model: FleetModel, load: LoadHistogram, chosen: FleetOutcome) -> Iterator[FleetSize]:
    """The chosen fleet, and the best with an engine fewer and more: of similar ones and those of one kind."""
    kinds, engines = len(model.kinds), sum(chosen.fleet)
    for size in (engines - 1, engines, engines + 1) if engines > 1 else (engines, engines + 1):
        fleets = {_alone(kind, kinds, size) for kind in range(kinds)}
        for kind in range(kinds):
            changed = (*chosen.fleet[:kind], chosen.fleet[kind] + size - engines, *chosen.fleet[kind + 1 :])
            fleets |= {changed} if min(changed) >= 0 else set()
        found = [model.outcome(fleet, load) for fleet in sorted(fleets)] if size != engines else [chosen]
        best = max((outcome for outcome in found if outcome), key=lambda outcome: outcome.rate, default=None)
        if best:
            yield FleetSize(best, float(load.weights @ (best.waiting > _A_REQUEST)))


def _enough(model: FleetModel, load: LoadHistogram) -> Composition | None:
    """The smallest fleet of one kind on which nothing waits."""
    kinds = len(model.kinds)
    # Where the largest populations, of all routes and of each, have places, all have.
    peaks = {int(np.argmax(load.populations.sum(axis=1))), *load.populations.argmax(axis=0).tolist()}
    most = LoadHistogram(np.ones(len(peaks)), load.populations[sorted(peaks)])
    fleets = []
    for kind in range(kinds):

        def suffices(engines: int, kind: int = kind) -> bool:
            outcome = model.outcome(_alone(kind, kinds, engines), most)
            return outcome is not None and bool(outcome.waiting.max() <= _A_REQUEST)

        engines = bisect_left(range(1, _MOST_ENGINES + 1), True, key=suffices) + 1
        if engines <= _MOST_ENGINES:
            fleets.append(_alone(kind, kinds, engines))
    return min(fleets, key=sum, default=None)


def _alone(kind: int, kinds: int, engines: int) -> Composition:
    return tuple(engines * (place == kind) for place in range(kinds))
