"""A split of requests between pools that the greedy choice cannot reach by single steps.

Routes that share an engine share its steps, so under heavy load a mix of routes may do best kept apart - and
from where the greedy stands, every single move towards that loses. So the splits that keep routes apart are
tried as a whole. A plan is a function of the population alone, with hysteresis: it does not chase its tail.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.policy.choose.gain import SpeedTable

    # Requests by pool, then by route.
    Split = list[list[float]]

# Below this the greedy choice finds the best by itself.
_FEWEST = 40
# More ways to assign routes to pools take too long to try: these take 50 ms.
_MOST_WAYS = 27
# What a plan must promise beyond the greedy's split, and how far a population may change under it.
_BETTER = 1.06
_CHANGED = 0.15
_CHUNKS = 64


@dataclass(frozen=True, slots=True)
class SplitPool:
    """One pool as a plan sees it.

    Attributes:
        table: its curves, of every route that may use it.
        engines: how many take work.
        routes: by route, whether it may use the pool.
    """

    table: SpeedTable
    engines: int
    routes: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """Where the requests of a population go.

    Attributes:
        population: requests by route that it was made for.
        targets: by pool, then by route, requests on all its engines; empty where the greedy does as well.
        loads: by pool, requests of one engine.
    """

    population: tuple[int, ...]
    targets: Mapping[str, tuple[float, ...]]
    loads: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SplitInputs:
    """What a plan is made for.

    Attributes:
        plan: the plan so far, made for the same pools.
        population: requests by route, waiting or on engines.
        pools: those with engines; each with a curve for every route that may use it.
    """

    plan: SplitPlan | None
    population: Sequence[int]
    pools: Mapping[str, SplitPool]


def replanned(situation: SplitInputs) -> SplitPlan | None:
    """Return the plan for a population; the one there is as long as that has not changed much."""
    plan, population, pools = situation.plan, situation.population, situation.pools
    ways = [
        [index for index, pool in enumerate(pools.values()) if pool.routes[r]] for r in range(len(population))
    ]
    total = sum(population)
    if total < _FEWEST or len(pools) < 2 or not 1 < math.prod(map(len, ways)) <= _MOST_WAYS:
        return None
    if plan:
        moved = sum(abs(now - then) for now, then in zip(population, plan.population, strict=True))
        if moved <= _CHANGED * sum(plan.population):
            return plan
    planner = _Planner(list(pools.values()))
    base, _ = planner.climbed(planner.greedy(population), max(1, total // _CHUNKS))
    best, split = max(
        (planner.climbed(planner.apart(population, way), total // 4) for way in itertools.product(*ways)),
        key=lambda found: found[0],
    )
    if not best >= _BETTER * base:
        return SplitPlan(tuple(population), {}, {})
    return SplitPlan(
        tuple(population),
        {name: tuple(counts) for name, counts in zip(pools, split, strict=True)},
        {name: sum(counts) / pool.engines for (name, pool), counts in zip(pools.items(), split, strict=True)},
    )


class _Planner:
    """Splits between pools, and what they are worth: tokens per second, by the pools' tables."""

    def __init__(self, pools: Sequence[SplitPool]) -> None:
        self._pools = pools

    def value(self, index: int, counts: Sequence[float]) -> float:
        """What a pool writes whose engines share its requests evenly; minus infinity where nobody knows."""
        pool = self._pools[index]
        load = sum(counts) / pool.engines
        if load > pool.table.max_load or any(
            count and not may for count, may in zip(counts, pool.routes, strict=True)
        ):
            return -math.inf
        return pool.engines * pool.table.rate([count / pool.engines for count in counts])

    def apart(self, population: Sequence[int], way: Sequence[int]) -> Split:
        """Each route on a pool of its own choice."""
        return [
            [float(count) if pool == index else 0.0 for count, pool in zip(population, way, strict=True)]
            for index in range(len(self._pools))
        ]

    def greedy(self, population: Sequence[int]) -> Split:
        """What the choice by gain makes of a population that comes to an empty fleet, a few at a time."""
        split: Split = [[0.0] * len(population) for _ in self._pools]
        chunk = max(1.0, sum(population) / _CHUNKS)
        left = [float(count) for count in population]
        while any(left):
            route = max(range(len(left)), key=lambda r: left[r] / population[r] if population[r] else 0.0)
            some = min(chunk, left[route])
            left[route] -= some

            def gain(index: int, route: int = route, some: float = some) -> float:
                more = split[index].copy()
                more[route] += some
                return self.value(index, more) - self.value(index, split[index])

            best = max(range(len(split)), key=gain)
            if gain(best) == -math.inf:
                break
            split[best][route] += some
        return split

    def climbed(self, split: Split, step: float) -> tuple[float, Split]:
        """Move requests from pool to pool, ever fewer at a time, while that pays; return the worth too."""
        values = [self.value(index, counts) for index, counts in enumerate(split)]
        while step >= 1:
            best, move = 1e-6, None
            for a, b in itertools.permutations(range(len(split)), 2):
                for route in range(len(split[a])):
                    some = min(step, split[a][route])
                    if not some:
                        continue
                    less, more = split[a].copy(), split[b].copy()
                    less[route] -= some
                    more[route] += some
                    left, right = self.value(a, less), self.value(b, more)
                    # From a split beyond what was measured, any way back is a gain.
                    gain = left + right - values[a] - values[b] if values[a] > -math.inf else right
                    if gain > best:
                        best, move = gain, (a, b, less, more, left, right)
            if move is None:
                step //= 2
                continue
            a, b, split[a], split[b], values[a], values[b] = move
        return sum(values), split
