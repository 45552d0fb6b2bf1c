"""A sweep as files for people and programs: report.html, PNG plots, windows.csv, results.json."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING

import msgspec

from gateway.tools.sweep import plots
from gateway.tools.sweep.page import kinds, page
from gateway.tools.sweep.summary import Summary, routes
from gateway.tools.sweep.sweep_values import Findings, Results  # noqa: TC001 - msgspec resolves them at run time

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.model import Speculation
    from gateway.tools.sweep.sweep_values import Pool, Window


class Written(msgspec.Struct, frozen=True):
    """What results.json holds."""

    results: Results
    findings: Findings


def write(results: Results, findings: Findings, folder: Path) -> list[Path]:
    """Write the report and its data, over what an earlier run left; return the files.

    Raises:
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {route: plots.draw(Summary(results, findings, route)) for route in routes(results)}
    files = {
        "report.html": page(results, findings, drawn).encode(),
        "windows.csv": table(results).encode(),
        "results.json": msgspec.json.format(msgspec.json.encode(Written(results, findings)), indent=1),
    }
    for number, (route, own) in enumerate(drawn.items(), start=1):
        name = re.sub(r"[^\w-]+", "-", route, flags=re.ASCII)
        name = route if name == route else f"{number}-{name}"
        files |= {f"{name}-{plot.kind}.png": plots.png(plot) for plot in own}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in files]


def table(results: Results) -> str:
    """Return the windows as CSV: one row each, one column a figure; empty where it was not measured."""
    positions = max(
        (
            len(part.accepted_per_position)
            for w in results.windows
            for part in (w.speculation, w.told)
            if part
        ),
        default=0,
    )
    rows = [
        _row(window, results.setting.pools.get(window.cell.pool), positions) for window in results.windows
    ]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row(window: Window, pool: Pool | None, positions: int) -> dict[str, object]:
    row: dict[str, object] = {"valid": window.valid, **msgspec.structs.asdict(window.cell)}
    row["depth"] = pool.depth if pool else ""
    for name, value in msgspec.structs.asdict(window).items():
        match name:
            case "cell":
                pass
            case "errors":
                row[name] = sum(value.values())
                row["errors_by_kind"] = kinds(value)
            case "first_token_s" | "token_s" | "request_s":
                row |= {f"{name}_{part}": getattr(value, part, "") for part in ("mean", "p50", "p95", "p99")}
            case "speculation" | "told":
                row |= {f"{name}_{part}": figure for part, figure in _drafted(value, positions).items()}
            case "invalid" | "flags":
                row[name] = "; ".join(value)
            case _:
                row[name] = value
    return row


def _drafted(told: Speculation | None, positions: int) -> dict[str, object]:
    accepted = told.accepted_per_position if told else ()
    figures: dict[str, object] = {
        "length": told.length if told else "",
        "drafts": told.drafts if told else "",
        "draft_tokens": told.draft_tokens if told else "",
        "accepted": told.accepted if told else "",
    }
    return figures | {
        f"accepted_{place + 1}": accepted[place] if place < len(accepted) else ""
        for place in range(positions)
    }
