"""The days as a picture, for docs/images; it says that it is simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from bench.autoscaling.day import Case, Course

mpl.use("Agg")
_COLOURS = {"mtp3": "tab:blue", "plain": "tab:orange"}


def draw(courses: Mapping[str, Course], days: Mapping[str, Case], path: Path) -> None:
    """Draw each day: the load, the engines of each pool that are up, what waits."""
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    grid = figure.subplots(2, 2)
    for axes, (name, course) in zip(grid.flat, courses.items(), strict=True):
        case = days[name]
        hours = [moment.at / 3600 for moment in course.moments]
        for pool, colour in _COLOURS.items():
            axes.step(
                hours, [moment.up[pool] for moment in course.moments], color=colour, label=f"{pool}, up"
            )
            wished = [moment.wished[pool] for moment in course.moments]
            axes.step(hours, wished, color=colour, linestyle=":", label=f"{pool}, wished for")
        axes.set_ylim(0, 9)
        axes.set_title(f"{name} ({case.fit}, simulated)", fontsize=9)
        axes.set_xlabel("hours", fontsize=8)
        axes.set_ylabel("engines", fontsize=8)
        other = axes.twinx()
        unit = "requests/s" if case.kind == "open" else "clients"
        other.fill_between(hours, [moment.level for moment in course.moments], color="black", alpha=0.08)
        other.set_ylim(0, case.peak * 1.5)
        other.set_ylabel(f"load, {unit}", fontsize=8)
        waiting = max(moment.waiting for moment in course.moments)
        axes.text(
            0.02, 0.95, f"at most {waiting} requests wait", transform=axes.transAxes, fontsize=8, va="top"
        )
    grid.flat[0].legend(fontsize=7, loc="center left")
    figure.savefig(path, dpi=110, metadata={"Software": ""})
