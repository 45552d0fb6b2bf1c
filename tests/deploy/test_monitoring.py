"""Prometheus' operator and Grafana's sidecar get the shipped rules and dashboard, and every replica."""

from __future__ import annotations

import copy
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from bench.serving import ROOT
from deploy.checks.render import render
from deploy.grafana import dashboard
from deploy.prometheus import operator
from tests.deploy.rule_files import FOLDER, GROUPS, needs_promtool, promtool, read

if TYPE_CHECKING:
    from pathlib import Path

# kubectl keeps what it applied in an annotation; all annotations of an object together may have so much.
ANNOTATIONS_BYTES = 262_144
# What the operator adds to a target's series beside job and instance.
OF_A_POD = {"container": "gateway", "endpoint": "http", "namespace": "ocr"}


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    documents = render(ROOT / "deploy/kubernetes/components/monitoring")
    return {document["kind"]: document for document in documents}


def test_the_operator_gets_the_very_rules_and_alerts(objects: dict[str, Any]) -> None:
    assert operator.FILE.read_text() == operator.build(), (
        "python -m deploy.prometheus.operator writes it anew"
    )
    assert objects["PrometheusRule"]["spec"]["groups"] == GROUPS


def test_grafanas_sidecar_finds_the_very_dashboard(objects: dict[str, Any]) -> None:
    found = objects["ConfigMap"]
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    (text,) = found["data"].values()
    assert text == dashboard.FILE.read_text()


def test_kubectl_can_apply_everything(objects: dict[str, Any]) -> None:
    for found in objects.values():
        assert len(json.dumps(found)) < ANNOTATIONS_BYTES


def test_every_replica_is_scraped_by_itself_often_enough_for_the_rules(objects: dict[str, Any]) -> None:
    monitor = objects["PodMonitor"]["spec"]
    (deployment,) = (
        document
        for document in render(ROOT / "deploy/kubernetes/base")
        if (document["kind"], document["metadata"]["name"]) == ("Deployment", "ocr-gateway")
    )
    pod = deployment["spec"]["template"]
    assert monitor["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (endpoint,) = monitor["podMetricsEndpoints"]
    ports = [port["name"] for container in pod["spec"]["containers"] for port in container["ports"]]
    assert endpoint["port"] in ports
    assert endpoint["path"] == "/metrics"
    assert int(endpoint["interval"].removesuffix("s")) <= 15  # docs/alerts.md
    # The job of docs/alerts.md, and an instance of its own for each pod: rules join on both.
    assert pod["metadata"]["labels"][monitor["jobLabel"]] == "ocr-gateway"
    (relabelling,) = endpoint["relabelings"]
    assert relabelling == {"sourceLabels": ["__meta_kubernetes_pod_name"], "targetLabel": "instance"}


@needs_promtool
def test_alerts_on_a_replica_name_its_pod(tmp_path: Path) -> None:
    """What rules do to replicas scraped under their addresses, they do to pods."""
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(yaml.safe_load(operator.build())["spec"]))
    cases = [
        case
        for name in ("gateways", "requests")
        for case in copy.deepcopy(read(FOLDER / "tests" / f"{name}.yaml"))["tests"]
        if any({"instance", "job"} <= labels.keys() for labels in _expected(case))
    ]
    assert len(cases) > 1
    for case in cases:
        for series in case["input_series"]:
            series["series"] = _of_a_pod(series["series"])
        for labels in _expected(case):
            labels |= {**OF_A_POD, "pod": labels["instance"]} if "instance" in labels else {}
    tests = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": cases}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(tests))
    promtool("test", "rules", tmp_path / "tests.yaml")


def _expected(case: dict[str, Any]) -> list[dict[str, str]]:
    return [one["exp_labels"] for alert in case.get("alert_rule_test", []) for one in alert["exp_alerts"]]


def _of_a_pod(series: str) -> str:
    (instance,) = re.findall(r'instance="([^"]*)"', series)
    more = "".join(f'{key}="{value}", ' for key, value in {**OF_A_POD, "pod": instance}.items())
    return series.replace("{", "{" + more, 1)
