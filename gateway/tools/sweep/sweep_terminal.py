"""What a sweep says on the terminal: before it measures, meanwhile, and in the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gateway.tools.output import aligned, counted, duration, say
from gateway.tools.sweep import agenda

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Self, TextIO

    from gateway.tools.sweep.agenda import SweepPlan
    from gateway.tools.sweep.measure import CellProgress
    from gateway.tools.sweep.sweep_values import (
        Findings,
        Results,
        RouteFindings,
        Setting,
        SweepCell,
        SweptPool,
        Window,
    )

_RECENT = 5
_LEFT, _RIGHT = ("engine", "pool", "cell", "phase"), ("left", "tokens/s", "running")
# About what a request takes, to say how many there will be.
_REQUEST_S = 8.0


@dataclass(frozen=True, slots=True)
class EngineRow:
    """What one engine does: a cell and where that is, or nothing; `gone` says why it takes no more."""

    engine: str
    pool: str
    cell: SweepCell | None = None
    progress: CellProgress | None = None
    gone: str = ""


@dataclass(frozen=True, slots=True)
class SweepState:
    """A sweep at a moment.

    Attributes:
        rows: by engine.
        done: valid windows, earlier runs' too.
        due: cells to come, as far as they are known, those under way among them.
        invalid: lost windows of this run.
        left_s: our seconds until the last of them is done, estimated.
        simulated: the fit; empty where the engines are real.
    """

    rows: tuple[EngineRow, ...]
    done: int
    due: int
    invalid: int
    left_s: float
    simulated: str = ""

    def __str__(self) -> str:
        """How much is done and left, in words."""
        lost = f", {self.invalid} invalid" if self.invalid else ""
        simulated = f"; SIMULATED engines, fit {self.simulated}" if self.simulated else ""
        left = f"{self.due} to go, {duration(self.left_s)} left"
        return f"{counted(self.done, 'window')} done{lost}, {left}{simulated}"


class SweepDisplay:
    """Shows a sweep on a stream: a live table in a terminal, else a line for each window.

    A context manager. A reader that has left ends nothing: hours of measuring are worth more.
    """

    def __init__(self, stream: TextIO) -> None:
        console = Console(file=stream)
        live = stream.isatty() and not console.is_dumb_terminal
        self._live = Live(console=console, auto_refresh=False, redirect_stderr=False) if live else None
        self._stream = stream
        self._recent: list[Window] = []

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def update(self, state: SweepState) -> None:
        """Draw the table anew."""
        if self._live:
            self._live.update(_drawn(state, self._recent), refresh=True)

    def finished(self, window: Window, state: SweepState) -> None:
        """Show a window that is done; in a terminal only one that is lost stays to be read."""
        if self._live is None:
            self.note(f"{_window(window)}  [{state}]")
        elif window.valid:
            self._recent = [*self._recent, window][-_RECENT:]
        else:
            self.note(_window(window))
        self.update(state)

    def note(self, text: str) -> None:
        """Print what a reader should know; in a terminal above the table."""
        if self._live:
            self._live.console.print(Text(text))
        else:
            say(text, self._stream)


def _drawn(state: SweepState, recent: Sequence[Window]) -> Group:
    """A row an engine, the last windows, how much is left."""
    engines = Table(box=None, pad_edge=False)
    for name in (*_LEFT, *_RIGHT):
        engines.add_column(name, justify="right" if name in _RIGHT else "left")
    for row in state.rows:
        engines.add_row(row.engine, row.pool, *_columns(row))
    windows = [Text(_window(window), style="dim", no_wrap=True, overflow="ellipsis") for window in recent]
    return Group(engines, *windows, Text(str(state), style="bold"))


def _columns(row: EngineRow) -> tuple[str, ...]:
    if row.gone:
        return (f"gone: {row.gone}",)
    if row.cell is None:
        return ("-",)
    at = row.progress
    if at is None:
        return (_cell(row.cell),)
    return (_cell(row.cell), at.phase, duration(at.left_s), f"{at.rate:,.0f}", f"{at.running}")


def _window(window: Window) -> str:
    """What a window came to, in one line."""
    what = f"{_cell(window.cell)} on {window.engine} ({window.cell.pool})"
    if not window.valid:
        return f"{what}: INVALID: {'; '.join(window.invalid)}"
    figures = [f"{window.rate:,.0f} tokens/s"]
    if window.speculation and window.speculation.length:
        figures.append(f"acceptance length {window.speculation.length:.2f}")
    if window.request_s:
        figures.append(f"{window.request_s.mean:.1f} s a request")
    return f"{what}: {', '.join([*figures, *window.flags])}"


def _cell(cell: SweepCell) -> str:
    return f"{cell.route}, {_load(cell)}"


def _load(cell: SweepCell) -> str:
    load = f"{cell.per_s:g} requests/s" if cell.per_s else f"{cell.load} at a time"
    return f"{load}, window {cell.repeat + 1}" if cell.repeat else load


def describe_plan(
    plan: SweepPlan, now: Setting, windows: Sequence[Window], due: Sequence[SweepCell]
) -> Iterator[str]:
    """Say what will be done, a line each.

    Args:
        plan: all of it.
        now: the setting of this run alone.
        windows: valid ones that there are already.
        due: cells to be measured, as far as they are known.
    """
    routes = ", ".join(plan.options.pools)
    yield f"sweep of {now.model}: {routes}; {', '.join(map(str, now.loads))} requests at a time on one engine"
    if now.simulated:
        yield f"SIMULATED engines (fit {now.simulated}): every figure below is simulated"
    for name, pool in now.pools.items():
        yield f"pool {name}: {_pool(pool)}"
        if above := [load for load in now.loads if load > pool.max_load]:
            left_out = ", ".join(map(str, above))
            yield f"note: pool {name} takes at most max_load {pool.max_load}; left out: {left_out}"
    if any(shape.rendered for shape in now.routes.values()):
        yield "note: the documents are drawn for a first try; measure your own with --images"
    expected = max(len(due), agenda.expected(now, plan.options) - len(windows)) if due else 0
    engines = {pool: sum(engine.pool == pool for engine in plan.engines) for pool in now.pools}
    share = expected / len(due) if due else 0.0
    seconds = share * agenda.remaining_s(due, engines, {pool: plan.our_cell_s(pool) for pool in engines})
    requests = share * sum(plan.cell_s * (cell.per_s or cell.load / _REQUEST_S) for cell in due)
    yield (
        f"{len(windows)} windows of {plan.timing.window_s:g} s done, about {expected} to go: "
        f"some {duration(seconds)}, some {requests:,.0f} requests"
    )


def _pool(pool: SweptPool) -> str:
    depth = f"depth {pool.depth}" if pool.depth else "ordinary decoding"
    own = ", which it schedules by batch size" if pool.ranges else ""
    return f"{depth}{own}; {counted(pool.engines, 'engine')}, version {pool.version}"


def describe_findings(results: Results, findings: Findings) -> Iterator[str]:
    """Say what was found: tokens per second by load and pool for each route, then what follows."""
    simulated = results.setting.simulated
    what = f"SIMULATED, fit {simulated}" if simulated else results.setting.gpu or "measured"
    for route, found in findings.routes.items():
        yield ""
        yield f"{route}: output tokens per second of one engine, by requests on it ({what})"
        yield from aligned(list(_rates(found)), right=True)
        yield from found.words
    yield ""
    yield from findings.words


def _rates(found: RouteFindings) -> Iterator[Sequence[str]]:
    """A row a load, a column a pool; a star marks the fastest."""
    rates = {pool: {point.load: point.rate for point in points} for pool, points in found.points.items()}
    yield "load", *rates
    for load in sorted({load for of in rates.values() for load in of}):
        best = max(of[load] for of in rates.values() if load in of)
        yield (
            str(load),
            *(
                f"{of[load]:,.0f} {'*' if of[load] == best else ' '}" if load in of else "-  "
                for of in rates.values()
            ),
        )


def describe_missing(
    due: Sequence[SweepCell], lost: Sequence[SweepCell], gone: Mapping[str, str]
) -> list[str]:
    """Say what is missing after a run: engines that were given up, cells without a valid window."""
    engines = [f"engine {name} was given up: {reason}" for name, reason in gone.items()]
    cells = [f"no valid window: {cell}" for cell in _together(lost)]
    never = [f"not measured: {cell}" for cell in _together(cell for cell in due if cell not in lost)]
    return [*engines, *cells, *never, "the same command tries them again"] if cells or never else []


def _together(cells: Iterable[SweepCell]) -> list[str]:
    """Name cells, those of a route and a pool in one line."""
    loads: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        loads.setdefault((cell.route, cell.pool), []).append(_load(cell))
    return [f"{route} on {pool}: {'; '.join(of)}" for (route, pool), of in loads.items()]
