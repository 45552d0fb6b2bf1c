"""Sweeps whose true curves are known: windows by the simulated engine's model, with noise if wanted.

`sweep` makes a whole one, with all that a window tells. `setting`, `window` and `grid` make windows that tell
their rate alone, for those who ask what follows from rates.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from gateway.engines.simulated.step_model import Fit, throughput
from gateway.model import Speculation
from gateway.tools.sweep.agenda import next_cells, ordered
from gateway.tools.sweep.sweep_values import (
    DeeperDraft,
    DepthChange,
    DepthRange,
    Findings,
    MeasuredPoint,
    RequestShape,
    Results,
    RouteFindings,
    Setting,
    Spread,
    SweepCell,
    SweptPool,
    Window,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.tools.sweep.agenda import Options

FITS = ("h100-9b", "slow-verify")
ROUTES = ("text", "key-value", "table")
LOADS = (1, 10, 24, 32, 40, 64, 80, 128, 256)


def setting(
    depths: Sequence[int],
    simulated: str = "h100-9b",
    routes: Sequence[str] = ROUTES,
    loads: Sequence[int] = LOADS,
    *,
    streamed: bool = True,
    **pools: SweptPool,
) -> Setting:
    """Depth 0 is pool `plain`, others `mtpN`; `simulated` that is no fit has the rates of the first one."""
    version = "simulated" if simulated else "vLLM 0.30.1"
    mtp = {depth: {"method": "mtp", "num_speculative_tokens": depth} if depth else {} for depth in depths}
    return Setting(
        model="glm-ocr",
        gpu="" if simulated else "1x H100",
        simulated=simulated,
        pools={
            f"mtp{depth}" if depth else "plain": SweptPool(depth, mtp[depth], version=version)
            for depth in depths
        }
        | pools,
        routes={
            route: RequestShape(
                f"{route} recognition:", 12, rendered=True, max_tokens=4096, streamed=streamed
            )
            for route in routes
        },
        loads=tuple(loads),
        window_s=120.0,
        started="2026-03-14T09:00:00Z",
        tool="ocr-gateway 0.2.0",
        client="bench-1, 16 CPUs",
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
    cell: SweepCell,
    rng: np.random.Generator | None = None,
    noise: float = 0.0,
    *,
    stderr: float = 0.0,
    invalid: tuple[str, ...] = (),
) -> Window:
    """What a cell would show; noise and standard error are relative, routes that no fit knows are tables."""
    pool = known.pools[cell.pool]
    fit = known.simulated if known.simulated in FITS else FITS[0]
    rate = true_rate(fit, cell.route if cell.route in ROUTES else "table", pool.depth, cell.load, pool.ranges)
    if rng is not None:
        rate *= float(max(0.05, 1 + noise * rng.standard_normal()))
    return Window(
        cell=cell,
        engine=f"{cell.pool}:8000",
        started=f"2026-03-14T09:{cell.load % 60:02}:00Z",
        seconds=120.0,
        rate=rate,
        stderr=stderr * rate,
        invalid=invalid,
    )


def grid(known: Setting, repeats: int = 1, noise: float = 0.0, seed: int = 0, **more: Any) -> list[Window]:
    """The whole grid, each cell so many times."""
    rng = np.random.default_rng(seed)
    return [
        window(known, SweepCell(route, pool, load, repeat), rng, noise, **more)
        for route in known.routes
        for pool in known.pools
        for load in known.loads
        for repeat in range(repeats)
    ]


def wanted(known: Setting, windows: Sequence[Window], options: Options) -> list[SweepCell]:
    """What a sweep asks for next, of all its routes."""
    return ordered(cell for route in known.routes for cell in next_cells(known, windows, options, route))


def swept(known: Setting, options: Options, noise: float = 0.0, seed: int = 0) -> list[Window]:
    """All windows that the agenda asks for."""
    rng = np.random.default_rng(seed)
    windows: list[Window] = []
    while cells := wanted(known, windows, options):
        windows += [window(known, cell, rng, noise) for cell in cells]
    return windows


def steps(one: float, other: float) -> float:
    """How many steps of the grid lie between two loads."""
    places = np.interp([one, other], LOADS, range(len(LOADS)))
    return float(abs(places[1] - places[0]))


def sweep(
    depths: Sequence[int] = (0, 1, 3),
    routes: Sequence[str] = ROUTES,
    loads: Sequence[int] = LOADS,
    repeats: int = 1,
    noise: float = 0.0,
    simulated: str = "h100-9b",
    *,
    streamed: bool = True,
) -> Results:
    """Every route at every depth and load, with all that a window tells."""
    known = setting(depths, simulated, routes, loads, streamed=streamed)
    windows = grid(known, repeats, noise, seed=1, stderr=max(noise, 0.01))
    return Results(
        known, tuple(_with_figures(one, known.pools[one.cell.pool].depth, streamed) for one in windows)
    )


def small(**options: Any) -> Results:
    """One route, two pools, two loads, unless told otherwise."""
    return sweep(**({"routes": ("table",), "depths": (0, 3), "loads": (1, 64)} | options))


def with_windows(results: Results, *changes: dict[str, Any]) -> Results:
    """The sweep with its first windows changed."""
    changed = [replace(one, **change) for one, change in zip(results.windows, changes, strict=False)]
    return replace(results, windows=(*changed, *results.windows[len(changed) :]))


def with_pools(results: Results, **pools: SweptPool) -> Results:
    """The sweep with pools added or replaced."""
    return replace(results, setting=replace(results.setting, pools={**results.setting.pools, **pools}))


def _with_figures(one: Window, depth: int, streamed: bool) -> Window:
    fit, cell, rate = Fit.builtin(FITS[0]), one.cell, one.rate
    shape = fit.routes[cell.route if cell.route in fit.routes else "table"]
    requests = rate / shape.output_tokens
    mean, gap = cell.load / requests, cell.load / rate
    length = shape.acceptance_length(depth)
    drafts = round(rate * 120 / length)
    positions = tuple(float(round(drafts * share)) for share in shape.acceptance[:depth])
    drafted = Speculation(drafts, sum(positions), drafts * depth, positions) if depth else None
    return replace(
        one,
        warm_s=20.0,
        requests=round(requests * 120),
        answered_rate=rate,
        requests_per_s=requests,
        prompt_rate=requests * shape.prompt_tokens,
        first_token_s=Spread(mean / 20, mean / 20, mean / 10, 3 * mean / 20) if streamed else None,
        token_s=Spread(gap, gap, gap, gap) if streamed else None,
        request_s=Spread(mean, 0.9 * mean, 1.9 * mean, 2.4 * mean),
        speculation=drafted,
        told=drafted,
        agree=True if drafted else None,
        tokens_per_step=length if depth else 1.0,
        step_s=length * gap,
        running=float(cell.load),
        highest=cell.load,
        kv_usage=0.4,
    )


def findings(results: Results) -> Findings:
    """What such a sweep says, read off its own rates; no statistics worth the name."""
    found = {route: _route(results, route) for route in results.setting.routes}
    routes = {route: of for route, of in found.items() if of}
    own = next(iter(routes.values())).own_schedule if routes else ()
    return Findings(routes=routes, own_schedule=own, words=("Draft while an engine has room for it.",))


def _route(results: Results, route: str) -> RouteFindings | None:
    pools = results.setting.pools
    rates: dict[str, dict[int, list[float]]] = {pool: {} for pool in pools}
    for one in results.windows:
        if one.valid and one.cell.route == route and one.cell.pool in pools and not one.cell.per_s:
            rates[one.cell.pool].setdefault(one.cell.load, []).append(one.rate)
    points = {
        pool: tuple(
            MeasuredPoint(load, float(np.mean(of)), 0.02 * of[0], len(of)) for load, of in by_load.items()
        )
        for pool, by_load in rates.items()
        if by_load
    }
    if not points:
        return None
    at = {
        load: {pool: one.rate for pool, own in points.items() for one in own if one.load == load}
        for load in results.setting.loads
    }
    best = {load: max(found, key=found.__getitem__) for load, found in at.items() if found}
    starts = [
        load for load, before in zip(best, [None, *best], strict=False) if best[load] != best.get(before or 0)
    ]
    schedule = tuple(
        DepthRange(start, end, best[start], pools[best[start]].depth, "plain", 0.123, 0.08, 0.17)
        for start, end in zip(starts, [*(start - 1 for start in starts[1:]), 4096], strict=True)
    )
    depths = sorted(pool.depth for pool in pools.values())
    return RouteFindings(
        points=points,
        noise=0.03,
        schedule=schedule,
        changes=tuple(
            DepthChange(
                after.first, after.first * 4 // 5, after.first * 5 // 4, before.pool, after.pool, not at
            )
            for at, (before, after) in enumerate(pairwise(schedule))
        ),
        deeper=tuple(
            DeeperDraft(load, shallow, deep, 1.4, 1 + load / 100, (0.61,) * (deep - shallow))
            for load in best
            for shallow, deep in pairwise(depths)
        ),
        own_schedule=tuple((entry.first, entry.last, entry.depth) for entry in schedule),
        words=(f"Run {route} at depth {schedule[0].depth} up to {schedule[0].last} requests on an engine.",),
    )
