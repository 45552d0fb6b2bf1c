from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.policy.choose.gain import Crossover, Curve, SpeedTable
from gateway.policy.choose.split import SplitInputs, SplitPlan, SplitPool, replanned

AT_64 = Crossover(64, True)
LOADS = (1, 10, 40, 80, 160, 320)


def curve(constant: float, linear: float, square: float = 0.0) -> Curve:
    return Curve([(n, n / (constant + linear * n + square * n * n), 0.01) for n in LOADS])


# Route 0 bears a crowd anywhere; route 1 collapses in one on the deep pool. Mixed, they spoil each other.
DEEP = SpeedTable([curve(0.004, 4e-4), curve(0.004, 1e-4, 4e-6)], [AT_64] * 2, 320)
PLAIN = SpeedTable([curve(0.012, 6e-4), curve(0.012, 5e-5, 1e-7)], [AT_64] * 2, 320)
BOTH = (True, True)


def pools(engines: int = 1) -> dict[str, SplitPool]:
    return {"deep": SplitPool(DEEP, engines, BOTH), "plain": SplitPool(PLAIN, engines, BOTH)}


def rate(split: dict[str, list[float]], engines: int = 1) -> float:
    return sum(
        engines * pool.table.rate([count / engines for count in split[name]])
        for name, pool in pools(engines).items()
    )


def greedy(population: list[int]) -> dict[str, list[float]]:
    """Where the choice by gain puts a population that comes one by one."""
    split = {"deep": [0.0, 0.0], "plain": [0.0, 0.0]}
    tables = {"deep": DEEP, "plain": PLAIN}
    for route in itertools.chain(*itertools.zip_longest(*([r] * n for r, n in enumerate(population)))):
        if route is not None:
            gains = {
                name: tables[name].appraise([int(n) for n in split[name]], 0, [0, 0]).gains[route]
                for name in split
            }
            split[max(gains, key=gains.__getitem__)][route] += 1
    return split


def test_routes_that_are_best_kept_apart_are() -> None:
    plan = replanned(SplitInputs(None, [160, 160], pools()))
    assert plan is not None
    assert plan.targets
    targets = {name: list(counts) for name, counts in plan.targets.items()}
    assert rate(targets) >= 1.05 * rate(greedy([160, 160]))
    assert sum(map(sum, targets.values())) == 320
    assert plan.loads == {name: sum(counts) for name, counts in targets.items()}


def test_several_engines_of_a_pool_share_its_part() -> None:
    one, three = (
        replanned(SplitInputs(None, [160, 160], pools())),
        replanned(SplitInputs(None, [480, 480], pools(3))),
    )
    assert one is not None
    assert three is not None
    assert three.loads["deep"] == pytest.approx(one.loads["deep"], rel=0.15)


def test_few_requests_and_fleets_without_a_choice_need_no_plan() -> None:
    assert replanned(SplitInputs(None, [15, 15], pools())) is None
    assert replanned(SplitInputs(None, [160, 160], {"deep": pools()["deep"]})) is None
    forced = {"deep": SplitPool(DEEP, 1, (True, False)), "plain": SplitPool(PLAIN, 1, (False, True))}
    assert replanned(SplitInputs(None, [160, 160], forced)) is None
    many = {f"p{n}": SplitPool(PLAIN, 1, BOTH) for n in range(6)}
    assert replanned(SplitInputs(None, [160, 160], many)) is None


def test_where_the_greedy_does_as_well_there_is_nothing_to_aim_at() -> None:
    alike = {"a": SplitPool(PLAIN, 1, BOTH), "b": SplitPool(PLAIN, 1, BOTH)}
    plan = replanned(SplitInputs(None, [60, 60], alike))
    assert plan == SplitPlan((60, 60), {}, {})


def test_it_stands_while_the_population_does() -> None:
    plan = replanned(SplitInputs(None, [160, 160], pools()))
    assert replanned(SplitInputs(plan, [150, 165], pools())) is plan
    assert replanned(SplitInputs(plan, [100, 165], pools())) is not plan
    nothing = SplitPlan((160, 160), {}, {})
    assert replanned(SplitInputs(nothing, [165, 155], pools())) is nothing


def test_nothing_is_planned_beyond_what_was_measured_or_allowed() -> None:
    plan = replanned(SplitInputs(None, [320, 320], pools()))
    assert plan is None or all(load <= 320 for load in plan.loads.values())
    assert replanned(SplitInputs(None, [900, 900], pools())) == SplitPlan((900, 900), {}, {})


def test_a_route_stays_off_the_pools_it_may_not_use() -> None:
    third = {**pools(), "third": SplitPool(PLAIN, 1, (False, True))}
    plan = replanned(SplitInputs(None, [160, 160], third))
    assert plan is not None
    assert not plan.targets or plan.targets["third"][0] == 0


@settings(max_examples=25)
@given(st.integers(0, 300), st.integers(0, 300))
def test_a_plan_is_better_by_what_it_must_be_and_loses_nobody(first: int, second: int) -> None:
    plan = replanned(SplitInputs(None, [first, second], pools()))
    if plan and plan.targets:
        for route, count in enumerate((first, second)):
            assert sum(counts[route] for counts in plan.targets.values()) == pytest.approx(count)
        assert all(count >= 0 for counts in plan.targets.values() for count in counts)
