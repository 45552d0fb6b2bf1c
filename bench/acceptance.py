"""`python -m bench.acceptance [--prometheus URL]`: acceptance per route as Prometheus has it, also drawn.

Run it beside `make stack`, or against the Prometheus of a real deployment; docs/metrics.md shows the former.
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes

OUT = Path(__file__).resolve().parents[1] / "docs" / "images" / "acceptance.png"
STEPS = 120
Series = tuple[dict[str, str], np.ndarray, np.ndarray]


class Prometheus:
    """Answers queries over the last minutes."""

    def __init__(self, url: str, minutes: float) -> None:
        self._url = url.rstrip("/")
        self._end = time.time()
        self._start = self._end - 60 * minutes

    def over_time(self, query: str) -> list[Series]:
        """Return each series' labels, minutes from now (up to 0) and values."""
        step = (self._end - self._start) / STEPS
        found = self._get("query_range", query=query, start=self._start, end=self._end, step=step)
        return [
            (
                series["metric"],
                (np.array([float(at) for at, _ in series["values"]]) - self._end) / 60,
                np.array([float(value) for _, value in series["values"]]),
            )
            for series in found
        ]

    def now(self, query: str) -> list[tuple[dict[str, str], float]]:
        """Return each series' labels and value."""
        found = self._get("query", query=query, time=self._end)
        return [(series["metric"], float(series["value"][1])) for series in found]

    def _get(self, kind: str, **parameters: object) -> list[Any]:
        address = f"{self._url}/api/v1/{kind}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(address, timeout=30) as page:
            return list(json.load(page)["data"]["result"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Query, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090", metavar="URL")
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    prometheus = Prometheus(options.prometheus, options.minutes)
    told = prometheus.now("ocr_gateway:pool_acceptance_length:rate5m")
    if not told:
        raise SystemExit(
            f"{options.prometheus} has no ocr_gateway:pool_acceptance_length:rate5m: it needs the rules of "
            "deploy/prometheus, a gateway to scrape, and a few minutes of traffic"
        )
    models = sorted({labels["model"] for labels, _ in told})
    print(f"Acceptance length by route and pool, last 5 minutes ({', '.join(models)}):")
    for labels, value in sorted(told, key=lambda series: sorted(series[0].items())):
        print(f"  {labels['route']:<10} {labels['pool']:<8} {value:.3f}")
    draw(prometheus, models, options.out)
    print(f"drawn: {options.out}")


def draw(prometheus: Prometheus, models: Sequence[str], out: Path) -> None:
    """Draw what the dashboard's first rows show."""
    figure, axes = plt.subplots(2, 2, figsize=(11, 7.5), layout="constrained")
    figure.suptitle(f"Acceptance per route of {', '.join(models)}, as Prometheus has it", fontsize=12)
    lengths, positions, depths, loads = axes.flat
    lines(
        lengths,
        prometheus.over_time("ocr_gateway:pool_acceptance_length:rate5m"),
        lambda labels: f"{labels['route']}, {labels['pool']}",
    )
    lengths.set(title="Acceptance length: 1 + accepted / drafts", ylabel="tokens per step", xlabel="minutes")
    bars(positions, prometheus.now("ocr_gateway:acceptance_rate:rate5m"))
    lines(
        depths,
        prometheus.over_time('ocr_gateway:depth_share:rate5m{depth!="0"}'),
        lambda labels: f"{labels['route']}, depth {labels['depth']}",
    )
    depths.set(title="Share of requests sent to a depth", ylim=(0, 1), xlabel="minutes")
    lines(
        loads,
        prometheus.over_time("max by (pool, route) (ocr_gateway:engine_load_per_crossover)"),
        lambda labels: f"{labels['route']}, {labels['pool']}",
    )
    loads.axhline(1, color="grey", linestyle=":")
    loads.set(title="Fullest engine's load against its crossover", ylim=(0, None), xlabel="minutes")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110)


def lines(axes: Axes, found: Sequence[Series], name: Callable[[dict[str, str]], str]) -> None:
    """Draw series over time, or say that there are none."""
    for labels, minutes, values in sorted(found, key=lambda series: name(series[0])):
        axes.plot(minutes, values, label=name(labels))
    if found:
        axes.legend(fontsize=8)
    else:
        axes.text(0.5, 0.5, "no data", ha="center", transform=axes.transAxes)
    axes.grid(alpha=0.3)


def bars(axes: Axes, found: Sequence[tuple[dict[str, str], float]]) -> None:
    """Draw the acceptance rate of each draft position, route by route, in the pool that drafts deepest."""
    deepest = max(found, key=lambda series: int(series[0]["position"]), default=({"pool": ""}, 0))[0]["pool"]
    rates = {
        (labels["route"], int(labels["position"])): value
        for labels, value in found
        if labels["pool"] == deepest
    }
    routes = sorted({route for route, _ in rates})
    for place, route in enumerate(routes):
        at = [position for name, position in sorted(rates) if name == route]
        width = 0.8 / len(routes)
        axes.bar(
            np.array(at) + 1 + (place - (len(routes) - 1) / 2) * width,
            [rates[route, position] for position in at],
            width,
            label=route,
        )
    axes.set(title=f"Share of drafts accepted, by position ({deepest})", ylim=(0, 1), xlabel="draft position")
    axes.set_xticks(sorted({position + 1 for _, position in rates}))
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3, axis="y")


if __name__ == "__main__":
    main()
