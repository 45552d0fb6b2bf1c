"""The gateway's choice against the best fixed split and other rules, with constant clients. All simulated."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.choice import choosers, splits
from bench.choice.fleet import ROUTES, Fleet, Pool, World, evenly, measure
from bench.choice.sweep import LOADS, SEEDS, engine_schedule, fit_of
from gateway.policy.choose.gain import depth_at

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bench.choice.fleet import Chooser, Ranges, Result
    from bench.choice.sweep import Sweep

KINDS = (*ROUTES, "mix")
CONCURRENCY = (*LOADS, 400)
FLEETS = ("deep + plain", "0 + 1 + 3", "two with own schedule", "own schedule + plain")
_MIN_S = 30.0
# So few clients get few answers a second: their window is longer.
_FEW, _FEW_MIN_S = 10, 90.0
_LATENCIES = 3.0


class Cell(NamedTuple):
    """One cell of the table."""

    fit: str
    fleet: str
    kind: str
    clients: int

    def by_route(self) -> dict[str, int]:
        """Return the clients of each route: all of one, or a third each."""
        if self.kind != "mix":
            return {self.kind: self.clients}
        return evenly(self.clients)


def fleet_of(name: str, fit: str) -> Fleet:
    """Return a fleet by its name."""
    own = engine_schedule(fit)
    pools = {
        "deep + plain": (Pool("deep", 3), Pool("plain", 0)),
        "0 + 1 + 3": (Pool("plain", 0), Pool("shallow", 1), Pool("deep", 3)),
        "two with own schedule": (Pool("auto", 3, 2, own),),
        "own schedule + plain": (Pool("auto", 3, 1, own), Pool("plain", 0)),
    }
    return Fleet(name, pools[name])


class Trial:
    """The same clients on the same engines under one rule after another.

    Attributes:
        split: the best fixed split, by the model.
        best: its figures.
    """

    def __init__(self, fit: str, fleet: Fleet, clients: Mapping[str, int], *, quick: bool = False) -> None:
        """Find the best fixed split and measure it.

        Args:
            fit: the engines'.
            fleet: the engines.
            clients: by route.
            quick: half as long, and of the model's best splits only the first is tried.
        """
        self._fit, self._fleet, self._clients = fit, fleet, clients
        total = sum(clients.values())
        found = splits.best(fit, fleet, clients, keep=1 if quick else 2)
        expected = splits.rate(fit, list(fleet.engines.values()), found[0])
        # The route with the longest answers sets the time: in a mix they take longer than the mean.
        tokens = max(fit_of(fit).routes[route].output_tokens for route, count in clients.items() if count)
        self._unit = tokens * total / expected
        least = _FEW_MIN_S if total <= _FEW else _MIN_S
        self._window = max(least, _LATENCIES * self._unit) / (2 if quick else 1)
        self.split = found[0]
        self.best = max((self.run_split(split) for split in found), key=lambda result: result.rate)

    def run_rule(self, chooser_of: Callable[[World], Chooser]) -> Result:
        """Measure a rule."""
        world = World(fit_of(self._fit), self._fleet, seed=sum(self._clients.values()))
        chooser = chooser_of(world)
        world.clients(lambda _: chooser, self._clients)
        return measure(world, self._unit, self._unit + self._window)

    def run_split(self, split: splits.Split) -> Result:
        """Measure a fixed split."""
        return self.run_rule(lambda _: choosers.Pinned(splits.named(self._fleet, split)))


def run(cell: Cell, sweep: Sweep, quick: bool = False) -> dict[str, object]:
    """Measure one cell: tokens per second and mean latency of every rule, over the best fixed split's."""
    fleet = fleet_of(cell.fleet, cell.fit)
    seeds = SEEDS[:1] if quick else SEEDS
    trial = Trial(cell.fit, fleet, cell.by_route(), quick=quick)
    run_rule, best = trial.run_rule, trial.best
    curves = {route: {pool.name: sweep.curve(route, pool) for pool in fleet.pools} for route in ROUTES}
    schedules = {route: sweep.schedule(route, fleet.pools, SEEDS[0]) for route in ROUTES}
    profiled = [run_rule(_by_profiles(fleet, sweep, seed)) for seed in seeds]
    allowed = _by_schedule_alone(cell, fleet, schedules)
    rules = {
        "schedule only": run_rule(_by_schedules(fleet, schedules)),
        "fill to crossover": run_rule(lambda world: choosers.fill_to_crossover(world, schedules)),
        "fastest for itself": run_rule(lambda world: choosers.fastest_for_itself(world, curves)),
        "least loaded": run_rule(choosers.least_loaded),
        "round robin": run_rule(choosers.round_robin),
    }
    if allowed:
        rules["best by schedule"] = trial.run_split(allowed)
    return {
        **cell._asdict(),
        "best": {
            "rate": round(best.rate, 1),
            "latency": round(best.latency, 3),
            "split": _shown(trial.split),
        },
        "ours": [_ratios(result, best) for result in profiled],
        **{name: _ratios(result, best) for name, result in rules.items()},
    }


def _by_schedule_alone(cell: Cell, fleet: Fleet, schedules: Mapping[str, Ranges]) -> splits.Split | None:
    """Return the best fixed split that obeys the schedules; every engine has the clients' mix.

    Schedules know loads and not how routes affect each other, so they cannot ask to keep routes apart.
    """
    pools = list(fleet.engines.values())
    found = (splits.mixed_alike(cell.by_route(), loads) for loads in splits.ways(cell.clients, len(pools)))
    return max(
        (split for split in found if allowed_by(schedules, fleet, split)),
        key=lambda split: splits.rate(cell.fit, pools, split),
        default=None,
    )


def allowed_by(schedules: Mapping[str, Ranges], fleet: Fleet, split: splits.Split) -> bool:
    """Whether a split obeys the schedules.

    It does not where an engine is past its crossover while another one has the depth that a schedule has for
    the load there. An engine of several routes is past it when requests / crossover, summed over its routes,
    reaches 1.
    """
    pools = list(fleet.engines.values())
    loads = [sum(counts) for counts in split]
    for place, (pool, counts) in enumerate(zip(pools, split, strict=True)):
        present = [route for route, count in zip(ROUTES, counts, strict=True) if count]
        crowding = sum(
            count / _crossover(schedules[route], pool)
            for route, count in zip(ROUTES, counts, strict=True)
            if count
        )
        if crowding >= 1 and any(
            _named(schedules[route], pools[other], loads[other] + 1)
            for other in range(len(pools))
            if other != place
            for route in present
        ):
            return False
    return True


def _crossover(schedule: Ranges, pool: Pool) -> float:
    """Return the load at which a schedule leaves a pool; infinity where it never does."""
    seen = False
    for load in range(1, 513):
        if _named(schedule, pool, load):
            seen = True
        elif seen:
            return load
    return math.inf


def _named(schedule: Ranges, pool: Pool, load: int) -> bool:
    return depth_at(schedule, load, 0) == depth_at(pool.schedule, load, pool.depth)


def _by_profiles(fleet: Fleet, sweep: Sweep, seed: int) -> Callable[[World], Chooser]:
    def chooser(world: World) -> Chooser:
        with tempfile.TemporaryDirectory() as folder:
            sweep.write_profiles(Path(folder), fleet.pools, seed)
            return choosers.Gateway(world, choosers.config_text(fleet, ROUTES), Path(folder), seed).poll(1.0)

    return chooser


def _by_schedules(fleet: Fleet, schedules: Mapping[str, Ranges]) -> Callable[[World], Chooser]:
    text = choosers.config_text(fleet, ROUTES, schedules=schedules)
    return lambda world: choosers.Gateway(world, text, Path(), 1).poll(1.0)


def _ratios(result: Result, best: Result) -> tuple[float, float]:
    return round(result.rate / best.rate, 4), round(result.latency / best.latency, 4)


def _shown(split: splits.Split) -> list[list[int]]:
    return [list(counts) for counts in split]
