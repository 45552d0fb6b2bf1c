"""The curves as pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from bench.scale.figures import Figures


def draw(figures: Figures, folder: Path) -> None:
    """Write scale-requests.png (what a request costs) and scale-fleet.png (what there is besides)."""
    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7), layout="constrained")
    (body, concurrency), (events, routes) = axes
    points = figures.curve("body")
    body.set_xscale("log")
    body.set_yscale("log")
    _plot(body, [one["body_bytes"] / 1e6 for one in points], [one["cpu_ms"] for one in points], "body, MB")
    if rule := figures.rule():
        sizes = [one["body_bytes"] / 1e6 for one in points]
        body.plot(sizes, [rule.of(size, 0) for size in sizes], "--", color="grey", label="the rule")
        body.legend()
    _curve(figures, concurrency, "concurrency", "requests of 200 kB at once", lambda one: one["cpu_ms"])
    _curve(figures, events, "events", "events of a stream", lambda one: one["cpu_ms"])
    _curve(figures, routes, "routes", "routes (1 kB, 32 at once)", lambda one: one["cpu_ms"])
    for one in axes.flat:
        one.set_ylabel("CPU ms a request")
    figure.savefig(folder / "scale-requests.png", dpi=110)
    pyplot.close(figure)

    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7), layout="constrained")
    (reading, cost), (streams, memory) = axes
    _curve(figures, reading, "polling", "engines", lambda one: 100 * one["share"]["gateway"])
    reading.set_ylabel("% of the core to read them every second")
    shares = {one["at"]: one["share"]["gateway"] for one in figures.curve("polling")}
    _curve(
        figures,
        cost,
        "engines",
        "engines",
        lambda one: one["cpu_ms"] - 1e3 * shares[one["at"]] / one["requests_s"],
    )
    cost.set_ylabel("CPU ms a 200 kB request, without reading")
    _curve(
        figures, streams, "streams", "open streams, 4,000 events a second in all", lambda one: one["event_us"]
    )
    streams.set_ylabel("CPU us an event")
    _curve(figures, memory, "streams", "open streams", lambda one: one["rss_mib"])
    memory.set_ylabel("resident MiB")
    figure.savefig(folder / "scale-fleet.png", dpi=110)
    pyplot.close(figure)


def _curve(
    figures: Figures, axes: Axes, name: str, title: str, value: Callable[[Mapping[str, Any]], float]
) -> None:
    points = figures.curve(name)
    axes.set_xscale("log", base=2)
    _plot(axes, [one["at"] for one in points], [value(one) for one in points], title)
    axes.set_xticks([one["at"] for one in points], [f"{one['at']:,}" for one in points])


def _plot(axes: Axes, x: Sequence[float], y: Sequence[float], title: str) -> None:
    axes.plot(x, y, "o-")
    axes.set_xlabel(title)
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
