"""The shipped dashboard: what its builder makes, complete, and right where gateways differ."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from bench.serving import ROOT
from deploy.grafana import dashboard
from tests.deploy.panels import DASHBOARD, FILE, NAME, PANELS, QUERIES, VARIABLES, Query, filled, query
from tests.deploy.rule_files import RECORDS, needs_promtool, promtool

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

EXPORTED = set(re.findall(r"`(ocr_gateway_\w+)`", (ROOT / "docs/http-api.md").read_text()))
PROVISIONING = ROOT / "deploy/grafana/provisioning"
BUILT_IN = {"__rate_interval", "__range"}
each_panel = pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
each_query = pytest.mark.parametrize("one", QUERIES, ids=str)


def test_the_file_is_what_the_builder_makes() -> None:
    assert FILE.read_text() == dashboard.build(), "python -m deploy.grafana.dashboard writes it anew"


def test_it_is_a_dashboard_to_the_schema() -> None:
    register_default_plugins()
    read = Dashboard.from_json(DASHBOARD)
    assert [panel.title for panel in read.panels or []] == [panel["title"] for panel in DASHBOARD["panels"]]


@each_panel
def test_a_panel_says_what_it_shows_in_which_unit_and_what_it_shows_without_data(panel: Any) -> None:
    assert re.fullmatch(r"[A-Z].{20,}\.", panel["description"])
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["fieldConfig"]["defaults"]["noValue"]
    assert panel["datasource"]["uid"] == "${datasource}"
    assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
    refs = [target["refId"] for target in panel["targets"]]
    assert len(refs) == len(set(refs)) > 0


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    for one, other in itertools.combinations([panel["gridPos"] for panel in DASHBOARD["panels"]], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in DASHBOARD["panels"])
    # Grafana repeats a panel over the whole width.
    assert all(panel["gridPos"]["w"] == 24 for panel in PANELS if "repeat" in panel)


@each_query
def test_a_query_uses_variables_there_are_and_is_narrowed_to_the_model(one: Query) -> None:
    assert set(re.findall(r"\$(\w+)", one.expr)) <= VARIABLES.keys() | BUILT_IN
    for name, selectors in re.findall(r"\b(ocr_gateway[\w:]+|ALERTS)\{([^}]*)\}", one.expr):
        wanted = 'instance=~"$instance"' if name.startswith("ocr_gateway_") else "$model"
        assert wanted in selectors, name
    assert len(re.findall(r"\b(?:ocr_gateway[\w:]+|ALERTS)\b", one.expr)) == one.expr.count("{")


@each_query
def test_a_query_asks_for_metrics_and_rules_there_are(one: Query) -> None:
    for name in NAME.findall(one.expr):
        assert {name, name.removesuffix("_bucket")} & (RECORDS.keys() | EXPORTED), name


@each_query
def test_estimates_are_never_mixed_with_exact_figures_and_say_what_they_are(one: Query) -> None:
    estimated = "acceptance_length_estimate" in one.expr
    assert estimated == ("estimate" in one.legend)
    for selectors in re.findall(r"ocr_gateway_acceptance_length_bucket\{([^}]*)\}", one.expr):
        assert 'source!="stream"' in selectors


def test_variables_are_the_models_own() -> None:
    assert list(VARIABLES) == ["datasource", "model", "instance", "route", "pool"]
    for name in ("route", "pool"):
        assert "$instance" in VARIABLES[name]["query"]["query"]
        assert VARIABLES[name]["includeAll"]
    assert not VARIABLES["model"].get("multi")
    assert "allValue" not in VARIABLES["instance"]  # All must stay the model's instances alone


def test_provisioning_and_scraping_agree() -> None:
    (source,) = yaml.safe_load((PROVISIONING / "datasources/prometheus.yaml").read_text())["datasources"]
    scraping = yaml.safe_load((ROOT / "deploy/stack/prometheus.yml").read_text())["global"]
    assert source["jsonData"]["timeInterval"] == scraping["scrape_interval"]
    assert DASHBOARD["uid"] == dashboard.UID


A, B = "gateway-a:8000", "gateway-b:8000"


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    told = ",".join(f'{key}="{value}"' for key, value in {"job": "gateways", **labels}.items())
    return {"series": f"{name}{{{told}}}", "values": values}


def of_both(name: str, first: str, second: str, **labels: str) -> list[dict[str, str]]:
    return [series(name, first, instance=A, **labels), series(name, second, instance=B, **labels)]


def check(folder: Path, given: Sequence[dict[str, str]], expected: dict[Query, dict[str, float]]) -> None:
    """Have promtool evaluate queries after ten minutes of a sample every 15 s."""
    tests = [
        {
            "expr": filled(one.expr, model="m", instance=f"{A}|{B}"),
            "eval_time": "10m",
            "exp_samples": [{"labels": labels, "value": value} for labels, value in samples.items()],
        }
        for one, samples in expected.items()
    ]
    path = folder / "queries.yaml"
    case = {"interval": "15s", "input_series": list(given), "promql_expr_test": tests}
    path.write_text(yaml.safe_dump({"evaluation_interval": "15s", "tests": [case]}))
    promtool("test", "rules", path)


@needs_promtool
class TestTwoGateways:
    """Two gateways of one model in the middle of a rollout; another model's gateway beside them."""

    def test_each_ones_own_depth_of_a_pool_is_used(self, tmp_path: Path) -> None:
        tokens = "ocr_gateway_completion_tokens_total"
        check(
            tmp_path,
            [
                *of_both("ocr_gateway_pool_depth", "3+0x60", "1+0x60", pool="mtp"),
                *of_both(tokens, "0+150x60", "0+300x60", route="table", pool="mtp"),
                series(tokens, "0+999x60", instance="other:8000", route="table", pool="mtp"),
                series("ocr_gateway_pool_depth", "7+0x60", instance="other:8000", pool="mtp"),
            ],
            {
                query("Output tokens by route and depth"): {
                    '{depth="1", pool="mtp", route="table"}': 20,
                    '{depth="3", pool="mtp", route="table"}': 10,
                }
            },
        )

    def test_what_both_read_at_an_engine_counts_once(self, tmp_path: Path) -> None:
        labels = {"pool": "mtp", "engine": "e"}
        check(
            tmp_path,
            [
                *of_both("ocr_gateway_engine_spec_drafts_total", "0+150x60", "0+150x60", **labels),
                *of_both(
                    "ocr_gateway_spec_drafts_total",
                    "0+75x60",
                    "0+45x60",
                    pool="mtp",
                    route="text",
                    source="request",
                ),
                *of_both("ocr_gateway_engine_load", "4+0x60", "5+0x60", **labels),
                *of_both("ocr_gateway_engine_up", "1+0x60", "0+0x60", **labels),
                *of_both("ocr_gateway_engine_breaker_state", "2+0x60", "0+0x60", **labels),
            ],
            {
                query("Drafts accounted for"): {'{pool="mtp"}': 0.8},
                query("Load per engine, and from where another depth wins"): {'{engine="e", pool="mtp"}': 5},
                query("Engines up"): {"{}": 0},
                query("Engines' states"): {'{engine="e", pool="mtp"}': 3},
            },
        )

    def test_requests_without_a_route_are_shown_and_quiet_routes_are_0(self, tmp_path: Path) -> None:
        requests = "ocr_gateway_requests_total"
        check(
            tmp_path,
            [
                *of_both("ocr_gateway_in_flight", "0+0x60", "0+0x60", route="table"),
                *of_both("ocr_gateway_in_flight", "0+0x60", "0+0x60", route="text"),
                *of_both(requests, "0+30x60", "0+30x60", route="", pool="", code="400"),
                *of_both(requests, "0+90x60", "0+90x60", route="text", pool="mtp", code="200"),
                *of_both(requests, "0+15x60", "0+15x60", route="text", pool="", code="503"),
                *of_both("ocr_gateway_shed_total", "0+15x60", "0+15x60", route="text", reason="queue_full"),
            ],
            {
                query("Errors by code"): {
                    '{code="400", route="(before sorting)"}': 4,
                    '{code="503", route="text"}': 2,
                    '{route="table"}': 0,
                },
                query("Requests by route"): {'{route="(before sorting)"}': 4, '{route="text"}': 14},
                query("Shed"): {'{reason="queue_full", route="text"}': 2, '{route="table"}': 0},
                query("Retries"): {'{route="table"}': 0, '{route="text"}': 0},
                query("Failed"): {"{}": 2 / 18},
                query("Alerts"): {"{}": 0},
            },
        )
