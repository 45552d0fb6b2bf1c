import msgspec
import pytest

from gateway.policy.account.acceptance import added
from gateway.tools.sweep.summary import Summary, by_depth, routes
from gateway.tools.sweep.sweep_values import Cell, Findings, Pool, Results, Window
from tests.tools.sweep.synthetic import findings, sweep

NOTHING = Findings(routes={}, own_schedule=(), words=())


def changed(results: Results, **changes: object) -> Results:
    """The sweep with its first window changed."""
    first, *others = results.windows
    return Results(results.setting, (msgspec.structs.replace(first, **changes), *others))


def test_pools_stand_by_depth_with_those_that_schedule_themselves_last() -> None:
    results = sweep(depths=(3, 0, 16), loads=(1,), routes=("table",))
    setting = msgspec.structs.replace(
        results.setting,
        pools={**results.setting.pools, "own": Pool(depth=1, ranges=((1, 63, 1), (64, 512, 0)))},
    )
    results = Results(setting, results.windows)

    assert by_depth(results, setting.pools) == ("plain", "mtp3", "mtp16", "own")
    summary = Summary(results, NOTHING, "table")
    assert [summary.label(pool) for pool in ("plain", "mtp3", "own")] == [
        "depth 0",
        "depth 3",
        "own (schedules itself)",
    ]
    assert [summary.place(pool) for pool in setting.pools] == [1, 0, 2, 3]


def test_pools_of_one_depth_are_told_apart_by_name() -> None:
    results = sweep(depths=(3,), loads=(1,), routes=("table",))
    other = msgspec.structs.replace(results.windows[0], cell=Cell("table", "eagle3", 1))
    setting = msgspec.structs.replace(
        results.setting, pools={**results.setting.pools, "eagle3": Pool(depth=3)}
    )

    summary = Summary(Results(setting, (*results.windows, other)), NOTHING, "table")

    assert [summary.label(pool) for pool in summary.pools] == ["depth 3 (eagle3)", "depth 3 (mtp3)"]
    assert summary.baseline is None


def test_a_pool_that_the_setting_does_not_name_is_no_baseline() -> None:
    results = sweep(depths=(3,), loads=(1,), routes=("table",))
    stray = msgspec.structs.replace(results.windows[0], cell=Cell("table", "gone", 1))

    assert Summary(Results(results.setting, (stray,)), NOTHING, "table").baseline is None


def test_speed_up_is_over_the_pool_without_speculation() -> None:
    results = sweep(depths=(0, 3), loads=(1, 256), routes=("table",))
    summary = Summary(results, findings(results), "table")
    rates = {(w.cell.pool, w.cell.load): w.rate for w in results.windows}

    assert summary.speed_up("mtp3", 256) == pytest.approx(rates["mtp3", 256] / rates["plain", 256])
    assert (summary.best(1), summary.best(256)) == ("mtp3", "plain")
    assert summary.speed_up("mtp3", 10) is None


def test_invalid_windows_are_tried_and_count_for_nothing() -> None:
    results = changed(sweep(depths=(0,), loads=(1,), routes=("table",), repeats=2), invalid=("an error",))
    summary = Summary(results, findings(results), "table")

    assert len(summary.tried("plain", 1)) == 2
    assert summary.valid("plain", 1) == results.windows[1:]
    assert summary.time("plain", 1, "request_s", "p95") == getattr(results.windows[1].request_s, "p95")  # noqa: B009


def test_times_of_several_windows_are_averaged_and_none_where_not_told() -> None:
    results = sweep(depths=(0,), loads=(1,), routes=("table",), repeats=2, noise=0.1, streamed=False)
    summary = Summary(results, findings(results), "table")
    means = [window.request_s.mean for window in results.windows if window.request_s]

    assert summary.time("plain", 1, "request_s", "mean") == pytest.approx(sum(means) / 2)
    assert summary.time("plain", 1, "first_token_s", "mean") is None


def test_an_open_loop_is_kept_out_of_the_curves() -> None:
    results = changed(
        sweep(depths=(0,), loads=(1, 10), routes=("table",)), cell=Cell("table", "plain", 64, 0, 2.5)
    )
    summary = Summary(results, findings(results), "table")

    assert summary.loads == [10]
    assert [window.cell.per_s for window in summary.open_loop] == [2.5]


def test_a_summary_reads_what_the_answers_told_where_the_counters_are_missing() -> None:
    results = sweep(depths=(3,), loads=(1,), routes=("table",))
    results = changed(results, speculation=None, tokens_per_step=None)
    summary = Summary(results, findings(results), "table")

    assert summary.speculation("mtp3") == added([results.windows[0].told])
    assert summary.delivered("mtp3") is None


def test_routes_that_only_windows_name_are_not_lost() -> None:
    results = sweep(depths=(0,), loads=(1,), routes=("table",))
    stray = Window(cell=Cell("memo", "plain", 1), engine="e", started="", seconds=1.0)

    assert routes(Results(results.setting, (*results.windows, stray))) == ["table", "memo"]
