"""The best fixed split of clients over engines, found on the mean-field model."""

from __future__ import annotations

import itertools
import random
from functools import lru_cache
from typing import TYPE_CHECKING

from bench.choice.fleet import ROUTES
from bench.choice.sweep import alone, model_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from bench.choice.fleet import Fleet, Pool, Ranges

Counts = tuple[int, ...]
Split = tuple[Counts, ...]
# A single route's splits are all tried up to so many; beyond, clients are moved in units of one in 64.
_EXHAUSTIVE = 20_000
_RANDOM_STARTS = 6


def rate(fit: str, pools: Sequence[Pool], split: Split) -> float:
    """Return the mean-field tokens per second of a split: requests by engine and route."""
    return sum(_exact(fit, pool, counts) for pool, counts in zip(pools, split, strict=True))


def best(
    fit: str,
    fleet: Fleet,
    clients: Mapping[str, int],
    *,
    keep: int = 1,
    allowed: Callable[[Split], bool] = lambda split: True,
) -> list[Split]:
    """Return the best fixed splits, best first, none of them close to a better one.

    A single route's splits are all tried. Those of a mix are found by hill climbing from many starts, moving
    clients of a route from engine to engine: first with rates from the routes' own curves (whose times per
    token are averaged), then from the best of these with the model itself.

    Args:
        fit: the engines'.
        fleet: the engines.
        clients: by route.
        keep: how many splits to return.
        allowed: whether a split may be returned.
    """
    pools = list(fleet.engines.values())

    def averaged(engine: int, counts: Counts) -> float:
        return _averaged(fit, pools[engine], counts)

    def exact(engine: int, counts: Counts) -> float:
        return _exact(fit, pools[engine], counts)

    wanted = tuple(clients.get(route, 0) for route in ROUTES)
    total = sum(wanted)
    present = [place for place, count in enumerate(wanted) if count]
    if len(present) == 1:
        every = (tuple(alone(present[0], load) for load in way) for way in ways(total, len(pools)))
        found = {split: rate(fit, pools, split) for split in every if allowed(split)}
    else:
        rough: dict[Split, float] = {}
        for start in _starts(wanted, len(pools)):
            rough.update(_climb(start, averaged, allowed, total // 2, 1))
        found = {}
        for start in sorted(rough, key=rough.__getitem__, reverse=True)[: keep + 2]:
            least = max(1, total // 128)
            found.update(_climb(start, exact, allowed, 4 * least, least))
    kept: list[Split] = []
    for split in sorted(found, key=found.__getitem__, reverse=True):
        if all(_distance(split, other) > total // 16 for other in kept):
            kept.append(split)
        if len(kept) == keep:
            break
    return kept


def named(fleet: Fleet, split: Split) -> dict[str, dict[str, int]]:
    """Return a split by engine and route."""
    return {
        engine: dict(zip(ROUTES, counts, strict=True))
        for engine, counts in zip(fleet.engines, split, strict=True)
    }


def _exact(fit: str, pool: Pool, counts: Counts) -> float:
    return model_rate(fit, pool.depth, pool.schedule, counts) if any(counts) else 0.0


def _averaged(fit: str, pool: Pool, counts: Counts) -> float:
    load = sum(counts)
    if not load:
        return 0.0
    times = (
        count * _time(fit, pool.depth, pool.schedule, route, load)
        for route, count in enumerate(counts)
        if count
    )
    return load * load / sum(times)


@lru_cache(maxsize=100_000)
def _time(fit: str, depth: int, schedule: Ranges, route: int, load: int) -> float:
    """Return the seconds that one of `load` requests of a route takes for a token."""
    return load / model_rate(fit, depth, schedule, alone(route, load))


def mixed_alike(clients: Mapping[str, int], loads: Sequence[int]) -> Split:
    """Return the split with these loads in which every engine has the clients' mix."""
    total = sum(clients.values())
    before = 0
    rows: list[Counts] = []
    placed = [0] * len(ROUTES)
    for load in loads:
        before += load
        upto = [round(clients.get(route, 0) * before / total) for route in ROUTES]
        rows.append(tuple(now - then for now, then in zip(upto, placed, strict=True)))
        placed = upto
    return tuple(rows)


def ways(count: int, engines: int) -> Iterator[tuple[int, ...]]:
    """Yield the ways to spread `count` requests over engines; in coarser steps where there are too many."""
    total = 1
    for place in range(1, engines):
        total = total * (count + place) // place
    unit = 1 if total <= _EXHAUSTIVE else max(1, count // 64)
    whole, rest = divmod(count, unit)
    for bars in itertools.combinations(range(whole + engines - 1), engines - 1):
        edges = (-1, *bars, whole + engines - 1)
        way = [(right - left - 1) * unit for left, right in itertools.pairwise(edges)]
        way[0] += rest
        yield tuple(way)


def _starts(wanted: Counts, engines: int) -> Iterator[Split]:
    yield tuple(
        tuple(count // engines + (place < count % engines) for count in wanted) for place in range(engines)
    )
    for order in itertools.permutations(range(len(wanted))):
        split = [[0] * len(wanted) for _ in range(engines)]
        for place, route in enumerate(order):
            split[place * engines // len(wanted)][route] += wanted[route]
        yield tuple(map(tuple, split))
    rng = random.Random(engines)
    for _ in range(_RANDOM_STARTS):
        split = [[0] * len(wanted) for _ in range(engines)]
        for route, count in enumerate(wanted):
            chosen = rng.sample(range(engines), rng.randint(1, engines))
            for client in range(count):
                split[chosen[client % len(chosen)]][route] += 1
        yield tuple(map(tuple, split))


def _climb(
    start: Split,
    value: Callable[[int, Counts], float],
    allowed: Callable[[Split], bool],
    step: int,
    least: int,
) -> dict[Split, float]:
    """Move `step` clients at a time while that helps, then half as many; return where it ends."""
    split = list(start)
    values = [value(engine, counts) for engine, counts in enumerate(split)]
    fine = allowed(start)
    while step >= least:
        most, move = (1e-9 * sum(values) if fine else -float("inf")), None
        for source, target in itertools.permutations(range(len(split)), 2):
            for route, count in enumerate(split[source]):
                moved = min(step, count)
                if not moved:
                    continue
                less, more = _plus(split[source], route, -moved), _plus(split[target], route, moved)
                gain = value(source, less) - values[source] + value(target, more) - values[target]
                if gain > most and allowed(_replaced(split, source, less, target, more)):
                    most, move = gain, (source, less, target, more)
        if move is None:
            step //= 2
            continue
        source, less, target, more = move
        split[source], split[target] = less, more
        values[source], values[target] = value(source, less), value(target, more)
        fine = True
    return {tuple(split): sum(values)} if fine else {}


def _plus(counts: Counts, route: int, more: int) -> Counts:
    return (*counts[:route], counts[route] + more, *counts[route + 1 :])


def _replaced(split: Sequence[Counts], source: int, less: Counts, target: int, more: Counts) -> Split:
    return tuple(
        less if place == source else more if place == target else counts for place, counts in enumerate(split)
    )


def _distance(one: Split, other: Split) -> int:
    """Return how many clients must move to get from one split to the other."""
    rows = zip(one, other, strict=True)
    return sum(abs(now - then) for row in rows for now, then in zip(*row, strict=True)) // 2
