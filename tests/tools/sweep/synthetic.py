"""A sweep made up from the simulated engine's model: bench-like figures without a minute of measuring."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING

from gateway.engines.simulated.step_model import Fit, throughput
from gateway.model import Speculation
from gateway.tools.sweep.sweep_values import (
    Cell,
    Change,
    Deeper,
    Findings,
    Point,
    Pool,
    Range,
    Results,
    RouteFindings,
    Setting,
    Shape,
    Spread,
    Window,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

LOADS = (1, 10, 24, 32, 40, 64, 80, 128, 256)


def sweep(
    depths: Sequence[int] = (0, 1, 3),
    routes: Sequence[str] = ("text", "key-value", "table"),
    loads: Sequence[int] = LOADS,
    repeats: int = 1,
    noise: float = 0.0,
    simulated: str = "h100-9b",
    *,
    streamed: bool = True,
) -> Results:
    """Every route at every depth and load; names of routes that the fit does not know are tables."""
    fit = Fit.builtin("h100-9b")
    rng = random.Random(1)
    pools = {f"mtp{depth}" if depth else "plain": depth for depth in depths}
    setting = Setting(
        model="glm-ocr",
        gpu="" if simulated else "1x H100",
        simulated=simulated,
        pools={
            name: Pool(
                depth=depth,
                speculative_config={"method": "mtp", "num_speculative_tokens": depth} if depth else {},
                version="simulated" if simulated else "vLLM 0.30.1",
            )
            for name, depth in pools.items()
        },
        routes={
            route: Shape(f"{route} recognition:", 12, rendered=True, max_tokens=4096, streamed=streamed)
            for route in routes
        },
        loads=tuple(loads),
        window_s=120.0,
        started="2026-03-14T09:00:00Z",
        tool="ocr-gateway 0.2.0",
        client="bench-1, 16 CPUs",
    )
    windows = [
        _window(fit, Cell(route, name, load, repeat), depth, rng, noise, streamed)
        for route in routes
        for name, depth in pools.items()
        for load in loads
        for repeat in range(repeats)
    ]
    return Results(setting, tuple(windows))


def _window(fit: Fit, cell: Cell, depth: int, rng: random.Random, noise: float, streamed: bool) -> Window:
    kind = cell.route if cell.route in fit.routes else "table"
    shape = fit.routes[kind]
    rate = throughput(fit, depth, {kind: float(cell.load)})[kind] * (1 + rng.gauss(0, noise))
    requests = rate / shape.output_tokens
    mean = cell.load / requests
    drafts = round(rate * 120 / shape.acceptance_length(depth))
    positions = tuple(float(round(drafts * share)) for share in shape.acceptance[:depth])
    told = Speculation(drafts, sum(positions), drafts * depth, positions) if depth else None
    first = mean / 20
    return Window(
        cell=cell,
        engine=f"{cell.pool}:8000",
        started=f"2026-03-14T09:{cell.load % 60:02}:00Z",
        seconds=120.0,
        warm_s=20.0,
        requests=round(requests * 120),
        rate=rate,
        stderr=rate * max(noise, 0.01),
        answered_rate=rate,
        requests_per_s=requests,
        prompt_rate=requests * shape.prompt_tokens,
        first_token_s=Spread(first, first, 2 * first, 3 * first) if streamed else None,
        token_s=Spread(cell.load / rate, cell.load / rate, cell.load / rate, cell.load / rate)
        if streamed
        else None,
        request_s=Spread(mean, 0.9 * mean, 1.9 * mean, 2.4 * mean),
        speculation=told,
        told=told,
        agree=True if told else None,
        tokens_per_step=shape.acceptance_length(depth) if depth else 1.0,
        step_s=shape.acceptance_length(depth) * cell.load / rate,
        running=float(cell.load),
        highest=cell.load,
        kv_usage=0.4,
    )


def findings(results: Results) -> Findings:
    """What such a sweep says, read off its own rates; no statistics worth the name."""
    routes = {}
    pools = results.setting.pools
    for route in results.setting.routes:
        points = {
            pool: tuple(
                Point(load, sum(rates) / len(rates), 0.02 * rates[0], len(rates))
                for load in results.setting.loads
                if (rates := _rates(results, route, pool, load))
            )
            for pool in pools
        }
        points = {pool: own for pool, own in points.items() if own}
        if not points:
            continue
        best: dict[int, str] = {}
        for load in results.setting.loads:
            found = {pool: one.rate for pool, own in points.items() for one in own if one.load == load}
            best |= {load: max(found, key=found.__getitem__)} if found else {}
        starts = [load for i, load in enumerate(best) if i == 0 or best[load] != list(best.values())[i - 1]]
        ends = [start - 1 for start in starts[1:]] + [4096]
        schedule = tuple(
            Range(start, end, best[start], pools[best[start]].depth, "plain", 0.123, 0.08, 0.17)
            for start, end in zip(starts, ends, strict=True)
        )
        changes = tuple(
            Change(
                later.first, int(later.first * 0.8), int(later.first * 1.25), earlier.pool, later.pool, i == 0
            )
            for i, (earlier, later) in enumerate(pairwise(schedule))
        )
        own = tuple((entry.first, entry.last, entry.depth) for entry in schedule)
        depths = sorted(pool.depth for pool in pools.values())
        deeper = tuple(
            Deeper(load, shallow, deep, 1.4, 1 + load / 100, (0.61,) * (deep - shallow))
            for load in best
            for shallow, deep in pairwise(depths)
        )
        routes[route] = RouteFindings(
            points=points,
            noise=0.03,
            schedule=schedule,
            changes=changes,
            deeper=deeper,
            own_schedule=own,
            words=(
                f"Run {route} at depth {schedule[0].depth} up to {schedule[0].last} requests on an engine.",
            ),
        )
    own = next(iter(routes.values())).own_schedule if routes else ()
    return Findings(routes=routes, own_schedule=own, words=("Draft while an engine has room for it.",))


def _rates(results: Results, route: str, pool: str, load: int) -> list[float]:
    return [
        window.rate
        for window in results.windows
        if window.valid
        and (window.cell.route, window.cell.pool, window.cell.load, window.cell.per_s)
        == (route, pool, load, 0)
    ]
