from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.serving import ROOT
from gateway.engines.simulated.step_model import Depths, Fit, RouteShape, builtin_fits, throughput
from gateway.errors import ConfigError
from tests.engines.simulated.published import ROUTES, Figure, curves, figures, report

if TYPE_CHECKING:
    from pathlib import Path

H100 = Fit.builtin("h100-9b")
DOCUMENT = ROOT / "docs/simulated-engine.md"


def shape(*acceptance: float, output_tokens: float = 100) -> RouteShape:
    return RouteShape(output_tokens, 0.5, 1000, 50, acceptance + (0.0,) * (16 - len(acceptance)))


@pytest.mark.parametrize("figure", figures(H100), ids=lambda figure: figure.name)
def test_the_shipped_fit_meets_each_published_figure_within_five_percent(figure: Figure) -> None:
    assert figure.model == pytest.approx(figure.published, rel=0.05)


@pytest.mark.parametrize(
    ("depth", "least", "most"),
    [(1, 1.9, 2.0), (2, 2.8, 2.95), (4, 3.15, 4.05), (8, 3.1, 4.4), (16, 3.1, 4.4)],
)
def test_the_shipped_fit_has_the_published_tokens_a_pass(depth: int, least: float, most: float) -> None:
    for route in ROUTES:
        assert least <= H100.routes[route].acceptance_length(depth) <= most


def test_the_shipped_fit_crosses_over_where_it_is_published_to() -> None:
    both = curves(H100)
    for route in ROUTES:
        assert all(both.gain(route, n) > 0.1 for n in (1, 10, 24, 32, 40))
        assert both.gain(route, 64) > 0 > both.gain(route, 80)
        assert both.gain(route, 128) < -0.02
    assert both.gain("text", 256) > 0.01
    assert both.gain("key-value", 256) < -0.2
    assert both.gain("table", 256) < -0.2


def test_without_speculation_throughput_rises_with_concurrency() -> None:
    plain = curves(H100).plain
    for route in ("key-value", "table"):
        assert sorted(plain[route].values()) == list(plain[route].values())
    assert plain["text"][128] > 15 * plain["text"][1]


def test_the_documented_figures_are_the_shipped_fits() -> None:
    assert report(H100) in DOCUMENT.read_text()


def test_the_other_fit_crosses_over_elsewhere() -> None:
    fit = Fit.builtin("slow-verify")
    for route in fit.routes:
        gains = [
            throughput(fit, 3, {route: n})[route] / throughput(fit, 0, {route: n})[route] for n in (16, 48)
        ]
        assert gains[0] > 1 > gains[1]


def test_shipped_fits_say_that_they_are_simulated() -> None:
    assert builtin_fits() == ["h100-9b", "slow-verify"]
    for name in builtin_fits():
        assert Fit.builtin(name).name == name
        assert Fit.builtin(name).source.startswith("Simulated. ")


def test_an_unknown_fit_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match="h100-9b, slow-verify"):
        Fit.builtin("../h100-9b")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"step": {}}, r"base_ms.*\$\.step"),
        ({"extra": 1}, "extra"),
        ({"name": ""}, r"\$\.name"),
        ({"routes": {}}, r"\$\.routes"),
        ({"routes": {"text": {"output_tokens": 0}}}, r"\$\.routes.*output_tokens"),
    ],
)
def test_a_file_that_is_no_fit_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = tmp_path / "fit.json"
    path.write_text(json.dumps({**msgspec.to_builtins(H100), **change}))
    with pytest.raises(ConfigError, match=rf"fit\.json: .*{said}"):
        Fit.load(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json"):
        Fit.load(tmp_path / "none.json")


def test_acceptance_cannot_rise_with_the_position() -> None:
    with pytest.raises(ValueError, match="rises"):
        shape(0.5, 0.6)


def test_steps_of_an_answer() -> None:
    assert shape(0.9).steps(0) == 99
    assert shape(1.0, output_tokens=101).steps(1) == pytest.approx(50.25)
    assert shape(output_tokens=1).steps(3) == 0


def test_a_schedule_is_read_as_vllm_reads_it() -> None:
    depths = Depths(3, [[1, 16, 5], [32, 63, 1], [64, 512, 0]])
    assert [depths.at(n) for n in (0, 1, 16, 17, 31, 32, 63, 64, 512, 9999)] == [3, 3, 3, 3, 3, 1, 1, 0, 0, 0]
    assert Depths(2).at(100) == 2


@pytest.mark.parametrize(
    ("depth", "schedule", "said"),
    [
        (-1, None, "0 to 16"),
        (17, None, "0 to 16"),
        (3, [[2, 8, 1]], "starts at 1"),
        (3, [[1, 8, 1], [8, 9, 0]], "ascend"),
        (3, [[1, 8, -1]], "ascend"),
        (3, [[1, 8]], "from, to, depth"),
        (3, [[1, 8, 0.5]], "from, to, depth"),
    ],
)
def test_a_wrong_depth_or_schedule_is_refused(depth: int, schedule: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Depths(depth, schedule)


def test_no_requests_no_tokens() -> None:
    assert throughput(H100, 3, {}) == {}
    assert throughput(H100, 3, {"text": 0}) == {"text": 0.0}


@given(
    counts=st.dictionaries(st.sampled_from(ROUTES), st.integers(1, 500), min_size=1),
    depth=st.integers(0, 16),
    places=st.integers(1, 300),
)
def test_fewer_places_never_break_the_account(counts: dict[str, int], depth: int, places: int) -> None:
    rates = throughput(H100, depth, counts, max_num_seqs=places)
    assert rates.keys() == counts.keys()
    assert all(rate > 0 for rate in rates.values())
    if places >= sum(counts.values()):
        assert rates == pytest.approx(throughput(H100, depth, counts))


@pytest.mark.parametrize("count", [8, 40, 63, 64, 70, 100, 200])
def test_a_schedule_is_never_far_below_the_better_of_its_depths(count: int) -> None:
    schedule = [[1, 63, 3], [64, 4096, 0]]
    for route in ROUTES:
        scheduled = throughput(H100, 3, {route: count}, schedule=schedule)[route]
        fixed = [throughput(H100, depth, {route: count})[route] for depth in (0, 3)]
        assert min(fixed) * 0.99 <= scheduled <= max(fixed) * 1.01
