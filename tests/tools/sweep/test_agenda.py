from collections import Counter

import numpy as np
import pytest

from gateway.tools.sweep.agenda import Options, expected, next_cells
from gateway.tools.sweep.crossover import contest, decide
from gateway.tools.sweep.sweep_values import Cell, Change, Pool, Setting, Window
from tests.tools.sweep.known import FITS, LOADS, ROUTES, grid, setting, steps, swept, true_changes, window

ONCE = Options(repeats_max=1)


def changes_of(known: Setting, windows: list[Window], route: str) -> tuple[Change, ...]:
    found = contest(known.pools, windows, [route])
    assert found is not None
    return decide(found).changes


def test_the_grid_comes_route_by_route_with_rising_load_and_the_pools_side_by_side() -> None:
    known = setting((0, 3), routes=["text", "table"])

    cells = next_cells(known, [], ONCE)

    assert cells[:4] == [
        Cell("text", "plain", 1),
        Cell("text", "mtp3", 1),
        Cell("text", "plain", 10),
        Cell("text", "mtp3", 10),
    ]
    assert [cell.route for cell in cells] == ["text"] * 18 + ["table"] * 18


def test_what_was_measured_is_not_asked_for_again() -> None:
    known = setting((0, 3), routes=["text"])
    cells = next_cells(known, [], ONCE)

    left = next_cells(known, [window(known, cell) for cell in cells[:5]], ONCE)

    assert left == cells[5:]
    assert next_cells(known, [window(known, cell) for cell in cells], ONCE) == []


def test_a_route_has_cells_only_on_its_pools_and_up_to_what_their_engines_take() -> None:
    known = setting((0, 3), routes=["text"], small=Pool(1, max_load=32))

    cells = next_cells(known, [], Options(pools={"text": ["plain", "small"]}))

    assert {cell.pool for cell in cells} == {"plain", "small"}
    assert max(cell.load for cell in cells if cell.pool == "small") == 32


def test_an_invalid_cell_is_asked_for_once_more_and_then_given_up() -> None:
    known = setting((0, 3), routes=["text"])
    lost = window(known, Cell("text", "plain", 10), invalid=("foreign traffic",))
    others = [one for one in grid(known) if one.cell != lost.cell]

    assert next_cells(known, [*others, lost], ONCE) == [lost.cell]
    assert next_cells(known, [*others, lost, lost], ONCE) == []


def test_a_repeat_that_is_given_up_ends_the_repeats_of_its_kind() -> None:
    known = setting((0, 3), routes=["table"])
    windows = grid(known, noise=0.1)
    lost = next_cells(known, windows, Options())[0]
    windows += 2 * [window(known, lost, invalid=("preempted",))]

    assert all(
        (cell.pool, cell.load) != (lost.pool, lost.load) for cell in next_cells(known, windows, Options())
    )


def test_open_loops_come_after_the_grid_with_as_many_requests_as_an_engine_takes() -> None:
    known = setting((0,), routes=["text"])

    cells = next_cells(known, grid(known)[:-1], Options(repeats_max=1, rates=(0.5, 2.0)))

    assert cells == [
        Cell("text", "plain", 256),
        Cell("text", "plain", 256, per_s=0.5),
        Cell("text", "plain", 256, per_s=2.0),
    ]


def test_repeats_wait_for_the_grid_and_are_near_the_crossover() -> None:
    known = setting((0, 3), routes=["table"])
    windows = grid(known, noise=0.02)

    assert all(cell.repeat == 0 for cell in next_cells(known, windows[:-1], Options()))
    cells = next_cells(known, windows, Options())

    assert {cell.repeat for cell in cells} == {1}
    assert {64, 80} <= {cell.load for cell in cells} <= {40, 64, 80, 128}
    assert {cell.pool for cell in cells} == {"plain", "mtp3"}


def test_a_single_pool_has_nothing_to_repeat() -> None:
    known = setting((3,), routes=["table"])

    assert next_cells(known, grid(known), Options()) == []
    assert next_cells(known, [], Options()) != []


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
    known = setting((3,), routes=["text"], other=Pool(4))
    rng = np.random.default_rng(0)
    windows = [
        window(known, Cell("text", "mtp3", load, repeat), rng, 0.002) for load in LOADS for repeat in (0, 1)
    ]
    twins = [
        Window(
            cell=Cell("text", "other", one.cell.load, one.cell.repeat),
            engine="o",
            started="",
            seconds=120,
            rate=one.rate,
        )
        for one in windows
    ]

    assert next_cells(known, windows + twins, Options()) == []


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
    lost = [window(known, cell, invalid=("died",)) for cell in next_cells(known, [], Options(quick=True))]

    assert next_cells(known, lost + lost, Options(quick=True)) == []


def test_a_grid_of_one_load_can_be_bisected() -> None:
    known = setting((0, 3), routes=["table"])
    one = Setting(**{name: getattr(known, name) for name in known.__struct_fields__} | {"loads": (32,)})

    assert len(swept(one, Options(quick=True, repeats_max=1))) == 2


@pytest.mark.parametrize("quick", [False, True])
def test_the_estimate_is_what_a_clear_case_takes(quick: bool) -> None:
    known = setting((0, 3), routes=["table"])
    once, more = Options(quick=quick, repeats_max=1), Options(quick=quick)

    assert expected(known, once) == len(swept(known, once))
    assert expected(known, more) <= len(swept(known, more, 0.001)) <= expected(known, more) + 4
    assert expected(setting((0,)), Options(rates=(1.0,))) == 3 * (9 + 1)
