from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from gateway.config import parse
from gateway.model import Engine
from gateway.state.fleet import Fleet
from gateway.tools.sweep.profile_files import profiles
from gateway.tools.sweep.sweep_values import Results, SweepCell
from gateway.upstream.poller import mismatch
from gateway.wire.vllm.engine import EngineReading
from tests.tools.sweep.synthetic import sweep, with_pools

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.config import Config

CONFIG = """
model: glm-ocr
pools:
  mtp3: {speculative_config: {method: mtp, num_speculative_tokens: 3}, engines: [http://d:80]}
  plain: {engines: [http://p:80]}
routes:
  table: {profile: table.json}
"""


def results(**changed: Any) -> Results:
    return sweep((0, 3), ["table"], [1, 32, 256], **changed)


def profile(found: Results, route: str = "table") -> Any:
    return json.loads(profiles(found)[route])


def config(folder: Path, found: Results, text: str = CONFIG) -> Config:
    for route, content in profiles(found).items():
        (folder / f"{route}.json").write_bytes(content)
    return parse(text, "routes.yaml", folder, {})


def test_the_gateway_takes_it_as_it_is(tmp_path: Path) -> None:
    fleet = Fleet.of(config(tmp_path, results()))
    assert fleet.chosen_by["table"] == "profile"
    assert fleet.notes == ()


def test_points_are_the_means_of_valid_closed_loop_windows() -> None:
    found = results(repeats=3, noise=0.05)
    first, second, third = (
        window for window in found.windows if window.cell.pool == "plain" and window.cell.load == 32
    )
    spoilt = replace(third, rate=1.0, invalid=("1 request failed",))
    open_loop = replace(first, rate=1.0, cell=SweepCell("table", "plain", 32, per_s=5.0))
    windows = tuple(spoilt if window is third else window for window in found.windows)
    points = profile(Results(found.setting, (*windows, open_loop)))["pools"]["plain"]
    assert [load for load, _, _ in points] == [1, 32, 256]
    _, rate, stderr = points[1]
    assert rate == pytest.approx((first.rate + second.rate) / 2, rel=1e-5)
    assert 0 < stderr < 0.1 * rate


def test_every_window_that_entered_is_there_to_be_looked_at() -> None:
    found = results(repeats=2, noise=0.05)
    told = profile(found)["meta"]["windows"]["mtp3"]
    ours = [window for window in found.windows if window.cell.pool == "mtp3"]
    assert [window["load"] for window in told] == [1, 1, 32, 32, 256, 256]
    assert [window["rate"] for window in told] == pytest.approx([window.rate for window in ours], rel=1e-5)
    assert set(told[0]) == {"load", "rate", "stderr", "seconds", "started", "engine"}
    imported = replace(ours[0], source="bench/c1.json")
    assert (
        profile(Results(found.setting, (imported,)))["meta"]["windows"]["mtp3"][0]["source"]
        == "bench/c1.json"
    )


def test_it_says_what_it_was_measured_on() -> None:
    meta = profile(results(simulated=""))["meta"]
    assert meta["model"] == "glm-ocr"
    assert meta["gpu"] == "1x H100"
    assert meta["engine_version"] == "vLLM 0.30.1"
    assert meta["pools"] == {"plain": {}, "mtp3": {"method": "mtp", "num_speculative_tokens": 3}}
    assert meta["requests"]["prompt"] == "table recognition:"
    assert "simulated" not in meta


def test_simulated_figures_are_labelled() -> None:
    meta = profile(results())["meta"]
    assert meta["simulated"] == "h100-9b"
    assert "gpu" not in meta


def test_noise_that_nobody_measured_is_said_to_be_assumed() -> None:
    assert profile(results())["meta"]["noise"] == {"of_one_window": 0.05, "assumed": True}
    assert profile(results(repeats=2, noise=0.01))["meta"]["noise"]["assumed"] is False


def test_engines_of_another_version_or_config_are_noticed(tmp_path: Path) -> None:
    found = results(simulated="")
    engine, seen = Engine("p", "http://p:80", "plain", 0), EngineReading(0, 0, True, 0, 0, 0)
    taken = config(tmp_path, found)
    assert mismatch(taken, engine, seen, "vLLM 0.30.1") == ""
    assert "measured on vLLM 0.30.1" in mismatch(taken, engine, seen, "0.31.0")
    other = CONFIG.replace("num_speculative_tokens: 3", "num_speculative_tokens: 2")
    assert "mtp3 was measured with" in Fleet.of(config(tmp_path, found, other)).notes[0]


def test_engines_of_mixed_versions_are_all_noticed(tmp_path: Path) -> None:
    found = results()
    mixed = with_pools(found, mtp3=replace(found.setting.pools["mtp3"], version="0.31.0"))
    engine, seen = Engine("p", "http://p:80", "plain", 0), EngineReading(0, 0, True, 0, 0, 0)
    told = mismatch(config(tmp_path, mixed), engine, seen, "simulated")
    assert told.endswith("measured on simulated (plain), 0.31.0 (mtp3)")


def test_engines_that_told_no_version_are_compared_with_none(tmp_path: Path) -> None:
    found = results()
    silent = with_pools(found, **{name: replace(of, version="") for name, of in found.setting.pools.items()})
    assert "engine_version" not in profile(silent)["meta"]


def test_a_pool_that_was_not_measured_is_lacking_and_the_gateway_says_so(tmp_path: Path) -> None:
    found = results()
    only = Results(found.setting, tuple(w for w in found.windows if w.cell.pool == "plain"))
    assert set(profile(only)["pools"]) == set(profile(only)["meta"]["pools"]) == {"plain"}
    assert "no curve of mtp3" in Fleet.of(config(tmp_path, only)).notes[0]


def test_a_route_without_a_valid_window_has_no_profile() -> None:
    found = sweep((0, 3), ["table", "text"], [1])
    spoilt = tuple(
        replace(window, invalid=("foreign traffic",)) if window.cell.route == "text" else window
        for window in found.windows
    )
    assert list(profiles(Results(found.setting, spoilt))) == ["table"]


def test_odd_names_are_legal(tmp_path: Path) -> None:
    found = results()
    name, pools = "0.a_b-c..d", dict(found.setting.pools)
    pools[name] = pools.pop("plain")
    windows = tuple(
        replace(window, cell=replace(window.cell, pool=name)) if window.cell.pool == "plain" else window
        for window in found.windows
    )
    odd = Results(replace(found.setting, pools=pools), windows)
    fleet = Fleet.of(config(tmp_path, odd, CONFIG.replace("plain:", f"{name}:")))
    assert fleet.chosen_by["table"] == "profile"


def test_a_changed_point_is_a_changed_line() -> None:
    lines = profiles(results())["table"].decode().splitlines()
    assert [line for line in lines if line.startswith("      [256, ")]
    assert '      "mtp3": {"method": "mtp", "num_speculative_tokens": 3}' in lines
    assert sum('{"load": ' in line for line in lines) == 6
