"""Profiles and schedules as a sweep of the simulated engines gives them: few points, with noise."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from bench.choice.choosers import Pinned
from bench.choice.fleet import MAX_NUM_SEQS, ROUTES, Fleet, Pool, World, measure
from gateway.engines.simulated.step_model import Fit, throughput
from gateway.policy.choose.gain import Curve, depth_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from bench.choice.fleet import Ranges

FITS = ("h100-9b", "slow-verify")
LOADS = (1, 10, 24, 32, 40, 64, 80, 128, 256)
NOISE = 0.05
# Of the profiles' noise.
SEEDS = (1, 2, 3)
LAST = 4096
_WINDOW_S = 60.0
_WARM_S = 15.0


@lru_cache
def fit_of(name: str) -> Fit:
    """Return a built-in fit."""
    return Fit.builtin(name)


@lru_cache(maxsize=1_000_000)
def model_rate(fit: str, depth: int, schedule: Ranges, counts: tuple[int, ...]) -> float:
    """Return the mean-field tokens per second of one engine with requests by route."""
    loads = dict(zip(ROUTES, counts, strict=True))
    rates = throughput(fit_of(fit), depth, loads, schedule=schedule or None, max_num_seqs=MAX_NUM_SEQS)
    return sum(rates.values())


@lru_cache
def engine_schedule(fit: str) -> Ranges:
    """Return the schedule for engines of depth 3: plain decoding from where it wins on average."""
    load = 1
    while _advantage(fit, load) > 1:
        load += 1
    return ((1, load - 1, 3), (load, LAST, 0))


def _advantage(fit: str, load: int) -> float:
    """Depth 3 over depth 0, geometric mean of the routes."""
    ratios = [
        model_rate(fit, 3, (), alone(place, load)) / model_rate(fit, 0, (), alone(place, load))
        for place in (0, 1, 2)
    ]
    return float(np.prod(ratios))


def alone(place: int, load: int) -> tuple[int, ...]:
    """Return counts by route: `load` requests of one."""
    return tuple(load if route == place else 0 for route in range(len(ROUTES)))


def measured(fit: str, route: str, depth: int, schedule: Ranges, load: int) -> float:
    """Return the tokens per second of one simulated engine in a closed loop of one route."""
    expected = model_rate(fit, depth, schedule, alone(ROUTES.index(route), load))
    warm = _WARM_S + load * fit_of(fit).routes[route].output_tokens / expected
    fleet = Fleet("one engine", (Pool("one", depth, 1, schedule),))
    world = World(fit_of(fit), fleet, seed=_seed(fit, route, depth, schedule, load))
    pinned = Pinned({"one-0": {route: load}})
    world.clients(lambda _: pinned, {route: load})
    return measure(world, warm, warm + _WINDOW_S).rate


@dataclass(frozen=True)
class Sweep:
    """The tokens per second of one fit's engines, by route, depth, the engine's schedule, and load."""

    fit: str
    rates: Mapping[tuple[str, int, Ranges, int], float]

    def curve(self, route: str, pool: Pool, seed: int | None = None) -> list[tuple[int, float]]:
        """Return a route's points on a pool, with noise where there is a seed for it."""
        points = []
        for load in LOADS:
            rate = self.rates[route, pool.depth, pool.schedule, load]
            if seed is not None:
                rng = np.random.default_rng([seed, _seed(self.fit, route, pool.depth, pool.schedule, load)])
                rate *= float(1 + NOISE * rng.standard_normal())
            points.append((load, rate))
        return points

    def write_profiles(self, folder: Path, pools: Iterable[Pool], seed: int | None) -> None:
        """Write the routes' profiles, `ROUTE.json` each."""
        for route in ROUTES:
            curves = {pool.name: self.curve(route, pool, seed) for pool in pools}
            profile = {"route": route, "pools": curves, "meta": {"source": f"simulated, {self.fit}"}}
            (folder / f"{route}.json").write_text(json.dumps(profile))

    def weights(self, pools: Iterable[Pool], seed: int, power: float) -> dict[str, float]:
        """Return the weight of each route's tokens: (the highest of all peaks / its own peak) ^ power."""
        peaks = {
            route: max(rate for pool in pools for _, rate in self.curve(route, pool, seed))
            for route in ROUTES
        }
        return {route: (max(peaks.values()) / peak) ** power for route, peak in peaks.items()}

    def schedule(self, route: str, pools: Iterable[Pool], seed: int | None = None) -> Ranges:
        """Return the route's schedule: at each load the depth of the fastest pool."""
        curves = {pool: Curve(self.curve(route, pool, seed)) for pool in pools}
        ranges: list[tuple[int, int, int]] = []
        for load in range(1, LOADS[-1] + 1):
            fastest = _fastest(curves, load)
            depth = depth_at(fastest.schedule, load, fastest.depth)
            first = ranges.pop()[0] if ranges and ranges[-1][2] == depth else load
            ranges.append((first, load, depth))
        return (*ranges[:-1], (ranges[-1][0], LAST, ranges[-1][2]))


def _fastest(curves: Mapping[Pool, Curve], load: int) -> Pool:
    return max(curves, key=lambda pool: curves[pool].rate(load))


def needed(fleets: Iterable[Fleet]) -> list[tuple[str, int, Ranges, int]]:
    """Return what must be measured for the fleets' profiles: route, depth, schedule, load."""
    kinds = sorted({(pool.depth, pool.schedule) for fleet in fleets for pool in fleet.pools})
    return [(route, depth, schedule, load) for route in ROUTES for depth, schedule in kinds for load in LOADS]


def _seed(fit: str, route: str, depth: int, schedule: Ranges, load: int) -> int:
    return zlib.crc32(f"{fit} {route} {depth} {schedule} {load}".encode())
