"""A compressed day of load on four engines: the gateway's choice on mixed and single depths. Simulated."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bench.choice import choosers, splits
from bench.choice.fleet import ROUTES, Fleet, Pool, World
from bench.choice.sweep import SEEDS, engine_schedule, fit_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.choice.fleet import Answer, Chooser
    from bench.choice.sweep import Sweep

    # Seconds, then clients of each route; linear between.
    Day = Sequence[tuple[float, int, int, int]]

DAY: Day = (
    (0, 12, 4, 4),
    (180, 12, 4, 4),  # quiet
    (420, 80, 60, 80),  # ramp
    (460, 80, 60, 260),  # burst of tables
    (620, 80, 60, 260),
    (660, 60, 40, 60),
    (720, 220, 60, 60),  # the shares turn
    (840, 220, 60, 60),
    (960, 12, 6, 6),  # ebb
    (1020, 12, 6, 6),
)
LENGTH_S = float(DAY[-1][0])
ENGINES = 4
_UPDATE_S = 5.0
_SAMPLE_S = 10.0
DEPTHS = (3, 1, 0)
# Two deep and two plain, three and one, one and three; and the best composition on each fit.
MIXED = ((3, 3, 0, 0), (3, 3, 3, 0), (3, 0, 0, 0), (3, 1, 1, 1), (1, 1, 1, 0))
# Fleets that are run with weights, too.
WEIGHED = ((3, 3, 0, 0), (3, 1, 1, 1), (1, 1, 1, 1))
# Of those weights; see Sweep.weights.
POWERS = (0.75, 0.9, 1.0)


class Sample(NamedTuple):
    """A moment of a run: seconds of the day, tokens/s since the sample before, requests by pool."""

    at: float
    rate: float
    by_pool: dict[str, int]


class Outcome(NamedTuple):
    """A run's figures: output tokens per engine-second, by route; p95 seconds, by route; the course."""

    rate: float
    by_route: dict[str, float]
    p95: float
    p95_by_route: dict[str, float]
    samples: list[Sample]


def clients_at(second: float, day: Day = DAY) -> dict[str, int]:
    """Return the clients of each route at a time."""
    times = [row[0] for row in day]
    return {
        route: round(float(np.interp(second, times, [row[place] for row in day])))
        for place, route in enumerate(ROUTES, start=1)
    }


def fleet_of(depths: Sequence[int]) -> Fleet:
    """Return a fleet with an engine of each depth given."""
    pools = tuple(Pool(f"depth{depth}", depth, depths.count(depth)) for depth in DEPTHS if depth in depths)
    return Fleet(" + ".join(f"{pool.engines} x {pool.depth}" for pool in pools), pools)


def own_schedule(fit: str) -> Fleet:
    """Return a fleet whose engines all schedule their depth by batch size themselves."""
    return Fleet("4 x own schedule", (Pool("auto", 3, ENGINES, engine_schedule(fit)),))


def play(
    fit: str,
    fleet: Fleet,
    rule: str,
    sweep: Sweep,
    seed: int,
    *,
    day: Day = DAY,
    power: float = 0.0,
    replicas: int = 1,
    scrape_s: float = 1.0,
    shrink: float = 1.0,
) -> Outcome:
    """Run the day on a fleet.

    Args:
        fit: the engines'.
        fleet: the engines.
        rule: `ours`, `least loaded` or `round robin`.
        sweep: what the profiles are made from.
        seed: of the profiles' noise and of everything random.
        day: the clients.
        replicas: gateways that share the clients; each sees the others' requests in its scrapes alone.
        scrape_s: seconds between scrapes.
        power: of the routes' weights, see Sweep.weights.
        shrink: share of the day's length that is run, its load compressed in time.
    """
    world = World(fit_of(fit), fleet, seed=seed)
    gateways = choosers_of(world, rule, sweep, seed, power, replicas, scrape_s)
    course: list[tuple[int, dict[str, int]]] = []

    def update() -> None:
        world.clients(lambda client: gateways[client % len(gateways)], clients_at(world.now / shrink, day))

    def sample() -> None:
        by_pool = {pool.name: 0 for pool in fleet.pools}
        for name, pool in fleet.engines.items():
            by_pool[pool.name] += sum(world.load[name].values())
        course.append((world.tokens(), by_pool))

    whole = day[-1][0]
    length = whole * shrink
    for step in range(int(whole / _UPDATE_S)):
        world.at(step * _UPDATE_S * shrink, update)
    for step in range(int(whole / _SAMPLE_S) + 1):
        world.at(step * _SAMPLE_S * shrink, sample)
    world.run(length)
    samples = [
        Sample(place * _SAMPLE_S, (after[0] - before[0]) / (_SAMPLE_S * shrink), after[1])
        for place, (before, after) in enumerate(itertools.pairwise(course), start=1)
    ]
    by_route = {route: [answer for answer in world.answers if answer.route == route] for route in ROUTES}
    engine_seconds = ENGINES * length
    return Outcome(
        world.tokens() / engine_seconds,
        {route: sum(answer.tokens for answer in found) / engine_seconds for route, found in by_route.items()},
        _p95(world.answers),
        {route: _p95(found) for route, found in by_route.items()},
        samples,
    )


def _p95(answers: Sequence[Answer]) -> float:
    return float(np.percentile([answer.seconds for answer in answers], 95)) if answers else float("nan")


def choosers_of(
    world: World,
    rule: str,
    sweep: Sweep,
    seed: int,
    power: float = 0.0,
    replicas: int = 1,
    scrape_s: float = 1.0,
) -> list[Chooser]:
    """Return the choosers: one of a simple rule, or as many gateways as there are replicas."""
    if rule == "least loaded":
        return [choosers.least_loaded(world)]
    if rule == "round robin":
        return [choosers.round_robin(world)]
    text = choosers.config_text(
        world.fleet, ROUTES, weights=sweep.weights(world.fleet.pools, seed, power), replicas=replicas
    )
    with tempfile.TemporaryDirectory() as folder:
        sweep.write_profiles(Path(folder), world.fleet.pools, seed)
        gateways = [choosers.Gateway(world, text, Path(folder), seed + place) for place in range(replicas)]
    return [
        gateway.poll(scrape_s * (place + 1) / replicas, scrape_s) for place, gateway in enumerate(gateways)
    ]


class Case(NamedTuple):
    """A day on a fleet by a rule; `power` is of the routes' weights, `seed` of the profiles' noise."""

    fit: str
    fleet: Fleet
    rule: str
    power: float = 0.0
    seed: int = 1


def cases(fit: str, *, quick: bool = False) -> list[Case]:
    """Return what is compared, the single depths first."""
    single = [fleet_of((depth,) * ENGINES) for depth in DEPTHS]
    mixed = [fleet_of(depths) for depths in (MIXED[:1] if quick else MIXED)]
    own = own_schedule(fit)
    found = [Case(fit, fleet, "least loaded") for fleet in (*single, own, *mixed)]
    found += [Case(fit, fleet, "round robin") for fleet in mixed]
    found += [Case(fit, fleet, "ours") for fleet in (*mixed, *single, own)]
    if not quick:
        found += [Case(fit, fleet, "ours", seed=SEEDS[1]) for fleet in mixed]
        found += [Case(fit, fleet_of(depths), "ours", power) for depths in WEIGHED for power in POWERS]
    return found


def run(case: Case, sweep: Sweep, shrink: float = 1.0) -> dict[str, object]:
    """Return one run's figures; those of the gateway's choice without weights have the oracle's rate, too."""
    outcome = play(case.fit, case.fleet, case.rule, sweep, case.seed, power=case.power, shrink=shrink)
    figures: dict[str, object] = {
        "fit": case.fit,
        "fleet": case.fleet.name,
        "rule": case.rule,
        "power": case.power,
        "seed": case.seed,
        "rate": round(outcome.rate, 1),
        "by_route": {route: round(rate, 1) for route, rate in outcome.by_route.items()},
        "p95": round(outcome.p95, 2),
        "p95_by_route": {route: round(seconds, 2) for route, seconds in outcome.p95_by_route.items()},
        "course": [sample._asdict() for sample in outcome.samples],
    }
    if case.rule == "ours" and not case.power and case.seed == SEEDS[0]:
        figures["bound"] = round(bound(case.fit, case.fleet), 1)
    return figures


def bound(fit: str, fleet: Fleet, every_s: float = 30.0) -> float:
    """Return tokens per engine-second of an oracle that always has the best split, by the model."""
    pools = list(fleet.engines.values())
    moments = np.arange(every_s / 2, LENGTH_S, every_s)
    found = [splits.best(fit, fleet, clients_at(float(moment)))[0] for moment in moments]
    return float(np.mean([splits.rate(fit, pools, split) for split in found])) / ENGINES
