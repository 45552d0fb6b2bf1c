"""The shipped dashboard's panels and queries, with Grafana's variables filled in as Grafana does."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from bench.serving import ROOT

FILE = ROOT / "deploy/grafana/dashboards/ocr-gateway.json"
DASHBOARD: dict[str, Any] = json.loads(FILE.read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES: dict[str, dict[str, Any]] = {
    variable["name"]: variable for variable in DASHBOARD["templating"]["list"]
}
NAME = re.compile(r"\bocr_gateway[\w:]+")


@dataclass(frozen=True)
class Query:
    """One query of a panel."""

    panel: str
    ref: str
    expr: str
    legend: str

    def __str__(self) -> str:
        return f"{self.panel} {self.ref}"


QUERIES = [
    Query(panel["title"], target["refId"], target["expr"], target.get("legendFormat", ""))
    for panel in PANELS
    for target in panel["targets"]
]


def query(panel: str, ref: str = "A") -> Query:
    (found,) = (one for one in QUERIES if (one.panel, one.ref) == (panel, ref))
    return found


def filled(expr: str, **values: str) -> str:
    """Put values in place of variables; route and pool are All unless told otherwise."""
    values = {
        "__rate_interval": "1m",
        "__range": "1h",
        "instance": ".+",
        "route": VARIABLES["route"]["allValue"],
        "pool": VARIABLES["pool"]["allValue"],
        **values,
    }
    return re.sub(r"\$(\w+)", lambda match: values[match[1]], expr)
