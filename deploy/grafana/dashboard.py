"""`python -m deploy.grafana.dashboard`: writes the Grafana dashboard of the panels in dashboard.yaml."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    VariableHide,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from deploy.grafana.panels import SOURCE, panel

if TYPE_CHECKING:
    from grafana_foundation_sdk.cog.builder import Builder
    from grafana_foundation_sdk.models.dashboard import VariableModel

PANELS = Path(__file__).parent / "dashboard.yaml"
FILE = Path(__file__).parent / "dashboards" / "ocr-gateway.json"
UID = "ocr-gateway"


def variable(name: str, label: str, text: str, series: str) -> dashboard.QueryVariable:
    """Build a variable from a label's values."""
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .description(text)
        .datasource(SOURCE)
        .query({"qryType": 1, "query": f"label_values({series}, {name})", "refId": name})
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )


def several(builder: dashboard.QueryVariable) -> dashboard.QueryVariable:
    """Let a variable have several values, at first all."""
    every = VariableOption(selected=True, text=["All"], value=["$__all"])
    return builder.multi(True).include_all(True).current(every)


def variables() -> list[Builder[VariableModel]]:
    """Build the variables; one model at a time, since acceptance lengths of two models describe neither."""
    build_info = "ocr_gateway_build_info"
    instances = variable("instance", "Gateways", "The model's gateways.", f'{build_info}{{model="$model"}}')
    routes, pools = (f'ocr_gateway_{name}{{instance=~"$instance"}}' for name in ("in_flight", "pool_depth"))
    return [
        dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"),
        variable("model", "Model", "The model served.", build_info),
        several(instances).hide(VariableHide.HIDE_VARIABLE),
        several(variable("route", "Route", "Classes of work.", routes)).all_value(".+"),
        several(variable("pool", "Pool", "Engines of one depth.", pools)).all_value(".+"),
    ]


def build() -> str:
    """Return the dashboard as JSON text."""
    board = (
        dashboard.Dashboard("OCR gateway")
        .uid(UID)
        .description("Speculation per route, and how the gateway and its engines fare.")
        .tags(["ocr-gateway", "vllm", "speculative-decoding"])
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .refresh("30s")
        .editable()
        .variables(variables())
    )
    for title, panels in yaml.safe_load(PANELS.read_text()).items():
        board = board.with_row(dashboard.Row(title))
        for settings in panels:
            board = board.with_panel(panel(settings))
    built = board.build()
    for number, built_panel in enumerate(built.panels or [], start=1):
        built_panel.id_val = number
    return json.dumps(built, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    FILE.write_text(build())
