from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import pytest

from bench import plan
from bench.choice.fleet import ROUTES, Fleet
from bench.choice.sweep import FITS, SEEDS, Sweep, alone, model_rate, needed
from gateway.tools.plan.load_history import read_csv

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.plan import Day


def sweep_of(fit: str, depths: Sequence[int]) -> Sweep:
    """What a sweep would measure, by the model."""
    rates = {
        (route, depth, schedule, load): model_rate(fit, depth, schedule, alone(ROUTES.index(route), load))
        for route, depth, schedule, load in needed([Fleet("", plan.pools_of(fit, depths))])
    }
    return Sweep(fit, rates)


TABLES: Day = ((0, 0, 0, 24), (40, 0, 0, 36))
FORMS: Day = ((0, 0, 80, 0), (30, 0, 120, 0))


@pytest.mark.parametrize(("fit", "day"), [("h100-9b", TABLES), ("slow-verify", FORMS)])
def test_the_plan_is_the_best_of_all_fleets_in_simulation(fit: str, day: Day) -> None:
    sweep = sweep_of(fit, plan.DEPTHS)
    simulated = {fleet: plan.play(fit, fleet, day, sweep, SEEDS[0]) for fleet in plan.every_fleet()}
    assert len(simulated) == 15
    for noise in (None, SEEDS[0]):
        pick = plan.depths_of(plan.plan(fit, day, sweep, noise).chosen.fleet)
        assert pick == max(simulated, key=simulated.__getitem__)


def test_a_load_that_breathes_wants_a_mixed_fleet_in_plan_and_simulation() -> None:
    fit, depths = "slow-verify", (3, 0)
    day = plan.tide((0, 0, 8), (0, 0, 250), 60, 10, 40)
    sweep = sweep_of(fit, depths)
    advice = plan.plan(fit, day, sweep, None, depths)
    pick = plan.depths_of(advice.chosen.fleet, depths)
    simulated = {fleet: plan.play(fit, fleet, day, sweep, SEEDS[0]) for fleet in plan.every_fleet(depths)}
    assert len(set(pick)) == 2
    assert simulated[pick] > 1.02 * max(simulated[(3,) * 4], simulated[(0,) * 4])
    assert simulated[pick] > 0.98 * max(simulated.values())
    assert advice.chosen.rate == pytest.approx(simulated[pick], rel=0.06)


def test_a_day_is_written_as_plan_reads_it(tmp_path: Path) -> None:
    plan.write_day(tmp_path / "day.csv", plan.DAYS["slow tide"])
    with (tmp_path / "day.csv").open() as file:
        assert next(csv.reader(file)) == ["time", *ROUTES]
    found = read_csv(tmp_path / "day.csv")
    assert sum(weight for weight, _ in found.rows) == plan.DAYS["slow tide"][-1][0]
    assert found.rows[0][1] == plan.QUIET
    assert max(counts for _, counts in found.rows) == plan.CROWD


def test_fleets_are_named_by_their_depths() -> None:
    assert plan.name_of((3, 3, 1, 0)) == "2 x 3 + 1 x 1 + 1 x 0"
    assert plan.name_of(None) == "4 x own schedule"
    assert plan.depths_of((1, 2, 1)) == (3, 1, 1, 0)
    for fit in FITS:
        assert sum(pool.engines for pool in plan.pools_of(fit, None)) == plan.ENGINES


def test_noise_is_what_seeds_differ_by() -> None:
    runs = {
        plan.Run("h100-9b", "ramps", (3,) * 4, seed): rate
        for seed, rate in ((1, 99.0), (2, 100.0), (3, 101.0))
    }
    assert plan.noise_of(runs) == pytest.approx(0.01)
    assert plan.noise_of({plan.Run("h100-9b", "ramps", (3,) * 4, 1): 99.0}) == 0
