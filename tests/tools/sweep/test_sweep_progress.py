import io
import os

import pytest
from rich.console import Console

from gateway.model import Speculation
from gateway.tools.sweep.measure import Phase, Progress
from gateway.tools.sweep.sweep_progress import Board, Lines, Row, Screen, clock, show
from gateway.tools.sweep.sweep_values import Cell, Spread, Window

CELL = Cell("text", "mtp3", 32)
ROWS = (
    Row("gpu-1:8000", "mtp3", CELL, Progress(Phase.WINDOW, 75.2, 2345.6, 33)),
    Row("gpu-2:8000", "plain", Cell("table", "plain", 256, 1)),
    Row("gpu-3:8000", "plain"),
    Row("gpu-4:8000", "plain", gone="its /health does not answer"),
)
BOARD = Board(ROWS, done=12, due=68, invalid=1, left_s=8000, simulated="h100-9b")
WINDOW = Window(
    cell=CELL,
    engine="gpu-1:8000",
    started="2026-01-02T03:04:05Z",
    seconds=120,
    rate=2345.6,
    request_s=Spread(3.21, 3, 5, 6),
    speculation=Speculation(100, 210),
    flags=("3 preemptions",),
)
LOST = Window(
    cell=Cell("text", "plain", 256, per_s=2.5),
    engine="gpu-2:8000",
    started="",
    seconds=0,
    invalid=("1 request failed",),
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_a_line_for_each_window() -> None:
    stream = io.StringIO()
    with show(stream) as shown:
        assert isinstance(shown, Lines)
        shown.update(BOARD)
        shown.finished(WINDOW, BOARD)
        shown.finished(LOST, BOARD)
        shown.note("pool plain has no engines left")

    left = "[12 windows done, 1 invalid, 68 to go, 2 h 13 min left; SIMULATED engines, fit h100-9b]"
    assert stream.getvalue().splitlines() == [
        "text, 32 at a time on gpu-1:8000 (mtp3): 2,346 tokens/s, acceptance length 3.10, 3.2 s a request, "
        f"3 preemptions  {left}",
        f"text, 2.5 requests/s on gpu-2:8000 (plain): INVALID: 1 request failed  {left}",
        "pool plain has no engines left",
    ]


def test_a_terminal_gets_a_table_with_a_row_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(show(Terminal()), Screen)
    stream = io.StringIO()
    with Screen(Console(file=stream, width=200)) as shown:
        shown.finished(WINDOW, BOARD)
        shown.finished(LOST, BOARD)
        shown.note("[a note] of its own")

    told = stream.getvalue()
    rows = {line.split()[0]: " ".join(line.split()) for line in told.splitlines() if line.startswith("gpu-")}
    assert rows["gpu-1:8000"] == "gpu-1:8000 mtp3 text, 32 at a time window 75 s 2,346 33"
    assert rows["gpu-2:8000"] == "gpu-2:8000 plain table, 256 at a time, window 2"
    assert rows["gpu-3:8000"] == "gpu-3:8000 plain -"
    assert "gone: its /health does not answer" in told
    assert "text, 32 at a time on gpu-1:8000 (mtp3): 2,346 tokens/s" in told
    assert "INVALID: 1 request failed" in told
    assert "[a note] of its own" in told
    assert "68 to go, 2 h 13 min left; SIMULATED engines, fit h100-9b" in told


def test_a_terminal_that_can_draw_nothing_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(show(Terminal()), Lines)


def test_a_reader_that_is_gone_ends_nothing() -> None:
    reading, writing = os.pipe()
    with open(writing, "w") as stream, show(stream) as shown:
        os.close(reading)
        shown.note("pool plain has no engines left")
        shown.finished(WINDOW, BOARD)
        print("what comes later", file=stream)


@pytest.mark.parametrize(
    ("seconds", "told"), [(0.4, "0 s"), (99, "99 s"), (100, "2 min"), (5940, "99 min"), (11100, "3 h 05 min")]
)
def test_durations_are_rounded_to_what_matters(seconds: float, told: str) -> None:
    assert clock(seconds) == told
