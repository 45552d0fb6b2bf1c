"""What a sweep shows while it runs: a live table in a terminal, else a line for each window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gateway.tools.output import nobody_reads

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self, TextIO

    from rich.console import JustifyMethod

    from gateway.tools.sweep.measure import Progress
    from gateway.tools.sweep.sweep_values import Cell, Window

_RECENT = 5
_COLUMNS: dict[str, JustifyMethod] = {
    "engine": "left",
    "pool": "left",
    "cell": "left",
    "phase": "left",
    "left": "right",
    "tokens/s": "right",
    "running": "right",
}


@dataclass(frozen=True, slots=True)
class Row:
    """What one engine does: a cell and where that is, or nothing; `gone` says why it takes no more."""

    engine: str
    pool: str
    cell: Cell | None = None
    progress: Progress | None = None
    gone: str = ""


@dataclass(frozen=True, slots=True)
class Board:
    """A sweep at a moment.

    Attributes:
        rows: by engine.
        done: valid windows, earlier runs' too.
        due: cells to come, as far as they are known, those under way among them.
        invalid: lost windows of this run.
        left_s: our seconds until the last of them is done, estimated.
        simulated: the fit; empty where the engines are real.
    """

    rows: tuple[Row, ...]
    done: int
    due: int
    invalid: int
    left_s: float
    simulated: str = ""


class Show(Protocol):
    """Where a sweep tells what it does; a context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def update(self, board: Board) -> None:
        """Something has gone on."""

    def finished(self, window: Window, board: Board) -> None:
        """A window is done."""

    def note(self, text: str) -> None:
        """Something that a reader should know has happened."""


class Lines:
    """A line for each window, for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, board: Board) -> None:
        """Nothing: only what is done is a line."""

    def finished(self, window: Window, board: Board) -> None:
        """Print the window."""
        self.note(f"{line(window)}  [{summary(board)}]")

    def note(self, text: str) -> None:
        """Print it."""
        say(text, self._stream)


class Screen:
    """A live table, with the notes and lost windows above it."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, redirect_stderr=False)
        self._recent: list[Window] = []

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, board: Board) -> None:
        """Draw it anew."""
        self._live.update(table(board, self._recent), refresh=True)

    def finished(self, window: Window, board: Board) -> None:
        """Add the window to the last ones; one that is lost stays to be read."""
        if window.valid:
            self._recent = [*self._recent, window][-_RECENT:]
        else:
            self.note(line(window))
        self.update(board)

    def note(self, text: str) -> None:
        """Print it above the table."""
        self._live.console.print(Text(text))


def show(stream: TextIO) -> Show:
    """Return the live table where the stream is a terminal that can draw one, else lines."""
    console = Console(file=stream)
    return Screen(console) if stream.isatty() and not console.is_dumb_terminal else Lines(stream)


def say(text: str, stream: TextIO) -> None:
    """Print a text; where nobody reads any more (`| head`), nothing: hours of measuring are worth more."""
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        nobody_reads(stream)


def table(board: Board, recent: Sequence[Window]) -> Group:
    """Draw a sweep: a row an engine, the last windows, how much is left."""
    engines = Table(box=None, pad_edge=False)
    for name, justify in _COLUMNS.items():
        engines.add_column(name, justify=justify)
    for row in board.rows:
        engines.add_row(row.engine, row.pool, *_cells(row))
    windows = [Text(line(window), style="dim", no_wrap=True, overflow="ellipsis") for window in recent]
    return Group(engines, *windows, Text(summary(board), style="bold"))


def _cells(row: Row) -> tuple[str, ...]:
    if row.gone:
        return (f"gone: {row.gone}",)
    if row.cell is None:
        return ("-",)
    at = row.progress
    if at is None:
        return (described(row.cell),)
    return (described(row.cell), at.phase, clock(at.left_s), f"{at.rate:,.0f}", f"{at.running}")


def summary(board: Board) -> str:
    """Return how much is done and left, in words."""
    lost = f", {board.invalid} invalid" if board.invalid else ""
    simulated = f"; SIMULATED engines, fit {board.simulated}" if board.simulated else ""
    done = f"{board.done} window{'s' * (board.done != 1)} done"
    return f"{done}{lost}, {board.due} to go, {clock(board.left_s)} left{simulated}"


def line(window: Window) -> str:
    """Return what a window came to, in one line."""
    what = f"{described(window.cell)} on {window.engine} ({window.cell.pool})"
    if not window.valid:
        return f"{what}: INVALID: {'; '.join(window.invalid)}"
    told = [f"{window.rate:,.0f} tokens/s"]
    if window.speculation and window.speculation.length:
        told.append(f"acceptance length {window.speculation.length:.2f}")
    if window.request_s:
        told.append(f"{window.request_s.mean:.1f} s a request")
    return f"{what}: {', '.join([*told, *window.flags])}"


def described(cell: Cell) -> str:
    """Return a cell in words, its pool left out."""
    load = f"{cell.per_s:g} requests/s" if cell.per_s else f"{cell.load} at a time"
    again = f", window {cell.repeat + 1}" if cell.repeat else ""
    return f"{cell.route}, {load}{again}"


def clock(seconds: float) -> str:
    """Return a duration as people read it: `45 s`, `12 min`, `3 h 05 min`."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02} min"
