"""Sweeps of engines whose true curves are known: windows by the simulated engine's model, with noise."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from gateway.engines.simulated.step_model import Fit, throughput
from gateway.tools.sweep.agenda import next_cells
from gateway.tools.sweep.sweep_values import Cell, Pool, Setting, Shape, Window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.tools.sweep.agenda import Options

FITS = ("h100-9b", "slow-verify")
ROUTES = ("text", "key-value", "table")
LOADS = (1, 10, 24, 32, 40, 64, 80, 128, 256)


def setting(
    depths: Sequence[int], fit: str = "h100-9b", routes: Sequence[str] = ROUTES, **pools: Pool
) -> Setting:
    """Depth 0 is pool `plain`, others `mtpN`."""
    return Setting(
        model="glm-ocr",
        simulated=fit,
        pools={f"mtp{depth}" if depth else "plain": Pool(depth) for depth in depths} | pools,
        routes={route: Shape("", 1, rendered=True, max_tokens=100) for route in routes},
        loads=LOADS,
        window_s=120,
        started="2026-11-29T00:00:00Z",
        tool="0",
    )


@lru_cache(maxsize=100_000)
def true_rate(
    fit: str, route: str, depth: int, load: int, ranges: tuple[tuple[int, int, int], ...] = ()
) -> float:
    return throughput(Fit.builtin(fit), depth, {route: load}, schedule=ranges or None)[route]


def true_changes(fit: str, route: str, depths: Sequence[int]) -> list[tuple[int, int, int]]:
    """Where another depth wins: first load, depth before, depth from there on."""
    best = [max(depths, key=lambda depth: true_rate(fit, route, depth, load)) for load in range(1, 257)]
    return [
        (load, best[load - 2], best[load - 1]) for load in range(2, 257) if best[load - 1] != best[load - 2]
    ]


def window(
    known: Setting,
    cell: Cell,
    rng: np.random.Generator | None = None,
    noise: float = 0.0,
    *,
    stderr: float = 0.0,
    invalid: tuple[str, ...] = (),
) -> Window:
    """What a cell would show; noise and standard error are relative."""
    pool = known.pools[cell.pool]
    rate = true_rate(known.simulated, cell.route, pool.depth, cell.load, pool.ranges)
    if rng is not None:
        rate *= float(max(0.05, 1 + noise * rng.standard_normal()))
    return Window(
        cell=cell,
        engine=f"{cell.pool}-0",
        started="2026-11-29T00:00:00Z",
        seconds=120.0,
        rate=rate,
        stderr=stderr * rate,
        invalid=invalid,
    )


def grid(known: Setting, repeats: int = 1, noise: float = 0.0, seed: int = 0) -> list[Window]:
    """The whole grid, each cell so many times."""
    rng = np.random.default_rng(seed)
    return [
        window(known, Cell(route, pool, load, repeat), rng, noise)
        for route in known.routes
        for pool in known.pools
        for load in known.loads
        for repeat in range(repeats)
    ]


def swept(known: Setting, options: Options, noise: float = 0.0, seed: int = 0) -> list[Window]:
    """All windows that the agenda asks for."""
    rng = np.random.default_rng(seed)
    windows: list[Window] = []
    while cells := next_cells(known, windows, options):
        windows += [window(known, cell, rng, noise) for cell in cells]
    return windows


def steps(one: float, other: float) -> float:
    """How many steps of the grid lie between two loads."""
    places = np.interp([one, other], LOADS, range(len(LOADS)))
    return float(abs(places[1] - places[0]))
