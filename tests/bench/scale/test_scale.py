from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.scale import curves, report, rig
from bench.scale.figures import Figures, Rule, line
from bench.serving import ROOT

NUMBERS = st.floats(0.01, 100)
ABOUT = {
    "when": "2026-01-01",
    "processor": "a processor",
    "cores": 2,
    "kernel": "6",
    "python": "3.11",
    "rounds": 3,
    "seconds": 2.0,
}
TRUE = Rule(request=0.5, megabyte=2.0, event=0.03, reading=1.0)


def measured(point: curves.Point) -> dict[str, Any]:
    """What a gateway with the costs of TRUE would show."""
    case = point.case
    size = {"1 kB": 0.001, "10 kB": 0.01, "200 kB": 0.2, "1.5 MB": 1.5, "8 MB": 8.0, "31 MB": 31.0}
    found: dict[str, Any] = {"curve": point.curve, "at": point.at, "rss_mib": 100.0, "lags_ms": [1.0, 3.0]}
    if case is None:
        found |= {"series": 400, "page_ms": 5.0, "oldest_reading_s": 1.0}
        found["share"] = {"gateway": point.fleet.engines * TRUE.reading / 1e3}
        return found
    events = 0 if point.lasts else case.events
    return found | {
        "requests": 100,
        "requests_s": 50.0,
        "cpu_ms": None if point.lasts else TRUE.of(size[case.size], events),
        "events_s": 4000.0,
        "event_us": 30.0 if case.events else None,
        "event_delay_p99_ms": 2.0 if case.events else None,
        "resting_mib": 80.0,
        "body_bytes": size[case.size] * 1e6,
        "share": {"gateway": 0.5},
    }


@pytest.fixture
def figures() -> Figures:
    runs = [measured(point) for point in curves.points() for _ in range(3)]
    spread = [
        {"way": way, "workers": 4, "connections": 8, "busiest": 1.5, "busiest_p95": 2.0} for way in ("a", "b")
    ]
    return Figures({"about": ABOUT, "points": rig.medians(runs), "spread": spread})


@given(NUMBERS, NUMBERS, st.lists(st.floats(0, 100), min_size=2, max_size=8, unique_by=round))
def test_a_line_is_found_in_its_points(intercept: float, slope: float, xs: list[float]) -> None:
    found = line([(x, intercept + slope * x) for x in xs])
    assert found == pytest.approx((intercept, slope), rel=1e-3, abs=1e-3)


def test_costs_do_not_fall_with_what_there_is_more_of() -> None:
    assert line([(0, 2), (1, 1)])[1] == 0


def test_the_rule_is_what_the_curves_follow(figures: Figures) -> None:
    rule = figures.rule()
    assert rule is not None
    costs = rule.request, rule.megabyte, rule.event, rule.reading
    assert costs == pytest.approx((0.5, 2.0, 0.03, 1.0), rel=1e-2)


def test_reading_takes_from_what_a_replica_bears() -> None:
    assert TRUE.requests_s(6, 0) == pytest.approx(100)
    assert TRUE.requests_s(6, 300) == pytest.approx(50)
    assert TRUE.requests_s(6, 300, scrape_s=5) == pytest.approx(90)
    assert TRUE.requests_s(6, 10_000) == 0


def test_curves_are_tables_and_the_paper_is_worked_out(figures: Figures) -> None:
    tables = figures.tables()
    assert {point.curve for point in curves.points()} - {"polling"} <= tables.keys()
    assert "| 1.5 MB | 3.5 | 286 |" in tables["body"]
    # 16 engines take 16 ms of the 600 that are planned with; a 1.5 MB request 3.5.
    assert "| 1.5 MB, 16 engines | 167 | 1,669 | 16,686 |" in tables["replicas"]
    assert "| 4,096 | 4,000 | 30 | 50% | 100 | 5 | 2 |" in tables["streams"]
    assert "| 8 | 1.50 (2.00) | 1.50 (2.00) | 1.00 |" in tables["spread"]
    # 512 engines take 512 ms a second of a core, which may spend 200; 100 replicas ask for 20 pages at 10 s.
    assert figures.limits()[-1] == ["512", "2.56 s, 0.781", "2.56 s, 7.81", "10 s, 20"]


def test_rounds_become_medians_and_their_waits_are_put_together() -> None:
    runs = [measured(curves.Point("polling", 1, None, curves.Fleet(1))) for _ in range(3)]
    for run, share in zip(runs, (0.1, 0.9, 0.2), strict=True):
        run |= {"share": {"gateway": share}, "lags_ms": [share]}
    (found,) = rig.medians(runs)
    assert found["share"]["gateway"] == 0.2
    assert (found["lag_p50_ms"], found["lag_p95_ms"]) == (0.2, 0.9)


@pytest.mark.parametrize("quick", [False, True])
def test_a_gateway_is_started_once_for_each_fleet(quick: bool) -> None:
    fleets = [fleet for fleet, _ in itertools.groupby(point.fleet for point in curves.points(quick))]
    assert len(fleets) == len(set(fleets))


def test_the_documents_say_what_the_results_say() -> None:
    figures = Figures(json.loads(report.RESULTS.read_text()))
    text = (ROOT / "bench/results/scale.md").read_text()
    assert "python -m bench.scale.report" in text
    assert report.filled(text, figures) == text
