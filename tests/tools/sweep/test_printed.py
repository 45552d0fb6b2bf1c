from __future__ import annotations

from dataclasses import replace

import msgspec

from gateway.model import Engine
from gateway.tools.sweep import agenda
from gateway.tools.sweep.measure import Timing
from gateway.tools.sweep.printed import found, missing, plan
from gateway.tools.sweep.run import Work, due
from gateway.tools.sweep.sweep_values import Cell
from tests.tools.sweep.synthetic import findings, sweep

RESULTS = sweep(depths=(0, 3), routes=("text", "table"))
SETTING = RESULTS.setting
WORK = Work(
    setting=SETTING,
    options=agenda.Options(repeats_max=1, pools={"text": ("plain", "mtp3"), "table": ("plain", "mtp3")}),
    engines=[Engine("a", "http://a:1", "plain", 0), Engine("b", "http://b:1", "mtp3", 3)],
    timing=Timing(120, 300),
)
DUE = [*due(WORK, (), "text"), *due(WORK, (), "table")]


def test_before_anything_is_sent_it_is_said_what_will_be_done() -> None:
    lines = list(plan(WORK, SETTING, (), DUE))

    assert lines[0].startswith("sweep of glm-ocr: text, table; 1, 10, 24, 32, 40, 64, 80, 128, 256 requests")
    assert "SIMULATED engines (fit h100-9b)" in lines[1]
    assert "pool mtp3: depth 3; 1 engine, version simulated" in lines
    assert "drawn for a first try" in lines[-2]
    # 18 cells of each pool, side by side, of some 210 s.
    assert lines[-1].startswith("0 windows of 120 s done, about 36 to go: some 63 min, some ")


def test_cells_that_a_pool_may_not_have_are_named() -> None:
    pool = msgspec.structs.replace(SETTING.pools["mtp3"], max_load=64, ranges=((1, 16, 3), (17, 64, 0)))
    setting = msgspec.structs.replace(SETTING, pools={**SETTING.pools, "mtp3": pool}, simulated="")
    work = replace(WORK, setting=setting)

    lines = list(plan(work, setting, (), due(work, (), "text")))

    assert "note: pool mtp3 takes at most max_load 64; left out: 80, 128, 256" in lines
    assert "pool mtp3: depth 3, which it schedules by batch size; 1 engine, version simulated" in lines
    assert "SIMULATED" not in "\n".join(lines)


def test_nothing_is_left_to_do() -> None:
    assert list(plan(WORK, SETTING, RESULTS.windows, []))[-1] == (
        "36 windows of 120 s done, about 0 to go: some 0 s, some 0 requests"
    )


def test_what_was_found_is_a_table_a_route_and_its_words() -> None:
    results = msgspec.structs.replace(
        RESULTS, windows=tuple(w for w in RESULTS.windows if w.cell != Cell("text", "mtp3", 1))
    )
    concluded = findings(results)

    lines = list(found(results, concluded))

    at = lines.index(
        "text: output tokens per second of one engine, by requests on it (SIMULATED, fit h100-9b)"
    )
    assert lines[at + 1].split() == ["load", "plain", "mtp3"]
    assert lines[at + 2].split()[-1] == "-"
    best = {line.split()[0]: "mtp3" if line.endswith("*") else "plain" for line in lines[at + 3 : at + 11]}
    assert (best["10"], best["80"]) == ("mtp3", "plain")
    assert lines[at + 11] == concluded.routes["text"].words[0]
    assert lines[-1] == concluded.words[-1]


def test_real_figures_are_those_of_the_gpu_that_the_operator_named() -> None:
    real = sweep(depths=(0, 3), routes=("text",), simulated="")

    assert "(1x H100)" in list(found(real, findings(real)))[1]
    unnamed = msgspec.structs.replace(real, setting=msgspec.structs.replace(real.setting, gpu=""))
    assert "(measured)" in list(found(unnamed, findings(real)))[1]


def test_what_is_missing_is_named_with_the_engine_that_failed() -> None:
    lost, never = Cell("text", "mtp3", 10), Cell("table", "mtp3", 1, per_s=2)

    assert missing([], [], {}) == []
    assert missing([], [], {"b": "its /health does not answer 200"}) == []
    due = [lost, never, Cell("table", "mtp3", 32), Cell("table", "mtp3", 64, 1)]
    assert missing(due, [lost], {"b": "its /health does not answer 200"}) == [
        "engine b was given up: its /health does not answer 200",
        "no valid window: text on mtp3: 10 at a time",
        "not measured: table on mtp3: 2 requests/s; 32 at a time; 64 at a time, window 2",
        "the same command tries them again",
    ]
