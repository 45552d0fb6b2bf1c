from __future__ import annotations

import io
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace as changed

from gateway.model import Engine, Speculation
from gateway.tools.sweep.agenda import Options, SweepPlan, due
from gateway.tools.sweep.measure import CellPhase, CellProgress, Timing
from gateway.tools.sweep.sweep_terminal import (
    EngineRow,
    SweepDisplay,
    SweepState,
    describe_findings,
    describe_missing,
    describe_plan,
)
from gateway.tools.sweep.sweep_values import Spread, SweepCell, Window
from tests.tools.support import Terminal
from tests.tools.sweep.synthetic import findings, sweep

if TYPE_CHECKING:
    from gateway.tools.sweep.sweep_values import Setting

CELL = SweepCell("text", "mtp3", 32)
ROWS = (
    EngineRow("gpu-1:8000", "mtp3", CELL, CellProgress(CellPhase.WINDOW, 75.2, 2345.6, 33)),
    EngineRow("gpu-2:8000", "plain", SweepCell("table", "plain", 256, 1)),
    EngineRow("gpu-3:8000", "plain"),
    EngineRow("gpu-4:8000", "plain", gone="its /health does not answer"),
)
STATE = SweepState(ROWS, done=12, due=68, invalid=1, left_s=8000, simulated="h100-9b")
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
    cell=SweepCell("text", "plain", 256, per_s=2.5),
    engine="gpu-2:8000",
    started="",
    seconds=0,
    invalid=("1 request failed",),
)
NOTE = "[a note] of its own: pool plain has no engines left"
RESULTS = sweep(depths=(0, 3), routes=("text", "table"))
SETTING = RESULTS.setting
BOTH = ("plain", "mtp3")
PLAN = SweepPlan(
    setting=SETTING,
    options=Options(repeats_max=1, pools={"text": BOTH, "table": BOTH}),
    engines=[Engine("a", "http://a:1", "plain", 0), Engine("b", "http://b:1", "mtp3", 3)],
    timing=Timing(120, 300),
)


@pytest.mark.parametrize(("stream", "term"), [(io.StringIO(), "xterm"), (Terminal(), "dumb")])
def test_a_pipe_or_a_terminal_that_can_draw_nothing_gets_a_line_for_each_window(
    stream: io.StringIO, term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    with SweepDisplay(stream) as display:
        display.update(STATE)
        display.finished(WINDOW, STATE)
        display.finished(LOST, STATE)
        display.note(NOTE)
    left = "[12 windows done, 1 invalid, 68 to go, 2 h 13 min left; SIMULATED engines, fit h100-9b]"
    assert stream.getvalue().splitlines() == [
        "text, 32 at a time on gpu-1:8000 (mtp3): 2,346 tokens/s, acceptance length 3.10, 3.2 s a request, "
        f"3 preemptions  {left}",
        f"text, 2.5 requests/s on gpu-2:8000 (plain): INVALID: 1 request failed  {left}",
        NOTE,
    ]


def test_a_terminal_gets_a_table_with_a_row_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    stream = Terminal()
    with SweepDisplay(stream) as display:
        display.finished(WINDOW, STATE)
        display.finished(LOST, STATE)
        display.note(NOTE)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    rows = {line.split()[0]: " ".join(line.split()) for line in shown.splitlines() if line.startswith("gpu-")}
    assert rows["gpu-1:8000"] == "gpu-1:8000 mtp3 text, 32 at a time window 75 s 2,346 33"
    assert rows["gpu-2:8000"] == "gpu-2:8000 plain table, 256 at a time, window 2"
    assert rows["gpu-3:8000"] == "gpu-3:8000 plain -"
    for words in (
        "gone: its /health does not answer",
        "text, 32 at a time on gpu-1:8000 (mtp3): 2,346 tokens/s",
        "INVALID: 1 request failed",
        NOTE,
        "68 to go, 2 h 13 min left; SIMULATED engines, fit h100-9b",
    ):
        assert words in shown


def test_a_reader_that_is_gone_ends_nothing() -> None:
    reading, writing = os.pipe()
    with open(writing, "w") as stream, SweepDisplay(stream) as display:
        os.close(reading)
        display.note(NOTE)
        display.finished(WINDOW, STATE)
        print("what comes later", file=stream)


def planned(setting: Setting = SETTING, *, done: bool = False) -> list[str]:
    plan = replace(PLAN, setting=setting)
    cells = [] if done else [cell for route in setting.routes for cell in due(plan, (), route)]
    return list(describe_plan(plan, setting, RESULTS.windows if done else (), cells))


def test_before_anything_is_sent_it_is_said_what_will_be_done() -> None:
    lines = planned()
    assert lines[0].startswith("sweep of glm-ocr: text, table; 1, 10, 24, 32, 40, 64, 80, 128, 256 requests")
    assert "SIMULATED engines (fit h100-9b)" in lines[1]
    assert "pool mtp3: depth 3; 1 engine, version simulated" in lines
    assert "drawn for a first try" in lines[-2]
    # 18 cells of each pool, side by side, of some 210 s.
    assert lines[-1].startswith("0 windows of 120 s done, about 36 to go: some 63 min, some ")
    assert planned(done=True)[-1] == ("36 windows of 120 s done, about 0 to go: some 0 s, some 0 requests")


def test_cells_that_a_pool_may_not_have_are_named() -> None:
    pool = changed(SETTING.pools["mtp3"], max_load=64, ranges=((1, 16, 3), (17, 64, 0)))
    lines = planned(changed(SETTING, pools={**SETTING.pools, "mtp3": pool}, simulated=""))
    assert "note: pool mtp3 takes at most max_load 64; left out: 80, 128, 256" in lines
    assert "pool mtp3: depth 3, which it schedules by batch size; 1 engine, version simulated" in lines
    assert "SIMULATED" not in "\n".join(lines)


def test_what_was_found_is_a_table_a_route_and_its_words() -> None:
    windows = tuple(w for w in RESULTS.windows if w.cell != SweepCell("text", "mtp3", 1))
    results = changed(RESULTS, windows=windows)
    concluded = findings(results)
    lines = list(describe_findings(results, concluded))
    head = "text: output tokens per second of one engine, by requests on it (SIMULATED, fit h100-9b)"
    at = lines.index(head)
    assert lines[at + 1].split() == ["load", "plain", "mtp3"]
    assert lines[at + 2].split()[-1] == "-"
    best = {line.split()[0]: "mtp3" if line.endswith("*") else "plain" for line in lines[at + 3 : at + 11]}
    assert (best["10"], best["80"]) == ("mtp3", "plain")
    assert lines[at + 11] == concluded.routes["text"].words[0]
    assert lines[-1] == concluded.words[-1]


@pytest.mark.parametrize(("gpu", "said"), [("1x H100", "(1x H100)"), ("", "(measured)")])
def test_real_figures_are_those_of_the_gpu_that_the_operator_named(gpu: str, said: str) -> None:
    real = sweep(depths=(0, 3), routes=("text",), simulated="")
    named = changed(real, setting=changed(real.setting, gpu=gpu))
    assert said in list(describe_findings(named, findings(real)))[1]


def test_what_is_missing_is_named_with_the_engine_that_failed() -> None:
    lost, never = SweepCell("text", "mtp3", 10), SweepCell("table", "mtp3", 1, per_s=2)
    gone = {"b": "its /health does not answer 200"}
    assert describe_missing([], [], {}) == []
    assert describe_missing([], [], gone) == []
    missing = [lost, never, SweepCell("table", "mtp3", 32), SweepCell("table", "mtp3", 64, 1)]
    assert describe_missing(missing, [lost], gone) == [
        "engine b was given up: its /health does not answer 200",
        "no valid window: text on mtp3: 10 at a time",
        "not measured: table on mtp3: 2 requests/s; 32 at a time; 64 at a time, window 2",
        "the same command tries them again",
    ]
