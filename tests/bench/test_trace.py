from __future__ import annotations

import pytest

from bench.choice import trace
from bench.choice.fleet import ROUTES
from bench.choice.sweep import FITS, Sweep, alone, model_rate, needed


def test_the_day_ramps_between_its_hours() -> None:
    second, *counts = trace.DAY[3]
    assert list(trace.clients_at(second).values()) == counts
    (early, *low), (late, *high) = trace.DAY[1:3]
    middle = trace.clients_at((early + late) / 2)
    assert [middle[route] for route in ROUTES] == [(a + b) // 2 for a, b in zip(low, high, strict=True)]


@pytest.mark.parametrize("fit", FITS)
def test_every_fleet_has_as_many_engines(fit: str) -> None:
    cases = trace.cases(fit)
    assert len(set(cases)) == len(cases)
    assert {len(case.fleet.engines) for case in cases} == {trace.ENGINES}


def test_a_short_day_adds_up() -> None:
    fleet = trace.fleet_of((3, 3, 0, 0))
    rates = {
        (route, depth, schedule, load): model_rate(
            "h100-9b", depth, schedule, alone(ROUTES.index(route), load)
        )
        for route, depth, schedule, load in needed([fleet])
    }
    found = trace.play("h100-9b", fleet, "ours", Sweep("h100-9b", rates), 1, shrink=0.02)
    assert sum(found.by_route.values()) <= found.rate * 1.05
    assert sum(sample.rate for sample in found.samples) / len(found.samples) == pytest.approx(
        found.rate * trace.ENGINES, rel=1e-6
    )
    for sample in found.samples[1:-1]:
        assert sum(sample.by_pool.values()) >= sum(trace.clients_at(sample.at - 5).values()) * 0.9
