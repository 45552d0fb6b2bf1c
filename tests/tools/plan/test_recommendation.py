from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gateway.policy.choose.composition import Advice, advise
from gateway.policy.choose.fleet_model import EngineKind, FleetModel, LoadHistogram
from gateway.tools.plan.engine_kinds import Measured
from gateway.tools.plan.recommendation import FleetReport
from tests.policy.choose.test_fleet_model import curve

if TYPE_CHECKING:
    from gateway.policy.choose.gain import Curve

MTP3 = {"method": "mtp", "num_speculative_tokens": 3}
MTP1 = {"method": "mtp", "num_speculative_tokens": 1}
OWN = {**MTP3, "num_speculative_tokens_per_batch_size": [[1, 24, 3], [25, 256, 0]]}
BREATHING = LoadHistogram(np.array([0.8, 0.1, 0.1]), np.array([[2.0, 1.0], [100.0, 100.0], [0.0, 0.0]]))
QUIET = LoadHistogram(np.array([1.0]), np.array([[2.0, 1.0]]))


def deep(error: float = 0.01) -> tuple[Curve, Curve]:
    return curve(0.004, 4e-4, 0.0, error), curve(0.004, 1e-4, 4e-6, error)


def plain(error: float = 0.01) -> tuple[Curve, Curve]:
    return curve(0.012, 6e-4, 0.0, error), curve(0.010, 5e-5, 1e-7, error)


def advised(
    configs: dict[str, Any],
    curves: list[tuple[Curve, Curve]],
    load: LoadHistogram = BREATHING,
    engines: int = 2,
    *,
    simulated: bool = True,
) -> tuple[FleetReport, Advice]:
    kinds = tuple(EngineKind(name, mine) for name, mine in zip(configs, curves, strict=True))
    measured = Measured(("text", "table"), kinds, configs, simulated, "glm-ocr, H100", ("mind the step",))
    return FleetReport(measured), advise(
        FleetModel(kinds, 256, (1.0, 1.0)), load, engines, np.random.default_rng(1)
    )


TWO: dict[str, Any] = {"mtp3": MTP3, "plain": {}}


def test_the_answer_stands_first_with_its_numbers() -> None:
    report, advice = advised(TWO, [deep(), plain()])
    first, *_ = report.text(advice, BREATHING, "day.csv").splitlines()
    assert first.startswith("With 2 engines: 1 at depth 3, 1 plain: ")
    assert f"{advice.chosen.rate:,.0f} tokens/s on average over this load (simulated profiles), +" in first
    assert "% over two at depth 3, +" in first
    assert "% over two plain, " in first
    assert "% over two that schedule their own depth (an estimate)." in first


def test_simulated_and_measured_are_told_apart_throughout() -> None:
    report, advice = advised(TWO, [deep(), plain()])
    text = report.text(advice, BREATHING, "day.csv")
    assert "measured profiles" not in text
    assert text.count("simulated") >= 4
    assert report.as_json(advice, BREATHING, "day.csv")["profiles"] == "simulated"
    report, advice = advised(TWO, [deep(), plain()], simulated=False)
    text = report.text(advice, BREATHING, "day.csv")
    assert "simulated" not in text
    assert "measured profiles" in text
    assert report.as_json(advice, BREATHING, "day.csv")["profiles"] == "measured"


def test_the_load_the_profiles_and_the_estimate_s_caveat_are_told() -> None:
    report, advice = advised(TWO, [deep(), plain()])
    text = report.text(advice, BREATHING, "day.csv")
    assert "Load: day.csv; 22.4 requests in the system on average, 200 at most, none for 10%" in text
    assert "Profiles: simulated, glm-ocr, H100. 3 of 3 compositions were valued." in text
    assert "Note: mind the step." in text
    assert "vllm#49548" in text
    assert "are estimated" in text


def test_routes_that_are_better_kept_apart_are_named_with_what_it_gains() -> None:
    report, advice = advised(TWO, [deep(), plain()])
    text = report.text(advice, BREATHING, "day.csv")
    assert "Keep the routes apart from 200 requests on" in text
    assert "1 at depth 3: text; 1 plain: table" in text
    report, advice = advised(TWO, [deep(), plain()], QUIET, engines=1)
    assert "Keep the routes apart" not in report.text(advice, QUIET, "day.csv")


def test_tables_show_sizes_bands_and_rivals() -> None:
    report, advice = advised(TWO, [deep(), plain()])
    text = report.text(advice, BREATHING, "day.csv")
    lines = [line.split() for line in text.splitlines()]
    assert [line[0] for line in lines if line and line[0] in "123" and len(line) > 4][:3] == ["1", "2", "3"]
    assert any(line[:2] == ["3", "80.0%"] for line in lines)
    assert any(line[:2] == ["200", "10.0%"] for line in lines)
    assert "Fewest engines of one kind on which nothing waits at the peak: " in text
    assert not any(line != line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize(
    ("error", "load", "told"),
    [
        (
            0.5,
            LoadHistogram(np.array([0.75, 0.25]), np.array([[2.0, 1.0], [100.0, 40.0]])),
            "of the draws of the profiles' errors only",
        ),
        (0.01, LoadHistogram(np.array([0.8, 0.2]), np.array([[2.0, 1.0], [40.0, 40.0]])), "good for (2%)"),
    ],
)
def test_where_the_simpler_fleet_does_as_well_the_words_say_why(
    error: float, load: LoadHistogram, told: str
) -> None:
    report, advice = advised(TWO, [deep(error), plain(error)], load)
    assert advice.best is not advice.chosen
    second = report.text(advice, load, "day.csv").splitlines()[1]
    assert second.startswith("1 at depth 3, 1 plain comes out ")
    assert told in second
    assert "the simpler fleet is recommended" in second


def test_a_runner_up_that_cannot_be_told_apart_is_said_to_be_one() -> None:
    report, advice = advised({"a": MTP3, "b": {}}, [deep(), deep()], engines=1)
    second = report.text(advice, BREATHING, "day.csv").splitlines()[1]
    assert second.startswith("Next is one ")
    assert "cannot be told apart" in second


def test_a_single_kind_has_nothing_to_compare_with() -> None:
    report, advice = advised({"mtp3": MTP3}, [deep()], engines=1)
    text = report.text(advice, BREATHING, "day.csv")
    assert text.startswith("With 1 engine: one at depth 3: ")
    assert "Next is" not in text
    assert "own depth" not in text


def test_a_crowd_that_no_fleet_holds_is_told() -> None:
    flood = LoadHistogram(np.array([1.0]), np.array([[300_000.0, 300_000.0]]))
    report, advice = advised(TWO, [deep(), plain()], flood)
    assert "No number of engines of one kind serves the peak" in report.text(advice, flood, "day.csv")
    assert report.as_json(advice, flood, "day.csv")["enough"] is None


@pytest.mark.parametrize(
    ("configs", "fleet", "told"),
    [
        ({"a": MTP3, "b": MTP1, "c": {}}, (1, 2, 1), "1 at depth 3, 2 at depth 1, 1 plain"),
        ({"a": MTP3, "b": MTP3, "c": {}}, (1, 2, 0), "1 of a, 2 of b"),
        ({"a": None, "b": None, "c": {}}, (0, 4, 0), "four of b"),
        ({"a": OWN, "b": MTP3, "c": {}}, (2, 1, 0), "2 with their own schedule (a), 1 at depth 3"),
        ({"a": OWN, "b": MTP3, "c": {}}, (12, 0, 0), "12 with their own schedule (a)"),
    ],
)
def test_fleets_are_named_by_depth_where_that_tells_them_apart(
    configs: dict[str, Any], fleet: tuple[int, ...], told: str
) -> None:
    kinds = tuple(EngineKind(name, deep()) for name in configs)
    assert FleetReport(Measured(("text", "table"), kinds, configs, True, "", ())).fleet(fleet) == told


@pytest.mark.parametrize(
    ("load", "told"),
    [
        (LoadHistogram(np.array([0.9, 0.1]), np.array([[2.0, 1.0], [0.0, 200.0]])), "They may do better"),
        (BREATHING, "They hardly do better"),
    ],
)
def test_an_estimate_counts_for_as_much_as_it_is_good_for(load: LoadHistogram, told: str) -> None:
    report, advice = advised(TWO, [deep(), plain()], load)
    assert advice.own is not None
    assert told in report.text(advice, load, "day.csv")
    assert "3 to 5% too much in simulations" in report.text(advice, load, "day.csv")


def test_json_has_all_of_it() -> None:
    report, advice = advised(TWO, [deep(), plain()])
    found = json.loads(json.dumps(report.as_json(advice, BREATHING, "day.csv")))
    assert found["recommended"]["engines"] == {"mtp3": 1, "plain": 1}
    assert found["recommended"]["tokens_per_s"] == pytest.approx(advice.chosen.rate)
    assert {tuple(other["engines"].values()) for other in found["others"]} == {(2, 0), (0, 2)}
    assert found["load"]["mean"] == pytest.approx({"text": 11.6, "table": 10.8})
    assert found["own_schedule_estimate"]["tokens_per_s"] > 0
    assert [band["requests"] for band in found["bands"]] == [[3, 3], [200, 200]]
    assert {route for part in found["bands"][1]["routes"] for route in part["routes"]} == {"text", "table"}
    assert [sum(size["engines"].values()) for size in found["sizes"]] == [1, 2, 3]
    assert found["words"][0].startswith("With 2 engines")
    report, advice = advised({"mtp3": MTP3}, [deep()], engines=1)
    assert report.as_json(advice, BREATHING, "day.csv")["own_schedule_estimate"] is None
