from __future__ import annotations

from pathlib import Path

import pytest

from bench.choice import choosers
from bench.choice.fleet import ROUTES, Fleet, Pool, World
from bench.choice.sweep import LOADS, Sweep, alone, fit_of, model_rate

FIT = "h100-9b"
OWN = ((1, 63, 3), (64, 4096, 0))
FLEET = Fleet("both", (Pool("deep", 3), Pool("auto", 3, 2, OWN), Pool("plain", 0)))
SCHEDULES = dict.fromkeys(ROUTES, OWN)


def sweep(fleet: Fleet) -> Sweep:
    return Sweep(
        FIT,
        {
            (route, pool.depth, pool.schedule, load): model_rate(
                FIT, pool.depth, pool.schedule, alone(place, load)
            )
            for place, route in enumerate(ROUTES)
            for pool in fleet.pools
            for load in LOADS
        },
    )


def worlds(count: int, replicas: int, tmp_path: Path) -> tuple[World, list[choosers.Gateway]]:
    world = World(fit_of(FIT), FLEET, seed=1)
    sweep(FLEET).write_profiles(tmp_path, FLEET.pools, 1)
    text = choosers.config_text(FLEET, ROUTES, weights={"text": 2.5}, replicas=replicas)
    gateways = [choosers.Gateway(world, text, tmp_path, seed) for seed in range(replicas)]
    world.clients(lambda client: gateways[client % replicas], dict.fromkeys(ROUTES, count))
    return world, gateways


def test_the_gateway_s_state_is_what_decides_and_it_agrees_with_the_engines(tmp_path: Path) -> None:
    world, (gateway,) = worlds(20, 1, tmp_path)
    assert all(gateway.state.fleet.chosen_by[route] == "profile" for route in ROUTES)
    assert gateway.state.fleet.config.routes["text"].weight == 2.5
    world.run(10.0)
    assert len(world.answers) > 50
    for name, load in world.load.items():
        assert gateway.state.activity(name).in_flight == sum(load.values())


def test_replicas_see_each_other_in_scrapes_alone(tmp_path: Path) -> None:
    world, (one, two) = worlds(20, 2, tmp_path)
    world.run(1.0)
    apart = sum(engine.view.load for engine in one.state.snapshot().engines)
    assert apart == sum(engine.view.ours for engine in one.state.snapshot().engines)
    one.scrape()
    loads = {engine.view.engine.name: engine.view.load for engine in one.state.snapshot().engines}
    assert loads == {name: sum(load.values()) for name, load in world.load.items()}
    assert sum(engine.view.load for engine in two.state.snapshot().engines) < sum(loads.values())


def test_schedules_alone_make_a_configuration_too() -> None:
    world = World(fit_of(FIT), FLEET, seed=1)
    text = choosers.config_text(FLEET, ROUTES, schedules=SCHEDULES)
    gateway = choosers.Gateway(world, text, Path(), 1)
    assert {gateway.state.fleet.chosen_by[route] for route in ROUTES} == {"schedule"}


PAIR = Fleet("pair", (Pool("plain", 0), Pool("deep", 3)))


def loaded(plain: int, deep: int) -> World:
    world = World(fit_of(FIT), PAIR, seed=1)
    world.load["plain-0"]["table"] = plain
    world.load["deep-0"]["table"] = deep
    return world


@pytest.mark.parametrize(
    ("plain", "deep", "engine"),
    [(0, 0, "deep-0"), (0, 62, "deep-0"), (0, 63, "plain-0"), (80, 80, "plain-0"), (63, 62, "deep-0")],
)
def test_fill_to_crossover_fills_the_deep_engine_first(plain: int, deep: int, engine: str) -> None:
    assert choosers.fill_to_crossover(loaded(plain, deep), SCHEDULES).begin(0, "table") == engine


def test_fastest_for_itself_looks_at_its_own_speed_only() -> None:
    curves = {"table": {"plain": [(1, 10.0), (10, 80.0)], "deep": [(1, 20.0), (10, 70.0)]}}
    assert choosers.fastest_for_itself(loaded(0, 0), curves).begin(0, "table") == "deep-0"
    assert choosers.fastest_for_itself(loaded(0, 9), curves).begin(0, "table") == "plain-0"


def test_least_loaded_and_round_robin() -> None:
    assert choosers.least_loaded(loaded(3, 2)).begin(0, "text") == "deep-0"
    turns = choosers.round_robin(loaded(3, 2))
    assert [turns.begin(0, "text") for _ in range(3)] == ["plain-0", "deep-0", "plain-0"]
