"""The CPU time of one choice among many engines."""

from __future__ import annotations

import platform
import random
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.choice import choosers
from bench.choice.fleet import ROUTES, Fleet, Pool, World
from bench.choice.sweep import LOADS, Sweep, alone, fit_of, model_rate
from gateway.policy.choose.balance import Board, Choice

if TYPE_CHECKING:
    from gateway.state.lease import Lease

ENGINES = 64
PER_ENGINE = 30


def run(calls: int) -> dict[str, object]:
    """Return microseconds of CPU for taking and releasing a lease in State, and for the choice alone."""
    fit = "h100-9b"
    fleet = Fleet(
        "64 engines", tuple(Pool(f"depth{depth}", depth, n) for depth, n in ((3, 22), (1, 21), (0, 21)))
    )
    rates = {
        (route, pool.depth, pool.schedule, load): model_rate(fit, pool.depth, (), alone(place, load))
        for place, route in enumerate(ROUTES)
        for pool in fleet.pools
        for load in LOADS
    }
    world = World(fit_of(fit), fleet, seed=1)
    with tempfile.TemporaryDirectory() as folder:
        Sweep(fit, rates).write_profiles(Path(folder), fleet.pools, 1)
        state = choosers.Gateway(world, choosers.config_text(fleet, ROUTES), Path(folder), 1).state
    rng = random.Random(1)
    leases: list[Lease] = []
    for _ in range(ENGINES * PER_ENGINE):
        taken = state.take(rng.choice(ROUTES))
        assert not isinstance(taken, Choice)
        leases.append(taken)
    takes, releases, choices = [], [], []
    for _ in range(calls):
        route = rng.choice(ROUTES)
        place = rng.randrange(len(leases))
        start = time.thread_time_ns()
        leases[place].release()
        released = time.thread_time_ns()
        taken = state.take(route)
        end = time.thread_time_ns()
        assert not isinstance(taken, Choice)
        leases[place] = taken
        releases.append((released - start) / 1e3)
        takes.append((end - released) / 1e3)
    views = [status.view for status in state.snapshot().engines]
    board = Board(views, [(True,) * len(ROUTES)] * len(views), len(ROUTES))
    for _ in range(calls):
        start = time.thread_time_ns()
        board.choose(0, now=0.0, rules=state.fleet.rules, rng=rng)
        choices.append((time.thread_time_ns() - start) / 1e3)
    return {
        "machine": f"{platform.machine()} {platform.system()}",
        "python": platform.python_version(),
        "engines": ENGINES,
        "requests": ENGINES * PER_ENGINE,
        "samples": calls,
        "choose alone": _figures(choices),
        "take": _figures(takes),
        "release": _figures(releases),
        "take + release": _figures([sum(pair) for pair in zip(takes, releases, strict=True)]),
    }


def _figures(samples: list[float]) -> dict[str, float]:
    """Return median, mean and p99 of microseconds."""
    return {
        "median": round(float(np.median(samples)), 1),
        "mean": round(float(np.mean(samples)), 1),
        "p99": round(float(np.percentile(samples, 99)), 1),
    }
