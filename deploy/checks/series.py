"""Metric names: what autoscalers, rules and dashboards ask for is exported, or recorded by a rule there."""

from __future__ import annotations

import json
import random
import re
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import promql_parser
from prometheus_client import Counter, Histogram

from deploy.checks.objects import Problem, at, name_of
from gateway.config import parse
from gateway.state.fleet import Fleet
from gateway.state.store import State
from gateway.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from deploy.checks.objects import Document, Rendering

# Series that others than the gateway export, with their labels; None: any (ALERTS has those of every alert).
OTHERS: dict[str, frozenset[str] | None] = {"up": frozenset(), "ALERTS": None}
# What Prometheus, and a PodMonitor's or ServiceMonitor's relabelling, adds to every series.
TARGET = frozenset({"job", "instance", "namespace", "pod", "container", "endpoint", "service", "node"})

_ANY_CONFIG = "{model: m, pools: {p: {engines: [http://e:1]}}, routes: {r: {}}}"
_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",)}
# Grafana's variables: durations where a range is, names and patterns elsewhere.
_RANGE = re.compile(r"(?<=[\[:])\$(\w+|\{\w+\})")
_VARIABLE = re.compile(r"\$(\w+|\{\w+(:\w+)?\})")
_LABEL_VALUES = re.compile(r"label_values\((?:(?P<series>.*),)?\s*(?P<label>\w+)\s*\)", re.DOTALL)
_QUERY_RESULT = re.compile(r"query_result\((.*)\)", re.DOTALL)


@dataclass(frozen=True)
class Names:
    """What an expression names.

    Attributes:
        series: by metric, the labels that its selectors ask for.
        values: label and value of every `label="value"`.
        labels: in `by`, `on` and `group_left` clauses.
        made: labels that label_replace, label_join and count_values make.
    """

    series: dict[str, frozenset[str]]
    values: frozenset[tuple[str, str]]
    labels: frozenset[str]
    made: frozenset[str]


@dataclass(frozen=True)
class Query:
    """An expression, and in which object and where it stands."""

    name: str
    where: str
    expr: str


@cache
def names(expr: str) -> Names:
    """Read an expression's names.

    Raises:
        ValueError: it is not valid PromQL.
    """
    series: dict[str, set[str]] = {}
    values: set[tuple[str, str]] = set()
    labels: set[str] = set()
    made: set[str] = set()

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            matchers = [*node.matchers.matchers, *(one for some in node.matchers.or_matchers for one in some)]
            named = node.name or next((one.value for one in matchers if one.name == "__name__"), "")
            wanted = {one.name for one in matchers} - {"__name__"}
            series.setdefault(named, set()).update(wanted)
            values.update((one.name, one.value) for one in matchers if one.op == promql_parser.MatchOp.Equal)
        elif isinstance(node, promql_parser.AggregateExpr):
            if node.modifier:
                labels.update(node.modifier.labels)
            if isinstance(node.param, promql_parser.StringLiteral):
                made.add(node.param.val)
        elif isinstance(node, promql_parser.BinaryExpr) and node.modifier:
            if node.modifier.matching:
                labels.update(node.modifier.matching.labels)
            labels.update(node.modifier.group_labels or ())
        elif isinstance(node, promql_parser.Call) and node.func.name in ("label_replace", "label_join"):
            made.add(node.args[1].val)

    promql_parser.walk(promql_parser.parse(expr), visit)
    found = {name: frozenset(wanted) for name, wanted in series.items()}
    return Names(found, frozenset(values), frozenset(labels), frozenset(made))


def filled(expr: str) -> str:
    """Put something valid in place of Grafana's variables."""
    return _VARIABLE.sub("x", _RANGE.sub("5m", expr))


@cache
def exported() -> dict[str, frozenset[str]]:
    """Return the series of a gateway's own /metrics, with their labels: read off its registry."""
    fleet = Fleet.of(parse(_ANY_CONFIG, "", Path(), {}))
    registry = Metrics(State(fleet, [], time.monotonic, random.Random())).registry
    found: dict[str, frozenset[str]] = {}
    for collector in list(registry._collector_to_names):
        for family in collector.collect():
            source: Any = collector if isinstance(collector, Counter | Histogram) else family
            labels = frozenset(source._labelnames)
            for suffix in _SUFFIXES.get(family.type, ("",)):
                found[family.name + suffix] = labels | ({"le"} if suffix == "_bucket" else set())
    return found


def check(rendering: Rendering) -> Iterator[Problem]:
    """Yield every expression that is invalid, or asks for what there is not."""
    rules = list(_rules(rendering))
    recorded = {rule["record"]: str(rule["expr"]) for _, _, rule in rules if "record" in rule}
    known = _with_recorded(exported() | OTHERS, recorded)
    # Kubernetes' metric names have no colons: an adapter writes underscores for those of rules.
    adapted = known | {name.replace(":", "_"): known[name] for name in recorded}
    for name, where, model in _dashboards(rendering):
        if model is None:
            yield Problem(name, where, "is no dashboard: not a JSON object")
    of_rules = [Query(name, f"{where}.expr", str(rule["expr"])) for name, where, rule in rules]
    for query in (*of_scalers(rendering), *of_dashboards(rendering), *of_rules):
        plain = query.name.startswith("HorizontalPodAutoscaler")
        for text in _expression(query.expr, adapted if plain else known):
            yield Problem(query.name, query.where, text)


def _expression(expr: str, known: Mapping[str, frozenset[str] | None]) -> Iterator[str]:
    try:
        found = names(filled(expr))
    except ValueError as error:
        yield f"is not PromQL: {error}"
        return
    everywhere, any_label = {*TARGET, *found.made}, False
    for series, labels in found.series.items():
        own = known.get(series)
        if series not in known:
            text = series or "a series without a name"
            yield f"no gateway exports {text}, and no rule here records it"
        if own is None:
            any_label = True
            continue
        everywhere |= own
        for label in sorted(labels - own - TARGET):
            yield f"{series} has no label {label}; it has {', '.join(sorted(own))}"
    for label in sorted(found.labels - everywhere) if not any_label else ():
        yield f"no series here has the label {label}"


def _with_recorded(
    known: Mapping[str, frozenset[str] | None], recorded: Mapping[str, str]
) -> dict[str, frozenset[str] | None]:
    """Add recording rules: each has at most the labels of what it is made of."""
    found, left = dict(known), dict(recorded)
    while left:
        ready = {
            name: made for name, expr in left.items() if (made := _labels(expr, found, left)) is not None
        }
        # A circle, or an expression that is not valid: problems of their own, and any label is taken.
        for name in ready or left:
            found[name] = ready.get(name) or None
        left = {name: expr for name, expr in left.items() if name not in (ready or left)}
    return found


def _labels(
    expr: str, known: Mapping[str, frozenset[str] | None], left: Mapping[str, str]
) -> frozenset[str] | None:
    try:
        used = names(expr)
    except ValueError:
        return None
    if used.series.keys() & left.keys():
        return None
    return used.made.union(*(known.get(series) or () for series in used.series))


def _rules(rendering: Rendering) -> Iterator[tuple[str, str, Document]]:
    for document in rendering.of("PrometheusRule"):
        for group in at(document, "spec", "groups") or ():
            for rule in group.get("rules") or ():
                label = rule.get("record") or rule.get("alert")
                yield name_of(document), f"spec.groups[{group['name']}].rules[{label}]", rule


def of_scalers(rendering: Rendering) -> Iterator[Query]:
    """Yield every expression of autoscalers; a metric's name and labels are one."""
    for scaler in rendering.of("ScaledObject"):
        for index, trigger in enumerate(at(scaler, "spec", "triggers") or ()):
            if trigger.get("type") == "prometheus" and (query := at(trigger, "metadata", "query")):
                yield Query(
                    name_of(scaler), f"spec.triggers[{trigger.get('name', index)}].metadata.query", query
                )
    for scaler in rendering.of("HorizontalPodAutoscaler"):
        for index, metric in enumerate(at(scaler, "spec", "metrics") or ()):
            for kind in ("external", "pods", "object"):
                if name := at(metric, kind, "metric", "name"):
                    labels = at(metric, kind, "metric", "selector", "matchLabels").items()
                    selector = ", ".join(f"{label}={json.dumps(value)}" for label, value in labels)
                    where = f"spec.metrics[{index}].{kind}.metric"
                    yield Query(name_of(scaler), where, f"{name}{{{selector}}}")


def of_dashboards(rendering: Rendering) -> Iterator[Query]:
    """Yield every expression of the dashboards that Grafana's sidecar would load."""
    for name, where, model in _dashboards(rendering):
        for inside, expr in dashboard(model or {}):
            yield Query(name, f"{where}.{inside}", expr)


def _dashboards(rendering: Rendering) -> Iterator[tuple[str, str, Document | None]]:
    """Yield whose and where each dashboard is, and the dashboard; None where it is no JSON object."""
    for config_map in rendering.of("ConfigMap"):
        if "grafana_dashboard" in at(config_map, "metadata", "labels"):
            for file, text in at(config_map, "data").items():
                try:
                    model = json.loads(text)
                except ValueError:
                    model = None
                yield name_of(config_map), f"data[{file}]", model if isinstance(model, dict) else None


def dashboard(model: Document) -> Iterator[tuple[str, str]]:
    """Yield where and what a dashboard asks: its panels, those in rows too, and its variables."""
    panels = [*model.get("panels", ())]
    for panel in panels:
        panels += panel.get("panels", ())
        for target in panel.get("targets", ()):
            if target.get("expr"):
                yield f"panels[{panel.get('title')}].targets[{target.get('refId')}]", target["expr"]
    for variable in at(model, "templating", "list") or ():
        query = variable.get("query")
        text = query.get("query", "") if isinstance(query, dict) else str(query or "")
        if variable.get("type") == "query" and (expr := _of_variable(text)):
            yield f"templating[{variable.get('name')}]", expr


def _of_variable(text: str) -> str:
    if found := _LABEL_VALUES.fullmatch(text):
        return f"group by ({found['label']}) ({found['series']})" if found["series"] else ""
    found = _QUERY_RESULT.fullmatch(text)
    return found[1] if found else text
