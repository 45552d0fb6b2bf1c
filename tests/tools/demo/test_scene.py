import json
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from bench.serving import ROOT, free_port
from gateway.config import load as load_config
from gateway.engines.simulated.step_model import Fit, throughput
from gateway.state.fleet import Fleet
from gateway.tools.demo import scene, watch
from gateway.tools.demo.processes import ServiceFailed, is_free
from gateway.tools.demo.scene import DEPTHS, Scene

LONG_S = 240
ROUTES = ("text", "key-value", "table")


def read(url: str) -> watch.MetricsReading:
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as page:
        return watch.read(page.read().decode(), time.monotonic())


def depths_in_turn(url: str, at_least: int) -> Iterator[dict[str, list[int]]]:
    """Yield again and again the depths that most requests of each route got, one after the other.

    It counts where it was more than 60% of so many requests in a row.
    """
    before = dict.fromkeys(ROUTES, read(url))
    depths: dict[str, list[int]] = {route: [] for route in ROUTES}
    while True:
        now = read(url)
        for route, found in depths.items():
            told = watch.recent(route, before[route], now)
            if told.requests >= at_least:
                before[route] = now
                if told.depth is not None and told.share > 0.6 and found[-1:] != [told.depth]:
                    found.append(told.depth)
        yield depths
        time.sleep(0.1)


def has_left_and_come_back(depths: list[int]) -> bool:
    return any(depth == last for depth, _, last in zip(depths, depths[1:], depths[2:], strict=False))


def test_a_route_moves_between_depths_as_the_load_breathes() -> None:
    told: list[str] = []
    wanted = Scene(port=free_port(), period_s=20.0, time_scale=8.0, prometheus=False)
    with scene.running(wanted, told.append) as running:
        assert running.prometheus == ""
        assert running.processes.names == ["engine-mtp3", "engine-mtp1", "engine-plain", "gateway", "load"]
        end = time.monotonic() + LONG_S
        for depths in depths_in_turn(wanted.url, at_least=10):
            used = {depth for found in depths.values() for depth in found}
            if used == set(DEPTHS.values()) and any(map(has_left_and_come_back, depths.values())):
                break
            assert time.monotonic() < end, depths
        with urllib.request.urlopen(f"{wanted.url}/status", timeout=60) as page:
            status = json.load(page)
    assert status["model"] == scene.MODEL
    assert not any(engine["mismatch"] for engine in status["engines"])
    assert all(route["chosen_by"] == "profile" for route in status["routes"].values())
    assert is_free(wanted.port)
    assert all("simulated" in line for line in told)


def test_what_has_begun_is_ended_whatever_happens() -> None:
    wanted = Scene(port=free_port(), prometheus=False)
    with pytest.raises(ZeroDivisionError), scene.running(wanted):  # noqa: PT012 - what the block raises
        assert not is_free(wanted.port)
        raise ZeroDivisionError
    assert is_free(wanted.port)


def test_a_port_that_is_taken_is_named_with_one_that_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ServiceFailed, match=rf"port {port} is taken: .*--port (\d+)") as refused:
            scene.running(Scene(port=port)).__enter__()
    assert is_free(int(str(refused.value).rpartition(" ")[2]))


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_profiles_are_what_the_simulated_engines_give(scale: float) -> None:
    fit = Fit.builtin(scene.FIT)
    for route, profile in scene.profiles(fit, scale).items():
        assert profile["meta"]["simulated"] == scene.FIT
        for pool, points in profile["pools"].items():
            for load, rate in points:
                exact = scale * throughput(fit, DEPTHS[pool], {route: load})[route]
                assert rate == pytest.approx(exact, abs=0.1)


def test_the_configuration_is_valid_and_every_route_crosses_over(tmp_path: Path) -> None:
    files = {}
    for route, profile in scene.profiles(Fit.builtin(scene.FIT), 1.0).items():
        files[route] = f"{route}.json"
        (tmp_path / files[route]).write_text(json.dumps(profile))
    path = tmp_path / "routes.yaml"
    path.write_text(
        yaml.safe_dump(scene.configuration({pool: 8101 + depth for pool, depth in DEPTHS.items()}, files))
    )
    config = load_config(path)
    assert {name: pool.depth for name, pool in config.pools.items()} == DEPTHS
    assert "simulated" in config.model
    fleet = Fleet.of(config)
    assert not fleet.notes
    for index, _ in enumerate(fleet.routes):
        crossover = fleet.tables["mtp3"].crossover(index)
        assert crossover.left
        assert Scene().few < crossover.load < Scene().many


def test_a_checkouts_rules_are_scraped_with() -> None:
    config = scene._scraping(Scene(port=8123))
    assert config["rule_files"] == [
        str(ROOT / "deploy/prometheus" / name) for name in ("rules.yaml", "alerts.yaml")
    ]
    ((target,),) = (job["static_configs"][0]["targets"] for job in config["scrape_configs"])
    assert target == "127.0.0.1:8123"
