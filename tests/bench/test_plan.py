"""`ocr-gateway plan` against every fleet of four engines, simulated with the gateway's own rule choosing."""

from __future__ import annotations

import csv
import itertools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from bench.choice import trace
from bench.choice.fleet import MAX_NUM_SEQS, ROUTES
from bench.choice.sweep import SEEDS, Sweep, alone, model_rate, needed
from gateway.tools.plan import engine_kinds
from gateway.tools.plan.load_history import binned, read_csv
from gateway.tools.plan.plan_command import planned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.choice.trace import Day
    from gateway.policy.choose.composition import Advice

TABLES: Day = ((0, 0, 0, 24), (40, 0, 0, 36))
FORMS: Day = ((0, 0, 80, 0), (30, 0, 120, 0))
FEW, MANY = (0, 0, 8), (0, 0, 250)
TIDE: Day = ((0, *FEW), (60, *FEW), (70, *MANY), (110, *MANY), (120, *FEW))


def sweep_of(fit: str, depths: Sequence[int]) -> Sweep:
    """What a sweep would measure, by the model."""
    rates = {
        (route, depth, schedule, load): model_rate(fit, depth, schedule, alone(ROUTES.index(route), load))
        for route, depth, schedule, load in needed([trace.fleet_of(depths)])
    }
    return Sweep(fit, rates)


def simulated(fit: str, depths: Sequence[int], day: Day, sweep: Sweep) -> dict[tuple[int, ...], float]:
    """Tokens per second of every fleet over a day, by the depths of its engines."""
    fleets = itertools.combinations_with_replacement(depths, trace.ENGINES)
    return {
        fleet: trace.ENGINES * trace.play(fit, trace.fleet_of(fleet), "ours", sweep, SEEDS[0], day=day).rate
        for fleet in fleets
    }


def plan(depths: Sequence[int], day: Day, sweep: Sweep, seed: int | None) -> Advice:
    """What `plan` advises, from profiles with a seed's noise or without any, and the day as a CSV file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sweep.write_profiles(folder, trace.fleet_of(depths).pools, seed)
        with (folder / "day.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["time", *ROUTES])
            for second in np.arange(0.0, day[-1][0], 5.0):
                rows.writerow([second, *trace.clients_at(float(second), day).values()])
        found = engine_kinds.read(folder)
        load = binned(read_csv(folder / "day.csv"), found.routes)
    return planned(found, load, trace.ENGINES, MAX_NUM_SEQS)


def recommended(advice: Advice, depths: Sequence[int]) -> tuple[int, ...]:
    """The recommended fleet, as the depth of each engine."""
    counts = zip(depths, advice.chosen.fleet, strict=True)
    return tuple(depth for depth, count in counts for _ in range(count))


@pytest.mark.parametrize(("fit", "day"), [("h100-9b", TABLES), ("slow-verify", FORMS)])
def test_the_plan_is_the_best_of_all_fleets_in_simulation(fit: str, day: Day) -> None:
    sweep = sweep_of(fit, trace.DEPTHS)
    rates = simulated(fit, trace.DEPTHS, day, sweep)
    assert len(rates) == 15
    for seed in (None, SEEDS[0]):
        assert recommended(plan(trace.DEPTHS, day, sweep, seed), trace.DEPTHS) == max(
            rates, key=rates.__getitem__
        )


def test_a_load_that_rises_and_falls_wants_a_mixed_fleet_in_plan_and_simulation() -> None:
    fit, depths = "slow-verify", (3, 0)
    sweep = sweep_of(fit, depths)
    advice = plan(depths, TIDE, sweep, None)
    fleet, rates = recommended(advice, depths), simulated(fit, depths, TIDE, sweep)
    assert len(set(fleet)) == 2
    assert rates[fleet] > 1.02 * max(rates[(3,) * 4], rates[(0,) * 4])
    assert rates[fleet] > 0.98 * max(rates.values())
    assert advice.chosen.rate == pytest.approx(rates[fleet], rel=0.06)
