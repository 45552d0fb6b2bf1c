"""Prometheus rules and alerts: valid, tested by promtool both ways, documented, and of metrics that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml

from bench.serving import ROOT
from tests.deploy.rule_files import (
    ALERTS,
    FILES,
    FOLDER,
    RECORDS,
    RULES,
    TESTS,
    cases,
    needs_promtool,
    promtool,
)

if TYPE_CHECKING:
    from pathlib import Path

RUNBOOK = (ROOT / "docs/alerts.md").read_text()
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_METRIC = re.compile(r"\bocr_gateway_\w+")
_RECORDED = re.compile(r"\bocr_gateway:[\w:]+")


def test_no_name_is_given_twice() -> None:
    assert len(RECORDS) + len(ALERTS) == len(RULES)


def queries() -> list[str]:
    """The queries of the runbook, one a line."""
    blocks = (text for language, text in _BLOCK.findall(RUNBOOK) if language == "promql")
    return [line for text in blocks for line in text.splitlines()]


@needs_promtool
def test_the_files_are_valid() -> None:
    promtool("check", "rules", *FILES)


@needs_promtool
@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_rules_and_alerts_do_what_their_tests_say(path: Path) -> None:
    promtool("test", "rules", path)


@pytest.mark.parametrize("name", RECORDS)
def test_every_rule_is_tested_with_and_without_data(name: str) -> None:
    tested = [case for case in cases("promql_expr_test") if name in _RECORDED.findall(case["expr"])]
    assert any(case["exp_samples"] for case in tested)
    assert any(not case["exp_samples"] for case in tested)


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_is_tested_firing_and_silent(name: str) -> None:
    tested = [case for case in cases("alert_rule_test") if case["alertname"] == name]
    assert any(case["exp_alerts"] for case in tested)
    assert any(not case["exp_alerts"] for case in tested)


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_tells_how_bad_it_is_and_leads_to_its_section_of_the_runbook(name: str) -> None:
    alert = ALERTS[name]
    assert alert["labels"]["severity"] in ("critical", "warning")
    assert alert["annotations"]["summary"]
    assert alert["annotations"]["runbook_url"] == f"docs/alerts.md#{name.lower()}"
    assert f"\n## {name}\n" in RUNBOOK


def test_the_runbook_describes_no_alert_that_is_none() -> None:
    assert set(re.findall(r"^## (OcrGateway\w+)$", RUNBOOK, re.MULTILINE)) == set(ALERTS)
    anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in _titles()}
    assert set(re.findall(r"\]\(#([^)]+)\)", RUNBOOK)) <= anchors


def _titles() -> list[str]:
    return re.findall(r"^#+ (.+)$", RUNBOOK, re.MULTILINE)


def test_metrics_and_rules_that_are_asked_for_exist() -> None:
    documented = set(_METRIC.findall((ROOT / "docs/http-api.md").read_text()))
    asked = [rule["expr"] for rule in (*RECORDS.values(), *ALERTS.values())] + [RUNBOOK]
    used = {name.removesuffix("_bucket") for text in asked for name in _METRIC.findall(text)}
    assert used <= documented, used - documented
    recorded = {name for text in asked for name in _RECORDED.findall(text)}
    assert recorded <= set(RECORDS), recorded - set(RECORDS)


@needs_promtool
def test_the_runbooks_queries_are_valid(tmp_path: Path) -> None:
    group = {"name": "runbook", "rules": [{"record": f"q{i}", "expr": q} for i, q in enumerate(queries())]}
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [group]}))
    promtool("check", "rules", path)


@needs_promtool
def test_the_runbooks_address_can_be_rewritten(tmp_path: Path) -> None:
    for path in FILES:
        shutil.copy(path, tmp_path)
    (commands,) = (text for language, text in _BLOCK.findall(RUNBOOK) if language == "sh")
    subprocess.run(["bash", "-euc", commands], cwd=tmp_path, timeout=60, check=True, capture_output=True)
    rewritten = (tmp_path / "alerts.yaml").read_text()
    assert rewritten.count("runbook_url: https://git.example.com/") == len(ALERTS)


@needs_promtool
def test_the_runbooks_configuration_loads_the_files(tmp_path: Path) -> None:
    (text,) = (text for language, text in _BLOCK.findall(RUNBOOK) if language == "yml")
    path = tmp_path / "prometheus.yaml"
    path.write_text(text.replace("/etc/prometheus/ocr-gateway", str(FOLDER)))
    promtool("check", "config", path)
