import numpy as np
import pytest

from gateway.tools.sweep.crossover import LAST, DepthSchedule, compare, decide
from gateway.tools.sweep.sweep_values import Setting, SweepCell, SweptPool, Window
from tests.tools.sweep.synthetic import FITS, LOADS, ROUTES, grid, setting, steps, true_changes, window


def outcome_of(known: Setting, windows: list[Window], route: str) -> DepthSchedule:
    found = compare(known.pools, windows, [route])
    assert found is not None
    return decide(found)


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("depths", [(0, 3), (0, 1), (0, 1, 3), (0, 2, 16)])
def test_exact_windows_show_each_crossover_within_a_step_and_no_other(
    fit: str, route: str, depths: tuple[int, ...]
) -> None:
    known = setting(depths, fit, [route])
    found = outcome_of(known, grid(known, repeats=2), route)
    true = true_changes(fit, route, depths)
    depth = {name: pool.depth for name, pool in known.pools.items()}
    pairs = [(depth[one.before], depth[one.after]) for one in found.changes]
    assert pairs == [(before, after) for _, before, after in true]
    for change, (load, _, _) in zip(found.changes, true, strict=True):
        assert steps(change.load, load) <= 1
        assert change.low <= change.load <= change.high
        assert change.certain


@pytest.mark.parametrize(("depth", "winner"), [(1, "mtp1"), (2, "mtp2"), (16, "plain")])
def test_where_one_depth_wins_everywhere_there_is_one_range_over_all_loads(depth: int, winner: str) -> None:
    known = setting((0, depth), routes=["text"])
    found = outcome_of(known, grid(known, repeats=2), "text")
    assert found.changes == ()
    (entry,) = found.ranges
    assert (entry.first, entry.last, entry.pool) == (1, LAST, winner)
    assert 0 < entry.low <= entry.margin <= entry.high


def test_ranges_cover_all_loads_and_say_by_how_much_they_win() -> None:
    known = setting((0, 3), routes=["table"])
    first, second = outcome_of(known, grid(known, repeats=3, noise=0.03), "table").ranges
    assert (first.first, second.first, second.last) == (1, first.last + 1, LAST)
    assert (first.depth, first.runner_up, second.depth, second.runner_up) == (3, "plain", 0, "mtp3")
    assert first.low > 0
    assert second.low > 0
    # Two thirds of the way from 73% at 1 to nothing at 76, by the logarithm of the load.
    assert first.margin == pytest.approx(0.8, abs=0.15)


def test_a_win_inside_the_noise_makes_no_range() -> None:
    """Depth 3 loses 2 to 4% from 73 to 220 on text: with a noise of 10% nobody can know."""
    known = setting((0, 3), routes=["text"])
    found = [outcome_of(known, grid(known, 2, 0.1, seed), "text") for seed in range(20)]
    assert sum(not one.changes for one in found) >= 18


def test_between_two_depths_that_beat_it_a_third_gets_no_range_though_it_is_undecided_which_wins() -> None:
    """At 40 depth 1 and ordinary decoding are close, and depth 3 is far behind both."""
    known = setting((0, 1, 3), "slow-verify", ["key-value"])
    for seed in range(5):
        for entry in outcome_of(known, grid(known, 2, 0.1, seed), "key-value").ranges:
            assert not (entry.depth == 3 and entry.last >= 64)


def test_without_repeats_nothing_is_certain() -> None:
    known = setting((0, 3), routes=["table"])
    (change,) = outcome_of(known, grid(known), "table").changes
    assert steps(change.load, 76) <= 1
    assert not change.certain


def test_a_pool_that_was_measured_at_one_load_only_is_not_compared() -> None:
    """Deep drafts tried at a single concurrency say nothing of the others."""
    known = setting((0, 2, 3), routes=["table"])
    windows = [one for one in grid(known, 2) if one.cell.pool != "mtp2" or one.cell.load == 32]
    found = compare(known.pools, windows, ["table"])
    assert found is not None
    assert found.pools == ("mtp3", "plain")


def test_pools_are_compared_where_all_of_them_were_measured() -> None:
    known = setting((0, 3), routes=["table"])
    windows = [one for one in grid(known, 2) if one.cell.pool != "mtp3" or one.cell.load <= 128]
    found = compare(known.pools, windows, ["table"])
    assert found is not None
    assert found.measured == LOADS[:-1]
    assert decide(found).ranges[-1].last == LAST


def test_nothing_measured_or_nothing_in_common_cannot_be_compared() -> None:
    known = setting((0, 3), routes=["table"])
    apart = [window(known, SweepCell("table", "plain", 1)), window(known, SweepCell("table", "mtp3", 256))]
    assert compare(known.pools, [], ["table"]) is None
    assert compare(known.pools, [], []) is None
    assert compare(known.pools, apart, ["table"]) is None


def test_an_engine_that_schedules_its_own_depth_wins_with_the_depth_it_has_at_a_load() -> None:
    ranges = ((1, 75, 3), (76, 4096, 0))
    known = setting((1,), routes=["table"], auto=SweptPool(3, ranges=ranges))
    found = outcome_of(known, grid(known, repeats=2), "table")
    assert {one.depth for one in found.ranges} == {3, 1, 0}
    assert found.ranges[0].pool == found.ranges[-1].pool == "auto"


def test_a_lone_engine_with_a_schedule_of_its_own_changes_where_it_says() -> None:
    ranges = ((1, 64, 3), (65, 4096, 0))
    known = setting((), routes=["table"], auto=SweptPool(3, ranges=ranges))
    found = outcome_of(known, grid(known, repeats=2), "table")
    (change,) = found.changes
    assert (change.before, change.after) == ("auto", "auto")
    assert steps(change.load, 65) <= 1
    assert [one.runner_up for one in found.ranges] == ["", ""]


def test_several_routes_are_compared_by_their_geometric_mean() -> None:
    known = setting((0, 3))
    windows = grid(known, repeats=2)
    together = compare(known.pools, windows, list(ROUTES))
    alone = [compare(known.pools, windows, [route]) for route in ROUTES]
    assert together is not None
    mean = np.mean([one.mean for one in alone if one], axis=0)
    assert np.allclose(together.mean, mean)
    (change,) = decide(together).changes
    assert 64 <= change.load <= 80


def test_the_same_seed_gives_the_same_interval() -> None:
    known = setting((0, 3), routes=["table"])
    windows = grid(known, repeats=2, noise=0.1)
    assert outcome_of(known, windows, "table") == outcome_of(known, windows, "table")
