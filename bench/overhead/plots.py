"""The figures as pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.ticker import NullFormatter

from bench.overhead.peers import DIRECT, OURS, QUIET
from bench.overhead.results import number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from matplotlib.axes import Axes

    from bench.overhead.results import Results

_CPU = ("1 kB x 32", "200 kB x 32", "200 kB x 256", "1.5 MB x 32", "8 MB x 32", "200 kB stream x 256")
_STREAM = "200 kB stream x 256"
_DELAYS: dict[str, tuple[str, Callable[[Mapping[str, Any]], float | None]]] = {
    "200 kB, 32 at once, engine 100 ms:\nms added outside the engine, p99": (
        "200 kB paced x 32",
        lambda cell: cell["outside_ms"]["p99"],
    ),
    "256 streams of 64 events 5 ms apart:\nms an event is under way, p99": (
        _STREAM,
        lambda cell: cell["event_delay_ms"]["p99"],
    ),
    "256 requests of 1.5 MB at the engine:\npeak MiB": (
        "1.5 MB held x 256",
        lambda cell: cell["rss_mib"],
    ),
}


def draw(figures: Results, folder: Path) -> None:
    """Write performance-cpu.png and performance-delays.png."""
    shown = [name for name in _CPU if name in figures.cases]
    if shown:
        panels = {f"{name}: CPU ms a request": (name, _cpu_ms) for name in shown}
        _bars(figures, panels, folder / "performance-cpu.png", columns=3)
    delays = {title: panel for title, panel in _DELAYS.items() if panel[0] in figures.cases}
    if delays:
        _bars(figures, delays, folder / "performance-delays.png", columns=3)


def _cpu_ms(cell: Mapping[str, Any]) -> float | None:
    value: float | None = cell["cpu_s_per_1000"]
    return value


def _bars(
    figures: Results,
    panels: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], float | None]]],
    path: Path,
    columns: int,
) -> None:
    mpl.use("Agg")
    from matplotlib import pyplot

    rows = -(-len(panels) // columns)
    figure, grid = pyplot.subplots(
        rows, columns, figsize=(4 * columns, 0.6 + 2.9 * rows), layout="constrained", squeeze=False
    )
    for axes, (title, (case, value)) in zip(grid.flat, panels.items(), strict=False):
        _panel(axes, figures, title, case, value)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_axis_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _panel(
    axes: Axes,
    figures: Results,
    title: str,
    case: str,
    value: Callable[[Mapping[str, Any]], float | None],
) -> None:
    found = {}
    for name in figures.names:
        cell = figures.good(name, case)
        if name != DIRECT and cell and (height := value(cell)):
            found[name] = height
    names = sorted(found, key=found.__getitem__, reverse=True)
    axes.barh(
        names,
        [found[name] for name in names],
        color=["tab:blue" if name in (OURS, QUIET) else "tab:gray" for name in names],
    )
    for place, name in enumerate(names):
        axes.text(found[name], place, f" {number(found[name])}", va="center", fontsize=7)
    axes.set_xscale("log")
    axes.xaxis.set_minor_formatter(NullFormatter())
    if found:
        axes.set_xlim(min(found.values()) / 2, max(found.values()) * 4)
    axes.tick_params(labelsize=7)
    axes.set_title(title, fontsize=8)
