"""A sweep as files for people and programs: report.html, PNG plots, windows.csv, results.json.

The page is report.html.j2; this module gives it the figures and the few words that it cannot make itself.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from gateway.policy.choose.gain import Z95
from gateway.tools.sweep import plots
from gateway.tools.sweep.summary import RouteSummary, by_depth, routes
from gateway.tools.sweep.sweep_values import Findings, Results  # noqa: TC001 - msgspec resolves them at run time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.model import Speculation
    from gateway.tools.sweep.plots import Plot
    from gateway.tools.sweep.sweep_values import SweptPool, Window

_FOLDER = Path(__file__).parent


class ResultsFile(msgspec.Struct, frozen=True):
    """What results.json holds."""

    results: Results
    findings: Findings


def write(results: Results, findings: Findings, folder: Path) -> list[Path]:
    """Write the report and its data, over what an earlier run left; return the files.

    Raises:
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {route: plots.draw(RouteSummary(results, findings, route)) for route in routes(results)}
    files = {
        "report.html": page(results, findings, drawn).encode(),
        "windows.csv": table(results).encode(),
        "results.json": msgspec.json.format(msgspec.json.encode(ResultsFile(results, findings)), indent=1),
    }
    for number, (route, own) in enumerate(drawn.items(), start=1):
        name = re.sub(r"[^\w-]+", "-", route, flags=re.ASCII)
        name = route if name == route else f"{number}-{name}"
        files |= {f"{name}-{plot.kind}.png": plots.png(plot) for plot in own}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in files]


def page(results: Results, findings: Findings, drawn: Mapping[str, Sequence[Plot]]) -> str:
    """Return report.html; text from outside is escaped where it enters."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "between": lambda pair: "depth {} → {}".format(*pair),
        "by_kind": by_kind,
        "error": _error,
        "json": json.dumps,
        "label": lambda pool, route: route.label(pool),
        "moment": _moment,
        "number": _number,
        "svg": lambda plot, name: Markup(plots.svg(plot, name)),  # noqa: S704 - made here, escaped there
    }
    setting, windows = results.setting, results.windows
    return environment.get_template("report.html.j2").render(
        setting=setting,
        pools={name: setting.pools[name] for name in by_depth(results, setting.pools)},
        findings=findings,
        facts=_facts(results),
        own_schedules=_own_schedules(findings, setting.pools),
        routes=[RouteSummary(results, findings, route) for route in routes(results)],
        invalid=[window for window in windows if not window.valid],
        flagged=[window for window in windows if window.valid and window.flags],
        plots=drawn,
        missing_plots=plots.MISSING,
        style=Markup((_FOLDER / "report.css").read_text(encoding="utf-8") + plots.STYLE),  # noqa: S704
    )


def _facts(results: Results) -> dict[str, str]:
    """What was measured, on what, when and with what."""
    setting, windows = results.setting, results.windows
    wrong = sum(not window.valid for window in windows)
    started = [setting.started, *(window.started for window in windows if window.started)]
    facts = {
        "Model": setting.model,
        "GPU": "none, simulated" if setting.simulated else setting.gpu or "not named (--gpu)",
        "Engines": ", ".join(sorted({pool.version for pool in setting.pools.values() if pool.version}))
        or "version not told",
        "Load from": setting.client or "not told",
        "Measured": " to ".join(dict.fromkeys(map(_moment, (min(started), max(started))))),
        "Windows": f"{len(windows)} of {setting.window_s:g} s: {len(windows) - wrong} valid, {wrong} invalid",
        "Tool": setting.tool,
    }
    files = sorted({window.source for window in windows} - {"ours"})
    return facts | ({"Read from": ", ".join(files)} if files else {})


def _own_schedules(findings: Findings, pools: Mapping[str, SweptPool]) -> dict[str, str]:
    """What engines that schedule their own depth would be started with."""
    own = {f"an engine for {route} alone": found.own_schedule for route, found in findings.routes.items()}
    if not any(own.values()):
        return {}
    own = {"all routes on one engine": findings.own_schedule} | own
    return {name: _speculative_config(ranges, pools) for name, ranges in own.items() if ranges}


def _speculative_config(ranges: Sequence[tuple[int, int, int]], pools: Mapping[str, SweptPool]) -> str:
    """vLLM's --speculative-config that runs a schedule, made from the pool that drafts as deep."""
    deepest = max(depth for _, _, depth in ranges)
    if not deepest:
        return "no --speculative-config: depth 0 wins everywhere"
    config: dict[str, Any] = next(
        (pool.speculative_config for pool in pools.values() if pool.depth == deepest and not pool.ranges), {}
    )
    config = config | {
        "num_speculative_tokens": deepest,
        "num_speculative_tokens_per_batch_size": ranges,
    }
    return f"--speculative-config {shlex.quote(json.dumps(config, separators=(',', ':')))}"


def _moment(text: str) -> str:
    return re.sub(r"^(\S{10})T(\d\d:\d\d)\S*(Z|\+00:00)$", r"\1 \2 UTC", text)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"


def _error(stderr: float) -> str:
    """A standard error as a 95% interval; empty where it is not known."""
    half = float(f"{Z95 * stderr:.2g}")
    if not stderr:
        return ""
    return f" ± {half:,.0f}" if half >= 10 else f" ± {half:#.2g}"


def by_kind(errors: Mapping[str, int]) -> str:
    """Failed requests by kind, in words; empty without one."""
    return "; ".join(f"{kind}: {count}" for kind, count in sorted(errors.items()))


def table(results: Results) -> str:
    """Return the windows as CSV: one row each, one column a figure; empty where it was not measured."""
    drafted = [part for window in results.windows for part in (window.speculation, window.told) if part]
    positions = max((len(part.accepted_per_position) for part in drafted), default=0)
    pools = results.setting.pools
    rows = [_row(window, pools.get(window.cell.pool), positions) for window in results.windows]
    text = io.StringIO()
    writer = csv.DictWriter(
        text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row(window: Window, pool: SweptPool | None, positions: int) -> dict[str, object]:
    row: dict[str, object] = {"valid": window.valid, **msgspec.structs.asdict(window.cell)}
    row["depth"] = pool.depth if pool else ""
    for name, value in msgspec.structs.asdict(window).items():
        match name:
            case "cell":
                pass
            case "errors":
                row |= {name: sum(value.values()), "errors_by_kind": by_kind(value)}
            case "first_token_s" | "token_s" | "request_s":
                row |= {f"{name}_{part}": getattr(value, part, "") for part in ("mean", "p50", "p95", "p99")}
            case "speculation" | "told":
                row |= {f"{name}_{part}": figure for part, figure in _drafted(value, positions).items()}
            case "invalid" | "flags":
                row[name] = "; ".join(value)
            case _:
                row[name] = value
    return row


def _drafted(drafted: Speculation | None, positions: int) -> dict[str, object]:
    figures = {part: getattr(drafted, part, "") for part in ("length", "drafts", "draft_tokens", "accepted")}
    accepted = drafted.accepted_per_position if drafted else ()
    padded = (*accepted, *[""] * (positions - len(accepted)))
    return figures | {f"accepted_{place}": share for place, share in enumerate(padded, start=1)}
