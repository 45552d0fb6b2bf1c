import itertools

import msgspec
import pytest

from gateway.model import Speculation
from gateway.tools.sweep.findings import findings
from gateway.tools.sweep.sweep_values import Findings, Results, Setting, SweepCell, SweptPool, Window
from tests.tools.sweep.synthetic import LOADS, grid, setting, window


def concluded(known: Setting, windows: list[Window]) -> Findings:
    return findings(Results(known, tuple(windows)))


def real(known: Setting) -> Setting:
    return msgspec.structs.replace(known, simulated="")


def test_a_crossover_is_told_with_its_interval_and_by_how_much_each_side_wins() -> None:
    known = setting((0, 3), routes=["table"])
    found = concluded(known, grid(known, repeats=2)).routes["table"]
    (change,) = found.changes
    assert found.words[0] == (
        f"table (simulated): depth 3 up to {change.load - 1} requests per engine, ordinary decoding from "
        f"{change.load} (95%: {change.low} to {change.high}); depth 3 is 49% faster than ordinary decoding "
        "at 32 and ordinary decoding is 39% faster than depth 3 at 128."
    )
    assert [(one.depth, one.pool) for one in found.schedule] == [(3, "mtp3"), (0, "plain")]
    assert found.own_schedule == ((1, change.load - 1, 3), (change.load, 4096, 0))
    assert found.noise == pytest.approx(0, abs=1e-9)
    assert found.points["plain"][3].load == 32
    assert found.points["plain"][3].windows == 2


def test_no_crossover_is_said_so_and_where_measuring_ended() -> None:
    known = setting((0, 2), routes=["text"])
    found = concluded(known, grid(known, repeats=2)).routes["text"]
    assert found.changes == ()
    assert "no crossover: depth 2 throughout, against ordinary decoding 81% faster at 1" in found.words[0]
    assert (
        "Measuring ended at 256 requests per engine; a crossover beyond it would not be seen." in found.words
    )
    assert found.own_schedule == ((1, 4096, 2),)


def test_a_crossover_inside_the_noise_is_said_to_be_so() -> None:
    known = setting((0, 3), routes=["text"])
    words = concluded(known, grid(known, repeats=4, noise=0.1)).routes["text"].words
    assert "no crossover beyond the noise: depth 3 throughout" in words[0]
    assert words[1].startswith("Inside the noise at ")
    assert "128" in words[1]
    assert any("One window differs from the next by" in one and "54 repeats" in one for one in words)


def test_pools_that_do_the_same_are_no_different_beyond_the_noise() -> None:
    known = setting((0,), routes=["text"], twin=SweptPool(1))
    windows = [one for one in grid(known, 3, 0.05) if one.cell.pool == "plain"]
    twins = [
        msgspec.structs.replace(one, cell=msgspec.structs.replace(one.cell, pool="twin")) for one in windows
    ]
    words = concluded(known, windows + twins).routes["text"].words
    assert "no difference beyond the noise at any load" in words[0]
    assert "(95%: -" in words[0]


def test_nothing_repeated_is_said_and_nothing_certain_claimed() -> None:
    known = setting((0, 3), routes=["table"])
    found = concluded(known, grid(known)).routes["table"]
    assert found.noise is None
    assert not any(change.certain for change in found.changes)
    assert any("Nothing was repeated" in one and "5%" in one for one in found.words)


def test_simulated_figures_are_labelled_and_measured_ones_are_not() -> None:
    known = setting((0, 3), routes=["table"])
    simulated, measured = concluded(known, grid(known)), findings(Results(real(known), tuple(grid(known))))
    assert simulated.words[0].startswith("Simulated: engines after the fit h100-9b")
    assert simulated.routes["table"].words[0].startswith("table (simulated): ")
    assert not any("imulated" in one for one in (*measured.words, *measured.routes["table"].words))


def test_invalid_windows_count_for_nothing_and_are_listed_with_their_reasons() -> None:
    known = setting((0, 3), routes=["table"])
    good = grid(known, repeats=2)
    bad = msgspec.structs.replace(
        window(known, SweepCell("table", "mtp3", 64, 2), invalid=("1 request failed: http_500",)), rate=1.0
    )
    without, found = concluded(known, good), concluded(known, [*good, bad, bad])
    assert found.routes["table"].points == without.routes["table"].points
    assert found.routes["table"].changes == without.routes["table"].changes
    assert found.routes["table"].words[-1] == (
        "Left out as invalid: mtp3 at 64 (2 times): 1 request failed: http_500."
    )
    assert "2 of them invalid and left out" in found.words[1]
    assert "none of them invalid" in without.words[1]


def test_an_invalid_window_that_was_measured_again_is_not_mourned() -> None:
    known = setting((0, 3), routes=["table"])
    good = grid(known)
    lost = window(known, good[0].cell, invalid=("1 request failed: http_500",))
    found = concluded(known, [lost, *good])
    assert not any("Left out" in sentence for sentence in found.routes["table"].words)
    assert "1 of them invalid" in found.words[1]


def test_windows_of_a_simulated_engine_without_its_load_are_told() -> None:
    known = setting((0, 3), routes=["table"])
    busy, calm = (
        [msgspec.structs.replace(one, running=share * one.cell.load) for one in grid(known)]
        for share in (0.7, 1.0)
    )
    assert f"In {len(busy)} windows this machine was too busy" in " ".join(concluded(known, busy).words)
    assert "too busy" not in " ".join(concluded(known, calm).words)
    real = msgspec.structs.replace(known, simulated="")
    assert "too busy" not in " ".join(concluded(real, busy).words)


def test_a_route_is_compared_on_the_pools_it_was_measured_on() -> None:
    known = setting((0, 1, 3), routes=["text", "table"])
    windows = [one for one in grid(known, 2) if one.cell.route == "text" or one.cell.pool != "mtp1"]
    found = concluded(known, windows)
    assert {one.depth for one in found.routes["table"].schedule} == {3, 0}
    assert {one.depth for one in found.routes["text"].schedule} == {3, 1}
    assert {depth for _, _, depth in found.own_schedule} == {3, 0}


def test_a_sweep_that_has_just_begun_has_findings_too() -> None:
    known = setting((0, 3), routes=["text", "table"])
    apart = [window(known, SweepCell("table", "plain", 1)), window(known, SweepCell("table", "mtp3", 256))]
    assert concluded(known, []).routes == {}
    assert concluded(known, []).own_schedule == ()
    alone = concluded(known, apart[:1]).routes
    assert alone["table"].words == ("table (simulated): only plain was measured: nothing to compare.",)
    assert list(alone) == ["table"]
    found = concluded(known, apart).routes["table"]
    assert found.words[0] == "table (simulated): no load was measured on all pools."
    assert found.schedule == ()


def test_two_pools_of_one_depth_make_no_crossover() -> None:
    known = setting((3,), routes=["table"], other=SweptPool(3))
    (words, *_) = concluded(known, grid(known, 2)).routes["table"].words
    assert words == "table (simulated): depth 3 throughout; no other depth was measured."


def test_an_engine_that_changes_its_depth_by_itself_is_said_to() -> None:
    ranges = ((1, 64, 3), (65, 4096, 0))
    known = setting((16,), routes=["table"], auto=SweptPool(3, ranges=ranges))
    found = concluded(known, grid(known, 2)).routes["table"]
    (change,) = found.changes
    assert (change.before, change.after) == ("auto", "auto")
    assert found.words[0].endswith("; the engine changes its depth by itself.")


def test_an_own_schedule_for_all_routes_comes_with_its_caveats() -> None:
    known = setting((0, 3))
    found = concluded(known, grid(known, repeats=2))
    (first, last, depth), (start, end, plain) = found.own_schedule
    assert (first, depth, start, end, plain) == (1, 3, last + 1, 4096, 0)
    words = " ".join(found.words)
    assert f"num_speculative_tokens_per_batch_size [[1, {last}, 3], [{start}, 4096, 0]]" in words
    assert "vllm#49548" in words
    assert "data_parallel_size" in words


def test_where_one_depth_is_best_for_all_an_engine_needs_no_schedule() -> None:
    known = setting((0, 16))
    found = concluded(known, grid(known, repeats=2))
    assert found.own_schedule == ((1, 4096, 0),)
    assert found.words[-1] == (
        "One engine for all routes has no use for a schedule of its own: ordinary decoding throughout."
    )


def drafted(one: Window, per_position: tuple[float, ...], step_s: float | None) -> Window:
    if not per_position:
        return msgspec.structs.replace(one, step_s=step_s)
    told = Speculation(
        100.0,
        100 * sum(per_position),
        100.0 * len(per_position),
        tuple(100 * share for share in per_position),
    )
    return msgspec.structs.replace(one, speculation=told, step_s=step_s)


def test_drafting_deeper_pays_where_it_wins_more_tokens_than_it_costs_time() -> None:
    known = setting((0, 1, 3), routes=["table"])
    steps = {"plain": ((), 0.010), "mtp1": ((0.9,), 0.012), "mtp3": ((0.9, 0.7, 0.4), 0.024)}
    windows = [drafted(one, *steps[one.cell.pool]) for one in grid(known)]
    found = concluded(known, windows).routes["table"]
    shallow, deep = found.deeper[:2]
    assert (shallow.load, shallow.shallow, shallow.deep) == (1, 0, 1)
    assert (shallow.tokens, shallow.time) == (pytest.approx(1.9), pytest.approx(1.2))
    assert shallow.accepted == (pytest.approx(0.9),)
    assert shallow.pays
    assert (deep.shallow, deep.deep, deep.tokens, deep.time) == (
        1,
        3,
        pytest.approx(3 / 1.9),
        pytest.approx(2),
    )
    assert deep.accepted == (pytest.approx(0.7), pytest.approx(0.4))
    assert not deep.pays
    assert [one.load for one in found.deeper[::2]] == list(LOADS)
    assert any(
        "depth 1: +90% tokens per step for +20% time at 40; pays at every" in one for one in found.words
    )
    assert any("depth 3: +58% tokens per step for +100% time at 40; pays at no" in one for one in found.words)


def test_without_step_times_rates_tell_what_deeper_drafts_cost() -> None:
    known = setting((0, 3), routes=["table"])
    windows = [drafted(one, (0.9, 0.7, 0.4) if one.cell.pool == "mtp3" else (), None) for one in grid(known)]
    found = concluded(known, windows).routes["table"]
    rates = {pool: points[0].rate for pool, points in found.points.items()}
    assert found.deeper[0].time == pytest.approx(3 * rates["plain"] / rates["mtp3"])
    assert [one.pays for one in found.deeper] == [True] * 6 + [False] * 3
    assert any(one.endswith("pays at 1, 10, 24, 32, 40 and 64 requests per engine.") for one in found.words)


def test_tokens_per_step_stand_in_where_nothing_tells_the_acceptance() -> None:
    known = setting((0, 3), routes=["table"])
    windows = [
        msgspec.structs.replace(one, tokens_per_step=2.8 if one.cell.load == 10 else None)
        for one in grid(known)
    ]
    (only,) = concluded(known, windows).routes["table"].deeper
    assert (only.load, only.tokens, only.accepted) == (10, pytest.approx(2.8), ())


def test_a_pool_that_schedules_its_own_depth_is_no_depth_to_compare() -> None:
    known = setting((0,), routes=["table"], auto=SweptPool(3, ranges=((1, 64, 3), (65, 4096, 0))))
    windows = [msgspec.structs.replace(one, tokens_per_step=2.0) for one in grid(known)]
    assert concluded(known, windows).routes["table"].deeper == ()


@pytest.mark.parametrize("depths", [(0, 3), (0, 1, 3), (0, 1, 2, 3, 4, 8, 16)])
def test_schedules_are_what_the_gateway_and_vllm_accept(depths: tuple[int, ...]) -> None:
    known = setting(depths)
    found = concluded(known, grid(known, noise=0.1))
    for ranges in (found.own_schedule, *(one.own_schedule for one in found.routes.values())):
        assert ranges[0][0] == 1
        assert ranges[-1][1] == 4096
        assert all(first <= last for first, last, _ in ranges)
        for (_, last, depth), (first, _, other) in itertools.pairwise(ranges):
            assert (first, depth != other) == (last + 1, True)
        assert {depth for _, _, depth in ranges} <= set(depths)
