"""The rules and alerts that ship, and promtool's tests of them, each file read once."""

from __future__ import annotations

import functools
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from bench.serving import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOLDER = ROOT / "deploy/prometheus"
FILES = [FOLDER / "rules.yaml", FOLDER / "alerts.yaml"]
TESTS = sorted((FOLDER / "tests").glob("*.yaml"))

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


@functools.cache
def read(path: Path) -> dict[str, Any]:
    """A file's content; not to be changed."""
    found: dict[str, Any] = yaml.load(path.read_text(), yaml.CSafeLoader)
    return found


GROUPS: list[dict[str, Any]] = [group for path in FILES for group in read(path)["groups"]]
RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
RECORDS = {rule["record"]: rule for rule in RULES if "record" in rule}
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}


def cases(kind: str) -> Iterator[dict[str, Any]]:
    """All cases of promtool's tests; `kind` is `promql_expr_test` or `alert_rule_test`."""
    return (case for path in TESTS for test in read(path)["tests"] for case in test.get(kind, []))


def promtool(*arguments: str | Path) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
