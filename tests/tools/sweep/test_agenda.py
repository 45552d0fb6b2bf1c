from collections import Counter
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from gateway.model import Engine
from gateway.tools.sweep.agenda import Options, SweepPlan, due, expected, ordered, remaining_s
from gateway.tools.sweep.crossover import compare, decide
from gateway.tools.sweep.measure import Timing
from gateway.tools.sweep.sweep_values import DepthChange, Setting, SweepCell, SweptPool, Window
from tests.tools.sweep.synthetic import (
    FITS,
    LOADS,
    ROUTES,
    grid,
    setting,
    steps,
    swept,
    true_changes,
    wanted,
    window,
)

ONCE = Options(repeats_max=1)


def changes_of(known: Setting, windows: list[Window], route: str) -> tuple[DepthChange, ...]:
    found = compare(known.pools, windows, [route])
    assert found is not None
    return decide(found).changes


def test_the_grid_comes_route_by_route_with_rising_load_and_the_pools_side_by_side() -> None:
    known = setting((0, 3), routes=["text", "table"])
    cells = wanted(known, [], ONCE)
    assert cells[:4] == [
        SweepCell("text", "plain", 1),
        SweepCell("text", "mtp3", 1),
        SweepCell("text", "plain", 10),
        SweepCell("text", "mtp3", 10),
    ]
    assert [cell.route for cell in cells] == ["text"] * 18 + ["table"] * 18


def test_what_was_measured_is_not_asked_for_again() -> None:
    known = setting((0, 3), routes=["text"])
    cells = wanted(known, [], ONCE)
    left = wanted(known, [window(known, cell) for cell in cells[:5]], ONCE)
    assert left == cells[5:]
    assert wanted(known, [window(known, cell) for cell in cells], ONCE) == []


def test_a_route_has_cells_only_on_its_pools_and_up_to_what_their_engines_take() -> None:
    known = setting((0, 3), routes=["text"], small=SweptPool(1, max_load=32))
    cells = wanted(known, [], Options(pools={"text": ["plain", "small"]}))
    assert {cell.pool for cell in cells} == {"plain", "small"}
    assert max(cell.load for cell in cells if cell.pool == "small") == 32


def test_an_invalid_cell_is_asked_for_once_more_and_then_given_up() -> None:
    known = setting((0, 3), routes=["text"])
    lost = window(known, SweepCell("text", "plain", 10), invalid=("foreign traffic",))
    others = [one for one in grid(known) if one.cell != lost.cell]
    assert wanted(known, [*others, lost], ONCE) == [lost.cell]
    assert wanted(known, [*others, lost, lost], ONCE) == []


def test_a_repeat_that_is_given_up_ends_the_repeats_of_its_kind() -> None:
    known = setting((0, 3), routes=["table"])
    windows = grid(known, noise=0.1)
    lost = wanted(known, windows, Options())[0]
    windows += 2 * [window(known, lost, invalid=("preempted",))]
    assert all((cell.pool, cell.load) != (lost.pool, lost.load) for cell in wanted(known, windows, Options()))


def test_open_loops_come_after_the_grid_with_as_many_requests_as_an_engine_takes() -> None:
    known = setting((0,), routes=["text"])
    cells = wanted(known, grid(known)[:-1], Options(repeats_max=1, rates=(0.5, 2.0)))
    assert cells == [
        SweepCell("text", "plain", 256),
        SweepCell("text", "plain", 256, per_s=0.5),
        SweepCell("text", "plain", 256, per_s=2.0),
    ]


def test_repeats_wait_for_the_grid_and_are_near_the_crossover() -> None:
    known = setting((0, 3), routes=["table"])
    windows = grid(known, noise=0.02)
    assert all(cell.repeat == 0 for cell in wanted(known, windows[:-1], Options()))
    cells = wanted(known, windows, Options())
    assert {cell.repeat for cell in cells} == {1}
    assert {64, 80} <= {cell.load for cell in cells} <= {40, 64, 80, 128}
    assert {cell.pool for cell in cells} == {"plain", "mtp3"}


def test_a_single_pool_has_nothing_to_repeat() -> None:
    known = setting((3,), routes=["table"])
    assert wanted(known, grid(known), Options()) == []
    assert wanted(known, [], Options()) != []


def test_noise_is_looked_for_even_where_one_depth_wins_by_far() -> None:
    known = setting((0, 16), routes=["table"])
    windows = swept(known, Options(), noise=0.03)
    assert max(Counter((one.cell.pool, one.cell.load) for one in windows).values()) == 3


def test_never_more_windows_of_a_kind_than_allowed() -> None:
    """Depths 0 and 3 on text are within 4% of each other from 64 requests on."""
    known = setting((0, 3), routes=["text"])
    windows = swept(known, Options(repeats_max=3), noise=0.1)
    assert max(one.cell.repeat for one in windows) <= 2
    assert len(windows) == len({one.cell for one in windows})


def test_differences_too_small_to_matter_are_left_alone() -> None:
    known = setting((3,), routes=["text"], other=SweptPool(4))
    rng = np.random.default_rng(0)
    windows = [
        window(known, SweepCell("text", "mtp3", load, repeat), rng, 0.002)
        for load in LOADS
        for repeat in (0, 1)
    ]
    twins = [
        msgspec.structs.replace(one, cell=msgspec.structs.replace(one.cell, pool="other")) for one in windows
    ]
    assert wanted(known, windows + twins, Options()) == []


@pytest.mark.parametrize("fit", FITS)
def test_ten_percent_of_noise_gives_intervals_of_at_most_two_steps_that_hold_the_crossover(fit: str) -> None:
    held, narrow, counts = [], [], []
    for route in ROUTES:
        if (fit, route) == ("h100-9b", "text"):
            continue
        known = setting((0, 3), fit, [route])
        ((true, _, _),) = true_changes(fit, route, (3, 0))
        for seed in range(8):
            windows = swept(known, Options(), 0.1, seed)
            changes = changes_of(known, windows, route)
            assert [(one.before, one.after) for one in changes] == [("mtp3", "plain")]
            held.append(changes[0].low <= true <= changes[0].high)
            narrow.append(steps(changes[0].low, changes[0].high) <= 2)
            counts.append(len(windows))
    assert np.mean(held) >= 0.9
    assert np.mean(narrow) >= 0.95
    assert np.mean(counts) < 2.2 * 2 * len(LOADS)


def test_where_there_is_no_crossover_noise_makes_none_up() -> None:
    known = setting((0, 1), routes=["text"])
    none = [not changes_of(known, swept(known, Options(), 0.1, seed), "text") for seed in range(5)]
    assert sum(none) >= 4


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("route", ROUTES)
def test_bisection_finds_the_same_crossovers_with_fewer_cells(fit: str, route: str) -> None:
    known = setting((0, 3), fit, [route])
    quick, full = (swept(known, Options(quick=on, repeats_max=4), 0.001) for on in (True, False))
    found = [changes_of(known, windows, route) for windows in (quick, full)]
    assert [(one.before, one.after) for one in found[0]] == [(one.before, one.after) for one in found[1]]
    for one, other in zip(*found, strict=True):
        assert steps(one.load, other.load) <= 0.5
    assert len(quick) < len(full)


def test_bisection_takes_about_half_the_grid() -> None:
    """Text on the first fit has two crossovers with 4% between them and takes more."""
    counts = {}
    for fit in FITS:
        for route in ROUTES:
            known = setting((0, 3), fit, [route])
            counts[fit, route] = len(swept(known, Options(quick=True, repeats_max=1)))
    assert counts.pop(("h100-9b", "text")) <= 14
    assert set(counts.values()) == {10}


def test_bisection_does_not_measure_a_pool_where_it_cannot_win() -> None:
    known = setting((0, 3, 16), routes=["table"])
    loads = Counter(one.cell.pool for one in swept(known, Options(quick=True, repeats_max=1)))
    assert loads["mtp16"] == 3
    assert loads["plain"] == loads["mtp3"] == 5


def test_bisection_waits_where_nothing_can_be_compared() -> None:
    known = setting((0, 3), routes=["table"])
    lost = [window(known, cell, invalid=("died",)) for cell in wanted(known, [], Options(quick=True))]
    assert wanted(known, lost + lost, Options(quick=True)) == []


def test_a_grid_of_one_load_can_be_bisected() -> None:
    known = setting((0, 3), routes=["table"])
    assert len(swept(msgspec.structs.replace(known, loads=(32,)), Options(quick=True, repeats_max=1))) == 2


@pytest.mark.parametrize("quick", [False, True])
def test_the_estimate_is_what_a_clear_case_takes(quick: bool) -> None:
    known = setting((0, 3), routes=["table"])
    once, more = Options(quick=quick, repeats_max=1), Options(quick=quick)
    assert expected(known, once) == len(swept(known, once))
    assert expected(known, more) <= len(swept(known, more, 0.001)) <= expected(known, more) + 4
    assert expected(setting((0,)), Options(rates=(1.0,))) == 3 * (9 + 1)


BOTH = ("plain", "mtp3")
PLAN = SweepPlan(
    setting=msgspec.structs.replace(
        setting((0,), routes=["text", "table"], mtp3=SweptPool(3, max_load=32)), loads=(1, 10, 64)
    ),
    options=Options(repeats_max=1, pools={"text": BOTH, "table": BOTH}),
    engines=[
        Engine(name, f"http://{name}:1", pool, depth)
        for name, pool, depth in (("p1", "plain", 0), ("p2", "plain", 0), ("m1", "mtp3", 3))
    ],
    timing=Timing(window_s=120, max_warmup_s=300),
    patience_s=0,
)
GRID = [
    SweepCell(route, pool, load)
    for route in ("text", "table")
    for load in (1, 10, 64)
    for pool in BOTH
    if load <= PLAN.setting.pools[pool].max_load
]


def test_what_is_due_is_the_grid_up_to_each_pools_max_load() -> None:
    assert [*due(PLAN, (), "text"), *due(PLAN, (), "table")] == GRID


def test_repeats_wait_until_all_is_measured_once() -> None:
    repeat, first, opened = (
        SweepCell("text", "plain", 1, 1),
        SweepCell("table", "plain", 1),
        SweepCell("text", "plain", 9, 0, 2),
    )
    assert ordered([repeat, opened, first]) == [first, opened, repeat]


def test_a_pool_that_a_route_may_not_use_is_left_out() -> None:
    plan = replace(PLAN, options=Options(pools={"table": ("mtp3",)}, rates=(2.5,)))
    assert due(plan, (), "table") == [
        SweepCell("table", "mtp3", 1),
        SweepCell("table", "mtp3", 10),
        SweepCell("table", "mtp3", 32, per_s=2.5),
    ]


def test_a_pool_without_engines_waits_for_a_later_run() -> None:
    """With one GPU the pools are measured one after the other, into the same folder."""
    earlier = [window(PLAN.setting, cell) for cell in GRID if cell.pool == "plain"]
    assert due(replace(PLAN, engines=PLAN.engines[2:]), earlier, "text") == [
        SweepCell("text", "mtp3", 1),
        SweepCell("text", "mtp3", 10),
    ]


def test_time_left_is_that_of_the_slowest_pool() -> None:
    engines, seconds = {"plain": 2, "mtp3": 1, "idle": 1}, {"plain": 100.0, "mtp3": 120.0, "idle": 1.0}
    assert remaining_s(GRID, engines, seconds) == 480  # four cells on one engine; six on two take 300 s
    assert remaining_s([], engines, seconds) == 0


def test_an_unmeasured_cell_is_guessed_by_its_window_and_the_engines_clock() -> None:
    assert PLAN.our_cell_s("plain") == PLAN.cell_s == 120 + 60 + 30
    assert replace(PLAN, scales={"p1": 10, "p2": 10}).our_cell_s("plain") == 21
    assert replace(PLAN, timing=Timing(120, 20)).our_cell_s("gone") == 120 + 20 + 30
