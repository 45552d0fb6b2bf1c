"""The figures as pictures in docs/images, each marked as simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np

from bench.choice.fleet import ROUTES, Pool
from bench.choice.regret import FLEETS, KINDS
from bench.choice.sweep import SEEDS, alone, model_rate
from bench.choice.tables import baseline
from bench.choice.trace import LENGTH_S, clients_at
from bench.serving import ROOT
from gateway.policy.choose.gain import Curve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bench.choice.sweep import Sweep

IMAGES = ROOT / "docs" / "images"
_COLOURS = {3: "tab:blue", 1: "tab:green", 0: "tab:orange"}
_RULES = {
    "ours": "tab:blue",
    "fill to crossover": "tab:red",
    "fastest for itself": "tab:purple",
    "least loaded": "tab:green",
    "round robin": "tab:gray",
}


def curves(sweeps: Mapping[str, Sweep]) -> None:
    """Tokens per second of one engine by load: the model, a noisy sweep, what the gateway reads off it."""
    figure, grid = _grid(len(sweeps), len(ROUTES))
    loads = np.arange(1, 257)
    for row, (fit, sweep) in zip(grid, sweeps.items(), strict=True):
        for place, (axes, route) in enumerate(zip(row, ROUTES, strict=True)):
            lines = {}
            for depth, colour in _COLOURS.items():
                lines[depth] = np.array(
                    [model_rate(fit, depth, (), alone(place, int(load))) for load in loads]
                )
                points = sweep.curve(route, Pool("", depth), SEEDS[0])
                axes.plot(loads, lines[depth], color=colour, label=f"depth {depth}")
                axes.plot(*zip(*points, strict=True), ".", color=colour)
                read = Curve(points)
                axes.plot(loads, [read.rate(int(load)) for load in loads], "--", color=colour, linewidth=0.8)
            crossover = int(loads[np.argmax(lines[0] >= lines[3])])
            axes.axvline(crossover, color="black", linewidth=0.6)
            axes.text(crossover, 0.03, f" {crossover}", transform=axes.get_xaxis_transform(), fontsize=8)
            axes.set_title(f"{route} ({fit}, simulated)", fontsize=9)
            axes.set_xlabel("requests on ONE engine", fontsize=8)
    grid[0][0].set_ylabel("output tokens/s of the engine", fontsize=8)
    grid[0][0].legend(
        fontsize=7, title="points: sweep with 5% noise\ndashed: read off them", title_fontsize=6
    )
    _save(figure, "speculation-curves.png")


def regret(cells: Sequence[Mapping[str, Any]]) -> None:
    """Tokens per second over the best fixed split's, one deep and one plain engine."""
    fits = list(dict.fromkeys(cell["fit"] for cell in cells))
    figure, grid = _grid(len(fits), len(KINDS))
    for row, fit in zip(grid, fits, strict=True):
        for axes, kind in zip(row, KINDS, strict=True):
            wanted = (fit, FLEETS[0], kind)
            mine = [cell for cell in cells if (cell["fit"], cell["fleet"], cell["kind"]) == wanted]
            for rule, colour in _RULES.items():
                rates = [
                    min(rate for rate, _ in cell[rule]) if rule == "ours" else cell[rule][0] for cell in mine
                ]
                name = "ours, worst of three noisy profiles" if rule == "ours" else rule
                axes.plot(
                    [cell["clients"] for cell in mine], rates, "o-", color=colour, markersize=2.5, label=name
                )
            axes.axhline(1, color="black", linewidth=0.6)
            axes.set_xscale("log")
            axes.set_ylim(0.4, 1.08)
            axes.set_title(f"{kind} ({fit}, simulated)", fontsize=9)
            axes.set_xlabel("clients on two engines", fontsize=8)
    grid[0][0].set_ylabel("tokens/s over the best fixed split", fontsize=8)
    grid[0][0].legend(fontsize=6, loc="lower left")
    _save(figure, "speculation-regret.png")


def trace(runs: Sequence[Mapping[str, Any]]) -> None:
    """A day: clients, tokens per second, and where our choice sends the requests."""
    fits = list(dict.fromkeys(run["fit"] for run in runs))
    figure, grid = _grid(3, len(fits), sharex=True)
    seconds = np.arange(0, LENGTH_S, 5)
    for column, fit in zip(zip(*grid, strict=True), fits, strict=True):
        mine = [run for run in runs if run["fit"] == fit]
        base, _ = baseline(mine)
        plain = [
            run
            for run in mine
            if run["rule"] == "ours" and not run["power"] and len(run["course"][0]["by_pool"]) > 1
        ]
        best = max(plain, key=lambda run: run["rate"])
        counts = [clients_at(float(second)) for second in seconds]
        column[0].stackplot(seconds, [[count[route] for count in counts] for route in ROUTES], labels=ROUTES)
        column[0].set_title(f"clients ({fit}, simulated)", fontsize=9)
        column[0].legend(fontsize=7)
        for run, name in ((best, f"ours on {best['fleet']}"), (base, f"least loaded on {base['fleet']}")):
            at = [sample["at"] for sample in run["course"]]
            column[1].plot(at, [sample["rate"] for sample in run["course"]], label=name, linewidth=1)
        column[1].set_title("output tokens/s of the fleet (simulated)", fontsize=9)
        column[1].legend(fontsize=7)
        pools = list(best["course"][0]["by_pool"])
        at = [sample["at"] for sample in best["course"]]
        column[2].stackplot(
            at, [[sample["by_pool"][pool] for sample in best["course"]] for pool in pools], labels=pools
        )
        column[2].set_title("requests by pool, ours (simulated)", fontsize=9)
        column[2].set_xlabel("seconds", fontsize=8)
        column[2].legend(fontsize=7)
    _save(figure, "speculation-trace.png")


def _grid(rows: int, columns: int, *, sharex: bool = False) -> tuple[Figure, list[list[Axes]]]:
    mpl.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(
        rows, columns, figsize=(3.4 * columns, 2.6 * rows), layout="constrained", squeeze=False, sharex=sharex
    )
    for axes in grid.flat:
        axes.tick_params(labelsize=7)
    return figure, [list(row) for row in grid]


def _save(figure: Figure, name: str) -> None:
    from matplotlib import pyplot

    IMAGES.mkdir(exist_ok=True)
    figure.savefig(IMAGES / name, dpi=110)
    pyplot.close(figure)
