"""Metric names are read off PromQL as Prometheus reads it, and held against what a gateway really exports."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from deploy.checks.objects import Rendering
from deploy.checks.series import check, dashboard, exported, filled, names, of_dashboards
from gateway.config import parse
from gateway.model import Engine, Reading, Speculation, SpeculationFault, Usage
from gateway.policy.account.acceptance import Sample, Source
from gateway.state.fleet import Fleet
from gateway.state.lease import Lease
from gateway.state.store import State
from gateway.telemetry.metrics import Metrics
from tests.deploy.panels import QUERIES
from tests.telemetry.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

NAMES = st.from_regex(r"ocr_gateway[:_][a-z_]{1,10}", fullmatch=True)
LABELS = st.from_regex(r"[a-z_]{1,8}x", fullmatch=True)
# What a reader by patterns would take for names: keywords, functions and metrics inside a value.
VALUES = st.sampled_from(["", "a", "sum(up)", "ocr_gateway_waiting", "by (x)", "}", "{", "a or b", "#"])
RANGES = st.sampled_from(["5m", "1h30m", "$__rate_interval", "${__range}"])
CONFIG = """
model: m
pools:
  mtp3: {speculative_config: {method: mtp, num_speculative_tokens: 3}, engines: [http://e:1]}
  plain: {engines: [http://p:1]}
routes: {table: {schedule: [[1, 63, 3], [64, 4096, 0]]}}
"""


@st.composite
def selectors(draw: st.DrawFn) -> tuple[str, dict[str, set[str]], set[str]]:
    """A selector with the metric and labels that it names."""
    name, matchers = draw(NAMES), draw(st.dictionaries(LABELS, VALUES, max_size=3))
    told = ", ".join(
        f"{label}{draw(st.sampled_from(['=', '!=', '=~']))}{json.dumps(value)}"
        for label, value in matchers.items()
        if value not in "{}"
    )
    own = {label for label, value in matchers.items() if value not in "{}"}
    return f"{name}{{{told}}}", {name: own}, set()


Named = tuple[str, dict[str, set[str]], set[str]]


def joined(one: dict[str, set[str]], other: dict[str, set[str]]) -> dict[str, set[str]]:
    return {name: one.get(name, set()) | other.get(name, set()) for name in one.keys() | other.keys()}


def larger(inner: st.SearchStrategy[Named]) -> st.SearchStrategy[Named]:
    def aggregated(one: Named, label: str) -> Named:
        return f"sum by ({label}) ({one[0]})", one[1], one[2] | {label}

    def compared(one: Named, other: Named, label: str) -> Named:
        expr = f"({one[0]}) * on ({label}) group_left () ({other[0]}) > 0  # sum by (none) (nothing)\n"
        return expr, joined(one[1], other[1]), one[2] | other[2] | {label}

    return st.builds(aggregated, inner, LABELS) | st.builds(compared, inner, inner, LABELS)


def rated(one: Named, range_: str) -> Named:
    return f"rate({one[0]}[{range_}] offset 1h)", one[1], one[2]


@settings(max_examples=50)
@given(st.recursive(selectors() | st.builds(rated, selectors(), RANGES), larger, max_leaves=6))
def test_names_of_metrics_and_labels_are_found_and_nothing_else(one: Named) -> None:
    expr, series, labels = one
    found = names(filled(expr))
    assert found.series == series
    assert found.labels == labels


@pytest.mark.parametrize("wrong", ["sum(", "rate(ocr_gateway_waiting)", "nothing(up)", "", "up{a=b}"])
def test_what_is_no_promql_is_told(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        names(wrong)


def test_names_written_otherwise_are_found() -> None:
    assert names('{__name__="up", job="a"}').series == {"up": {"job"}}
    assert names('label_replace(up, "made", "$1", "job", "(.*)")').made == {"made"}
    assert names('count_values("version", up)').made == {"version"}
    assert names("max_over_time(sum by (a) (up)[1h:5m])").labels == {"a"}


async def test_what_a_gateway_exports_is_what_stands_on_its_page() -> None:
    """Everything that can happen has happened once: each series has its sample."""
    state = State(
        Fleet.of(parse(CONFIG, "", Path(), {})),
        [Engine("e:1", "http://e:1", "mtp3", 3)],
        lambda: 10.0,
        Random(0),
    )
    metrics = Metrics(state)
    state.mark("e:1", up=True)
    state.record_reading("e:1", Reading(at=7.0, load=5, own=0, mismatch="another depth"))
    lease = state.take("table")
    assert isinstance(lease, Lease)
    with lease:
        lease.answer_complete(SpeculationFault.FORMAT, 1)
    metrics.shed("table", "full")
    metrics.reloaded(valid=True)
    metrics.reloaded(valid=False)
    metrics.finished(
        record(
            route="table",
            reason="default",
            pool="mtp3",
            engine="e:1",
            code=200,
            first_token_s=0.1,
            usage=Usage(1, 1),
            depths=(3, 3),
            retried=("died",),
            overhead={"sort": 0.003},
        )
    )
    metrics.sampled("table", "mtp3", Sample(Source.REQUEST, Speculation(1, 3, 2)))
    page = (await metrics.page("text/plain"))[0].decode()
    seen = {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert seen.items() <= exported().items()
    # Of speculation's sums by engine and route there is nothing to see before engines have told twice.
    unseen = exported().keys() - seen.keys()
    assert all("spec_" in name or name.endswith("profile_ratio") for name in unseen), unseen


def rules(*found: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": "PrometheusRule",
        "metadata": {"name": "r"},
        "spec": {"groups": [{"name": "g", "rules": list(found)}]},
    }


def lines(*documents: dict[str, Any]) -> list[str]:
    return [str(problem) for problem in check(Rendering(documents))]


def scaler(query: str) -> dict[str, Any]:
    trigger = {"type": "prometheus", "metadata": {"query": query}}
    return {
        "kind": "ScaledObject",
        "metadata": {"name": "s"},
        "spec": {"triggers": [trigger, {"type": "cpu"}]},
    }


def test_a_rules_own_name_may_be_asked_for_by_the_labels_of_what_it_is_made_of() -> None:
    found = rules(
        {"record": "a:b", "expr": 'label_replace(a:c, "made", "x", "", "")'},
        {"record": "a:c", "expr": "sum by (route) (ocr_gateway_waiting)"},
        {"alert": "A", "expr": 'sum by (made) (a:b{route="x", pod="y"}) > 0 and on () up == 0'},
    )
    assert lines(found, scaler('a:b{made="x"} or sum by (route) (a:c)')) == []
    (problem,) = lines(found, scaler('sum(a:b{pool="x"})'))
    assert problem == (
        "ScaledObject/s: spec.triggers[0].metadata.query: a:b has no label pool; it has made, route"
    )
    (problem,) = lines(scaler("a:b"))
    assert "no gateway exports a:b, and no rule here records it" in problem


@pytest.mark.parametrize(
    "circle",
    [
        [{"record": "a:b", "expr": "a:c"}, {"record": "a:c", "expr": "a:b"}],
        [{"record": "a:b", "expr": "a:b"}],
    ],
)
def test_rules_that_are_made_of_each_other_end(circle: Sequence[dict[str, Any]]) -> None:
    assert lines(rules(*circle), scaler("a:b")) == []


def test_alerts_have_the_labels_that_rules_give_them() -> None:
    assert lines(scaler('count by (severity) (ALERTS{alertstate="firing", severity="critical"})')) == []


def test_a_plain_autoscaler_asks_by_name() -> None:
    metrics = [
        {"type": "External", "external": {"metric": {"name": "ocr_gateway_wating"}}},
        {
            "type": "External",
            "external": {
                "metric": {"name": "ocr_gateway_waiting", "selector": {"matchLabels": {"pool": "p"}}}
            },
        },
        {"type": "Resource", "resource": {"name": "cpu"}},
    ]
    hpa = {"kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"}, "spec": {"metrics": metrics}}
    first, second = lines(hpa)
    assert first.startswith("HorizontalPodAutoscaler/h: spec.metrics[0].external.metric: no gateway exports")
    assert second.endswith(
        "spec.metrics[1].external.metric: ocr_gateway_waiting has no label pool; it has route"
    )


def test_a_dashboards_panels_rows_and_variables_are_read() -> None:
    model = {
        "panels": [
            {
                "title": "row",
                "type": "row",
                "panels": [{"title": "inner", "targets": [{"refId": "B", "expr": "b"}]}],
            },
            {"title": "text"},
            {"title": "outer", "targets": [{"refId": "A", "expr": 'rate(a{x=~"$x"}[$__rate_interval])'}]},
        ],
        "templating": {
            "list": [
                {"type": "query", "name": "v", "query": {"query": 'label_values(c{model="$model"}, route)'}},
                {"type": "query", "name": "w", "query": "query_result(d)"},
                {"type": "query", "name": "all", "query": "label_values(route)"},
                {"type": "datasource", "name": "ds", "query": "prometheus"},
            ]
        },
    }
    found = {where: names(filled(expr)).series for where, expr in dashboard(model)}
    assert found == {
        "panels[inner].targets[B]": {"b": set()},
        "panels[outer].targets[A]": {"a": {"x"}},
        "templating[v]": {"c": {"model"}},
        "templating[w]": {"d": set()},
    }


def test_the_shipped_dashboards_queries_are_all_read() -> None:
    text = (Path(__file__).parents[2] / "deploy/grafana/dashboards/ocr-gateway.json").read_text()
    config_map = {
        "kind": "ConfigMap",
        "metadata": {"name": "d", "labels": {"grafana_dashboard": "1"}},
        "data": {"d.json": text},
    }
    found = [one.expr for one in of_dashboards(Rendering((config_map,)))]
    assert {one.expr for one in QUERIES} < set(found)
