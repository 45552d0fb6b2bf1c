import pytest
from msgspec.structs import replace

from gateway.policy.account.acceptance import added
from gateway.tools.sweep.summary import RouteSummary, by_depth, routes
from gateway.tools.sweep.sweep_values import Results, SweepCell, SweptPool, Window
from tests.tools.sweep.synthetic import findings, small, with_pools, with_windows


def summary(results: Results) -> RouteSummary:
    return RouteSummary(results, findings(results), "table")


def test_pools_stand_by_depth_with_those_that_schedule_themselves_last() -> None:
    results = with_pools(
        small(depths=(3, 0, 16), loads=(1,)), own=SweptPool(1, ranges=((1, 63, 1), (64, 512, 0)))
    )
    pools = results.setting.pools
    assert by_depth(results, pools) == ("plain", "mtp3", "mtp16", "own")
    labels = {pool: summary(results).label(pool) for pool in ("plain", "mtp3", "own")}
    assert labels == {"plain": "depth 0", "mtp3": "depth 3", "own": "own (schedules itself)"}
    assert [summary(results).place(pool) for pool in pools] == [1, 0, 2, 3]


def test_pools_of_one_depth_are_told_apart_by_name() -> None:
    results = with_pools(small(depths=(3,), loads=(1,)), eagle3=SweptPool(3))
    other = replace(results.windows[0], cell=SweepCell("table", "eagle3", 1))
    found = summary(replace(results, windows=(*results.windows, other)))
    assert [found.label(pool) for pool in found.pools] == ["depth 3 (eagle3)", "depth 3 (mtp3)"]
    assert found.baseline is None


def test_a_pool_that_the_setting_does_not_name_is_no_baseline() -> None:
    stray = with_windows(small(depths=(3,), loads=(1,)), {"cell": SweepCell("table", "gone", 1)})
    assert summary(stray).baseline is None


def test_speed_up_is_over_the_pool_without_speculation() -> None:
    results = small(loads=(1, 256))
    found = summary(results)
    rates = {(w.cell.pool, w.cell.load): w.rate for w in results.windows}
    assert found.speed_up("mtp3", 256) == pytest.approx(rates["mtp3", 256] / rates["plain", 256])
    assert (found.best(1), found.best(256)) == ("mtp3", "plain")
    assert found.speed_up("mtp3", 10) is None


def test_invalid_windows_are_tried_and_count_for_nothing() -> None:
    results = with_windows(small(depths=(0,), loads=(1,), repeats=2), {"invalid": ("an error",)})
    found, second = summary(results), results.windows[1]
    assert len(found.tried("plain", 1)) == 2
    assert found.valid("plain", 1) == (second,)
    assert second.request_s
    assert found.time("plain", 1, "request_s", "p95") == second.request_s.p95


def test_times_of_several_windows_are_averaged_and_none_where_not_told() -> None:
    results = small(depths=(0,), loads=(1,), repeats=2, noise=0.1, streamed=False)
    means = [window.request_s.mean for window in results.windows if window.request_s]
    assert summary(results).time("plain", 1, "request_s", "mean") == pytest.approx(sum(means) / 2)
    assert summary(results).time("plain", 1, "first_token_s", "mean") is None


def test_an_open_loop_is_kept_out_of_the_curves() -> None:
    open_loop = {"cell": SweepCell("table", "plain", 64, 0, 2.5)}
    found = summary(with_windows(small(depths=(0,), loads=(1, 10)), open_loop))
    assert found.loads == [10]
    assert [window.cell.per_s for window in found.open_loop] == [2.5]


def test_a_summary_reads_what_the_answers_told_where_the_counters_are_missing() -> None:
    results = with_windows(small(depths=(3,), loads=(1,)), {"speculation": None, "tokens_per_step": None})
    assert summary(results).speculation("mtp3") == added([results.windows[0].told])
    assert summary(results).delivered("mtp3") is None


def test_routes_that_only_windows_name_are_not_lost() -> None:
    results = small(depths=(0,), loads=(1,))
    stray = Window(cell=SweepCell("memo", "plain", 1), engine="e", started="", seconds=1.0)
    assert routes(replace(results, windows=(*results.windows, stray))) == ["table", "memo"]
