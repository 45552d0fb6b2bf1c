from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.config import parse
from gateway.engines.vllm_page import EngineCounts, metrics_page
from gateway.errors import ConfigError
from gateway.model import Engine
from gateway.tools.sweep import targets
from gateway.tools.sweep.sweep_values import SweptPool
from gateway.tools.sweep.targets import EngineFacts
from gateway.upstream.client import EngineClient
from tests.support import FakeEngine, served
from tests.tools.sweep.support import simulated

ROUTES = """
model: glm-ocr
pools:
  plain: {engines: ["http://a:1", "http://b:1"]}
  mtp3:
    speculative_config: {method: mtp, num_speculative_tokens: 3}
    engines: ["http://c:1"]
    max_load: 64
routes:
  text: {}
  table: {pools: [mtp3]}
  key-value: {pools: [plain]}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "routes.yaml"
    file.write_text(ROUTES)
    return file


def problems(caught: pytest.ExceptionInfo[ConfigError]) -> str:
    return "\n".join(caught.value.problems)


def test_a_configuration_is_cut_down_to_what_is_asked_for(path: Path) -> None:
    everything = targets.configured(path, None, None)
    assert {name: everything.pools_of(name) for name in everything.routes} == {
        "text": ("plain", "mtp3"),
        "table": ("mtp3",),
        "key-value": ("plain",),
    }
    some = targets.configured(path, ["mtp3"], None)
    assert list(some.pools) == ["mtp3"]
    assert {name: some.pools_of(name) for name in some.routes} == {"text": ("mtp3",), "table": ("mtp3",)}
    assert list(targets.configured(path, None, ["table"]).routes) == ["table"]


@pytest.mark.parametrize(
    ("pools", "routes", "said"),
    [
        (["mtp4"], None, "--pools: "),
        (["mtp4"], None, "has no pool 'mtp4', but plain, mtp3"),
        (None, ["tables"], "has no route 'tables', but text, table, key-value"),
        (["plain"], ["table"], "none of the routes may use pool plain"),
    ],
)
def test_what_the_configuration_does_not_have_is_named(
    path: Path, pools: list[str] | None, routes: list[str] | None, said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        targets.configured(path, pools, routes)
    assert said in problems(refused)


def test_engines_by_depth_are_pools_named_after_it() -> None:
    config = targets.named([(3, "http://c:1"), (0, "http://a:1/"), (0, "http://b:1")], "dots", None)
    assert config.model == "dots"
    assert {name: (pool.depth, pool.engines) for name, pool in config.pools.items()} == {
        "depth0": (0, ("http://a:1", "http://b:1")),
        "depth3": (3, ("http://c:1",)),
    }
    assert list(config.routes) == ["text", "key-value", "table"]
    assert list(targets.named([(0, "http://a:1")], "dots", ["table"]).routes) == ["table"]


def test_an_engine_without_a_url_is_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        targets.named([(0, "gpu-1:8000")], "glm-ocr", None)
    assert "--engine: must be http(s)://host:port" in problems(refused)


async def test_every_address_of_a_name_is_an_engine() -> None:
    config = targets.named([(0, "dns+http://localhost:81"), (3, "http://c:1")], "glm-ocr", None)
    found = await targets.engines(config)
    assert found == (
        Engine("127.0.0.1:81", "http://127.0.0.1:81", "depth0", 0),
        Engine("c:1", "http://c:1", "depth3", 3),
    )


async def test_pools_that_cannot_be_swept_are_all_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def addresses_of(host: str, port: int) -> frozenset[str]:
        raise OSError("unknown name")

    monkeypatch.setattr("gateway.upstream.discovery.addresses_of", addresses_of)
    pools = "{cpu: {engines: [embedded]}, far: {engines: ['dns+http://h.invalid:1']}}"
    with pytest.raises(ConfigError) as refused:
        await targets.engines(
            parse(f"{{model: m, pools: {pools}, routes: {{text: {{}}}}}}", "routes.yaml", Path(), {})
        )
    assert "pool cpu: the embedded engine cannot be swept" in problems(refused)
    assert "pool far: dns+http://h.invalid:1: no engine has this name" in problems(refused)


async def test_engines_tell_what_they_are() -> None:
    async with simulated(0) as plain, simulated(3) as deep, EngineClient() as client:
        config = targets.named([(0, plain.url), (3, deep.url)], "glm-ocr", ["text"])
        engines = (plain, deep)
        found = await targets.check(client, config, engines)
    assert found["e3"].simulated == "h100-9b"
    assert found["e3"].time_scale == 20
    assert found["e3"].version.endswith("+simulated")
    assert targets.pools(config, engines, found) == {
        "depth0": SweptPool(0, version=found["e0"].version),
        "depth3": SweptPool(3, {"method": "mtp", "num_speculative_tokens": 3}, version=found["e3"].version),
    }


async def test_every_problem_of_every_engine_is_told_before_anything_is_measured() -> None:
    page = metrics_page(EngineCounts(awake=False), "m").encode()
    sleeping = FakeEngine(metrics=page, version="0.30.1", models=("dots-ocr", "m"))
    silent = FakeEngine()
    async with (
        simulated(3) as deep,
        served(sleeping) as sleeping_url,
        served(silent) as silent_url,
        EngineClient() as client,
    ):
        config = targets.named([(0, deep.url)], "dots-ocr", ["text"])
        engines = [
            replace(deep, pool="depth0"),
            Engine("gone", "http://127.0.0.1:9", "depth0", 0),
            Engine("silent", silent_url, "depth0", 0),
            Engine("sleeping", sleeping_url, "depth0", 0),
        ]
        with pytest.raises(ConfigError) as refused:
            await targets.check(client, config, engines)

    assert refused.value.problems == [
        "e3 (pool depth0): it serves glm-ocr, not dots-ocr",
        "e3 (pool depth0): it speculates (its metrics have spec_decode series), but pool depth0 has no "
        "speculative_config",
        "gone (pool depth0): http://127.0.0.1:9/health does not answer 200: no connection to it: it refuses "
        "connections (Connection refused); check that it runs and listens at this port",
        "silent (pool depth0): the engine answered /metrics with HTTP 404",
        "sleeping (pool depth0): it sleeps",
    ]


async def test_simulated_and_real_engines_are_never_compared() -> None:
    page = metrics_page(EngineCounts(), "glm-ocr").encode()
    real = FakeEngine(metrics=page, version="0.30.1", models=("glm-ocr",))
    async with simulated(0) as plain, served(real) as url, EngineClient() as client:
        config = targets.named([(0, plain.url)], "glm-ocr", ["text"])
        with pytest.raises(ConfigError) as refused:
            await targets.check(client, config, [plain, Engine("real", url, "depth0", 0)])
    assert "of different kinds, which nobody may compare: real and simulated by fit h100-9b" in problems(
        refused
    )


def test_a_pool_of_several_versions_says_so() -> None:
    config = targets.named([(0, "http://a:1"), (0, "http://b:1")], "glm-ocr", ["text"])
    engines = [Engine(name, f"http://{name}:1", "depth0", 0) for name in "ab"]
    found = {"a": EngineFacts("0.31.0", "", 1), "b": EngineFacts("0.30.1", "", 1)}
    assert targets.pools(config, engines, found) == {
        "depth0": SweptPool(0, engines=2, version="0.30.1, 0.31.0")
    }
    assert targets.pools(config, (), {}) == {"depth0": SweptPool(0, engines=0)}
