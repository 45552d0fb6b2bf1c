"""What a sweep says on the terminal, before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.tools.sweep import agenda
from gateway.tools.sweep.run import guess_s, left_s
from gateway.tools.sweep.sweep_progress import clock, described

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gateway.tools.sweep.run import Work
    from gateway.tools.sweep.sweep_values import Cell, Findings, Pool, Results, RouteFindings, Setting, Window

# About what a request takes, to say how many there will be.
_REQUEST_S = 8.0


def plan(work: Work, now: Setting, windows: Sequence[Window], due: Sequence[Cell]) -> Iterator[str]:
    """Say what will be done, a line each.

    Args:
        work: all of it.
        now: the setting of this run alone.
        windows: valid ones that there are already.
        due: cells to be measured, as far as they are known.
    """
    routes = ", ".join(work.options.pools)
    yield f"sweep of {now.model}: {routes}; {', '.join(map(str, now.loads))} requests at a time on one engine"
    if now.simulated:
        yield f"SIMULATED engines (fit {now.simulated}): every figure below is simulated"
    for name, pool in now.pools.items():
        yield f"pool {name}: {_described(pool)}"
        if above := [load for load in now.loads if load > pool.max_load]:
            left_out = ", ".join(map(str, above))
            yield f"note: pool {name} takes at most max_load {pool.max_load}; left out: {left_out}"
    if any(shape.rendered for shape in now.routes.values()):
        yield "note: the documents are drawn for a first try; measure your own with --images"
    expected = max(len(due), agenda.expected(now, work.options) - len(windows)) if due else 0
    engines = dict.fromkeys(now.pools, 0)
    for engine in work.engines:
        engines[engine.pool] += 1
    guesses = {pool: guess_s(work, pool) for pool in engines}
    share = expected / len(due) if due else 0.0
    seconds = left_s(due, engines, guesses) * share
    sent = share * sum(_requests(work, cell) for cell in due)
    yield (
        f"{len(windows)} windows of {work.timing.window_s:g} s done, about {expected} to go: "
        f"some {clock(seconds)}, some {sent:,.0f} requests"
    )


def found(results: Results, findings: Findings) -> Iterator[str]:
    """Say what was found: tokens per second by load and pool for each route, then what follows."""
    simulated = results.setting.simulated
    what = f"SIMULATED, fit {simulated}" if simulated else results.setting.gpu or "measured"
    for route, of in findings.routes.items():
        yield ""
        yield f"{route}: output tokens per second of one engine, by requests on it ({what})"
        yield from _table(of)
        yield from of.words
    yield ""
    yield from findings.words


def missing(due: Sequence[Cell], lost: Sequence[Cell], gone: Mapping[str, str]) -> list[str]:
    """Say what is missing after a run: engines that were given up, cells without a valid window."""
    engines = [f"engine {name} was given up: {reason}" for name, reason in gone.items()]
    cells = [f"no valid window: {cell}" for cell in _together(lost)]
    never = [f"not measured: {cell}" for cell in _together(cell for cell in due if cell not in lost)]
    if not cells + never:
        return []
    return [*engines, *cells, *never, "the same command tries them again"]


def _together(cells: Iterable[Cell]) -> list[str]:
    """Name cells, those of a route and a pool in one line."""
    named: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        named.setdefault((cell.route, cell.pool), []).append(described(cell).removeprefix(f"{cell.route}, "))
    return [f"{route} on {pool}: {'; '.join(loads)}" for (route, pool), loads in named.items()]


def _described(pool: Pool) -> str:
    depth = f"depth {pool.depth}" if pool.depth else "ordinary decoding"
    own = ", which it schedules by batch size" if pool.ranges else ""
    engines = f"{pool.engines} engine{'s' * (pool.engines != 1)}"
    return f"{depth}{own}; {engines}, version {pool.version}"


def _requests(work: Work, cell: Cell) -> float:
    scale = min(work.scales.get(of.name, 1.0) for of in work.engines if of.pool == cell.pool)
    seconds = guess_s(work, cell.pool) * scale
    return seconds * (cell.per_s or cell.load / _REQUEST_S)


def _table(route: RouteFindings) -> Iterator[str]:
    rates = {pool: {point.load: point for point in points} for pool, points in route.points.items()}
    loads = sorted({load for points in rates.values() for load in points})
    rows = [["load", *rates]]
    for load in loads:
        known = [points[load].rate for points in rates.values() if load in points]
        rows.append(
            [
                str(load),
                *(
                    f"{points[load].rate:,.0f}{' *' if points[load].rate == max(known) else '  '}"
                    if load in points
                    else "-  "
                    for points in rates.values()
                ),
            ]
        )
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
