import gc
import weakref
from collections.abc import Sequence
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.policy.choose.gain import (
    Crossover,
    Curve,
    SpeedTable,
    crossover_by_curves,
    crossover_by_schedule,
    depth_at,
    spans,
    wins_by_curves,
    wins_by_schedule,
)

# One route, a deep pool that wins early and collapses, a plain one that rises steadily.
DEEP = Curve([(1, 150), (10, 1200), (32, 2600), (40, 2700), (64, 2500), (128, 1500), (256, 900)])
PLAIN = Curve([(1, 60), (10, 600), (32, 1600), (64, 2600), (128, 3600), (256, 4400)])

points = st.lists(
    st.tuples(st.integers(1, 300), st.floats(1, 5000)),
    min_size=1,
    max_size=9,
    unique_by=lambda point: point[0],
)


AT_64 = Crossover(64, True)


def table(curve: Curve | None, max_load: int = 256, crossover: Crossover = AT_64) -> SpeedTable:
    return SpeedTable([curve], [crossover], max_load)


def speed(curve: Curve, load: int) -> float:
    return curve.rate(load) / load


@given(points)
def test_a_curve_is_positive_and_promises_nothing_beyond_its_points(
    measured: list[tuple[int, float]],
) -> None:
    curve = Curve(measured)
    last = max(load for load, _ in measured)
    assert all(curve.rate(load) > 0 for load in range(1, 400))
    assert all(curve.rate(load) <= curve.rate(last) + 1e-9 for load in range(last, 1000, 50))


def test_noise_is_smoothed_away() -> None:
    rng = Random(7)
    loads = (1, 10, 24, 32, 40, 64, 80, 128, 256)

    def true(load: float) -> float:
        return load / (0.01 + 0.0002 * load + 1e-6 * load * load)

    off = []
    for _ in range(20):
        curve = Curve([(load, true(load) * rng.gauss(1, 0.05)) for load in loads])
        off += [abs(curve.rate(load) / true(load) - 1) for load in loads]
    assert sum(off) / len(off) < 0.035


def test_a_step_is_kept_where_an_engine_changes_its_depth_by_itself() -> None:
    points = [(n, n * (30 if n < 64 else 15)) for n in (1, 8, 16, 32, 63, 64, 100, 128, 256)]
    for curve in (Curve(points, [64]), Curve([(*point, 1) for point in points])):
        assert curve.rate(63) == pytest.approx(63 * 30)
        assert curve.rate(64) == pytest.approx(64 * 15)
        assert curve.rate(256) == pytest.approx(256 * 15)


def test_breaks_outside_of_what_was_measured_change_nothing() -> None:
    points = [(n, n / (0.01 + 0.001 * n)) for n in (8, 16, 32, 64)]
    for breaks in ([2], [500], [2, 4, 600]):
        assert Curve(points, breaks).rate(40) == pytest.approx(Curve(points).rate(40))


def test_what_fell_is_not_taken_to_rise_again() -> None:
    assert DEEP.rate(400) <= DEEP.rate(256)
    assert PLAIN.rate(400) == PLAIN.rate(256)


smooth = st.tuples(st.floats(0.001, 0.1), st.floats(1e-5, 1e-2)).map(
    lambda factors: Curve([(n, n / (factors[0] + factors[1] * n), 0.01) for n in (1, 10, 40, 80, 256)])
)


@settings(max_examples=30)
@given(smooth, smooth, st.integers(1, 60))
def test_greedy_by_gain_is_the_best_split(left: Curve, right: Curve, requests: int) -> None:
    tables = [table(left), table(right)]
    loads = [0, 0]
    for _ in range(requests):
        gains = [tables[side].appraise([loads[side]], 0, [0]).gains[0] for side in (0, 1)]
        loads[gains.index(max(gains))] += 1

    def rate(n: int) -> float:
        return (left.rate(n) if n else 0) + (right.rate(requests - n) if requests > n else 0)

    assert rate(loads[0]) >= max(map(rate, range(requests + 1))) * (1 - 1e-4)


def test_a_request_does_not_crowd_the_engine_where_it_would_run_fastest_itself() -> None:
    deep, plain = table(DEEP).appraise([33], 0, [0]), table(PLAIN).appraise([3], 0, [0])
    assert speed(DEEP, 34) > speed(PLAIN, 4)
    assert plain.gains[0] > deep.gains[0]


def test_what_others_sent_counts_and_has_our_mix() -> None:
    both = SpeedTable([DEEP, PLAIN], [AT_64] * 2, 256)
    assert both.appraise([10, 10], 20, [0, 0]) == both.appraise([20, 20], 0, [0, 0])
    assert both.appraise([0, 0], 20, [3, 3]).gains == both.appraise([10, 10], 0, [0, 0]).gains
    assert both.appraise([0, 0], 20, [0, 0]).gains == both.appraise([0, 0], 20, [1, 1]).gains


def rate_of(counts: dict[Curve, int]) -> float:
    """An engine's rate under a mix: its requests share its steps, so their times per token average."""
    load = sum(counts.values())
    return load**2 / sum(count * load / curve.rate(load) for curve, count in counts.items())


def test_the_gain_counts_what_neighbours_of_other_routes_lose() -> None:
    mixed = SpeedTable([DEEP, PLAIN], [AT_64] * 2, 256)
    gains = mixed.appraise([20, 10], 0, [0, 0]).gains
    before = rate_of({DEEP: 20, PLAIN: 10})
    assert gains[0] == pytest.approx(rate_of({DEEP: 21, PLAIN: 10}) - before, rel=1e-3)
    assert gains[1] == pytest.approx(rate_of({DEEP: 20, PLAIN: 11}) - before, rel=1e-3)


def test_a_weight_makes_a_routes_tokens_worth_more() -> None:
    even, weighted = (SpeedTable([DEEP, PLAIN], [AT_64] * 2, 256, weights) for weights in ([1, 1], [1, 3]))
    counts = [20, 20], 0, [0, 0]
    assert weighted.appraise(*counts).gains[1] > 2 * even.appraise(*counts).gains[1]
    scaled = SpeedTable([DEEP], [AT_64], 256, [5.0]).appraise([9], 0, [0]).gains[0]
    assert scaled == pytest.approx(5 * table(DEEP).appraise([9], 0, [0]).gains[0])


def test_a_neighbour_without_a_curve_is_slowed_as_the_route_itself_is() -> None:
    alone = SpeedTable([DEEP], [AT_64], 256).appraise([30], 0, [0]).gains
    assert SpeedTable([DEEP, None], [AT_64] * 2, 256).appraise([20, 10], 0, [0, 0]).gains[0] == pytest.approx(
        alone[0]
    )


def test_over_a_dip_equal_engines_are_not_kept_equal() -> None:
    """An engine that changes its depth at 64 loses throughput there, and makes good for it later."""
    dip = Curve([(1, 60, 1), (40, 2000, 1), (63, 2500, 1), (64, 1800, 1), (90, 2400, 1), (160, 3600, 1)])
    engine = table(dip)
    loads = [0, 0]
    for _ in range(150):
        gains = [engine.appraise([load], 0, [0]).gains[0] for load in loads]
        loads[gains.index(max(gains))] += 1
    even = 2 * dip.rate(75)
    assert dip.rate(loads[0]) + dip.rate(loads[1]) > 1.1 * even


class TestHold:
    def test_only_past_a_peak_that_is_certain(self) -> None:
        cap = table(DEEP).appraise([1], 0, [0]).cap
        assert 64 < cap < 128
        assert 1.1 * DEEP.measured(cap + 1).rate <= 0.91 * 2700

    def test_a_rising_curve_holds_nothing_below_max_load(self) -> None:
        assert table(PLAIN, 200).appraise([1], 0, [0]).cap == 200

    def test_a_dip_within_the_noise_does_not_hold(self) -> None:
        assert table(Curve([(1, 100), (64, 1000), (128, 900)])).appraise([1], 0, [0]).cap == 256

    def test_a_later_recovery_forbids_it(self) -> None:
        curve = Curve([(1, 100), (40, 1000), (64, 300), (128, 950)])
        assert table(curve).appraise([1], 0, [0]).cap == 256

    def test_known_small_errors_make_it_certain_sooner(self) -> None:
        exact = Curve([(p.load, p.rate, 0.005 * p.rate) for p in DEEP.points])
        assert table(exact).appraise([1], 0, [0]).cap < table(DEEP).appraise([1], 0, [0]).cap

    def test_never_below_the_load_that_reaches_95_percent(self) -> None:
        spike = Curve([(1, 100, 1), (10, 960, 1), (50, 1000, 400), (51, 10, 1)])
        assert table(spike).appraise([1], 0, [0]).cap >= 10

    def test_an_engine_without_all_its_profiles_holds_at_max_load_only(self) -> None:
        mixed = SpeedTable([DEEP, None], [AT_64] * 2, 256)
        assert mixed.appraise([1, 0], 0, [0, 0]).cap < 256
        assert mixed.appraise([1, 1], 0, [0, 0]).cap == 256

    @given(points, st.integers(1, 300))
    def test_it_is_within_bounds(self, measured: list[tuple[int, float]], max_load: int) -> None:
        assert 1 <= table(Curve(measured), max_load).appraise([3], 0, [0]).cap <= max_load


class TestSchedule:
    def fill(self, requests: int, deep: Crossover, plain: Crossover) -> tuple[int, int]:
        tables = [table(None, crossover=deep), table(None, crossover=plain)]
        loads = [0, 0]
        for _ in range(requests):
            gains = [tables[side].appraise([loads[side]], 0, [0]).gains[0] for side in (0, 1)]
            loads[gains.index(max(gains))] += 1
        return loads[0], loads[1]

    def test_the_depth_that_will_be_left_is_filled_first_and_then_ever_more_slowly(self) -> None:
        deep, plain = Crossover(60, True), Crossover(60, False)
        assert self.fill(4, deep, plain) == (4, 0)
        assert self.fill(40, deep, plain) == pytest.approx((20, 20), abs=1)
        assert self.fill(120, deep, plain) == pytest.approx((40, 80), abs=1)

    def test_the_first_request_goes_where_the_schedule_wants_it(self) -> None:
        assert self.fill(1, Crossover(64, True), Crossover(200, True, late=True)) == (1, 0)

    def test_of_two_that_will_be_left_the_later_one_gets_more(self) -> None:
        first, second = self.fill(150, Crossover(50, True), Crossover(100, True))
        assert second == pytest.approx(first * 2**0.5, abs=2)

    def test_a_crowd_of_another_route_counts_by_its_own_crossover(self) -> None:
        mixed = SpeedTable([None, None], [Crossover(60, True), Crossover(20, True)], 256)
        assert mixed.appraise([0, 5], 0, [0, 0]).gains[0] == mixed.appraise([15, 0], 0, [0, 0]).gains[0]

    def test_without_a_schedule_loads_are_equal(self) -> None:
        assert self.fill(50, Crossover(256, False), Crossover(256, False)) == (25, 25)


def test_gaps_in_ranges_keep_the_depth_before_them() -> None:
    ranges = [(1, 16, 3), (20, 64, 1)]
    assert [depth_at(ranges, load, 9) for load in (1, 16, 18, 20, 64, 999)] == [3, 3, 3, 1, 1, 1]
    assert depth_at([], 5, 9) == 9


@pytest.mark.parametrize(
    ("schedule", "depth", "expected"),
    [
        ([(1, 63, 3), (64, 4096, 0)], 3, Crossover(64, True)),
        ([(1, 63, 3), (64, 4096, 0)], 0, Crossover(64, False, late=True)),
        ([(1, 63, 3), (64, 127, 0), (128, 4096, 3)], 3, Crossover(64, True)),
        ([(1, 63, 3), (64, 127, 0), (128, 4096, 3)], 0, Crossover(128, True, late=True)),
        ([(1, 4096, 3)], 3, Crossover(256, False)),
        ([(1, 4096, 3)], 0, Crossover(256, False, late=True)),
        ([(1, 40, 3), (41, 80, 1), (81, 4096, 0)], 1, Crossover(81, True, late=True)),
        ([(1, 40, 3), (41, 4096, 0)], 7, Crossover(41, False, late=True)),
        ([], 3, Crossover(256, False)),
    ],
)
def test_crossovers_by_schedule(
    schedule: list[tuple[int, int, int]], depth: int, expected: Crossover
) -> None:
    assert crossover_by_schedule(schedule, [depth] * 256, 256) == expected


def test_engines_that_schedule_as_the_route_does_are_never_left() -> None:
    schedule = [(1, 63, 3), (64, 4096, 0)]
    depths = [depth_at(schedule, load, 3) for load in range(1, 257)]
    found = crossover_by_schedule(schedule, depths, 256)
    assert found == Crossover(256, False, eased=64)
    assert TestSchedule().fill(4, found, Crossover(64, False)) == (4, 0)
    assert TestSchedule().fill(100, found, Crossover(64, False)) == (50, 50)


def test_crossovers_by_curves() -> None:
    deep = crossover_by_curves(DEEP, [PLAIN], 256)
    plain = crossover_by_curves(PLAIN, [DEEP], 256)
    assert deep.left
    assert not plain.left
    assert deep.load == plain.load
    assert DEEP.rate(deep.load) < PLAIN.rate(deep.load)
    assert crossover_by_curves(DEEP, [], 256) == Crossover(256, False)
    assert crossover_by_curves(Curve([(1, 1)]), [DEEP], 256) == Crossover(256, False)


def test_the_loads_at_which_a_depth_wins() -> None:
    schedule = [(1, 63, 3), (64, 127, 0), (128, 4096, 3)]
    assert spans(wins_by_schedule(schedule, [3] * 256)) == ((1, 63), (128, 256))
    assert spans(wins_by_schedule(schedule, [0] * 256)) == ((64, 127),)
    assert spans(wins_by_schedule(schedule, [1] * 256)) == ()
    assert spans(wins_by_schedule([], [3] * 256)) == ()
    left = crossover_by_curves(DEEP, [PLAIN], 256).load
    assert spans(wins_by_curves(DEEP, [PLAIN], 256)) == ((1, left - 1),)
    assert spans(wins_by_curves(PLAIN, [DEEP], 256)) == ((left, 256),)


def test_the_expected_rate_is_the_profiles_sum() -> None:
    both = SpeedTable([DEEP, PLAIN], [AT_64] * 2, 256)
    assert both.expected_rate([32, 0]) == pytest.approx(DEEP.rate(32))
    assert both.expected_rate([0, 0]) == 0
    assert both.expected_rate([16, 16]) == pytest.approx(rate_of({DEEP: 16, PLAIN: 16}))
    assert SpeedTable([DEEP, None], [AT_64] * 2, 256).expected_rate([1, 1]) is None
    assert both.profiled(0)
    assert both.crossover(1) == Crossover(64, True)


@pytest.mark.parametrize(("own", "foreign"), list(product((0, 5, 300), (0, 5, 500))))
def test_any_load_can_be_appraised(own: int, foreign: int) -> None:
    appraisal = table(DEEP).appraise([own], foreign, [0])
    assert len(appraisal.gains) == 1


def worked_out(
    curves: Sequence[Curve | None],
    crossovers: Sequence[Crossover],
    weights: Sequence[float],
    counts: Sequence[float],
    load: int,
) -> list[float]:
    """Gains by the formulas as they read, each by itself."""
    tables = [SpeedTable([curve], [AT_64], 256).slownesses(0) if curve else None for curve in curves]
    known = [(count, found) for count, found in zip(counts, tables, strict=True) if found is not None]
    before = sum(count * found[load] for count, found in known)
    after = sum(count * found[load + 1] for count, found in known)
    others = load - sum(count for count, _ in known)
    worth = sum(weight * count for weight, count in zip(weights, counts, strict=True))
    crowding = sum(count / crossover.load for count, crossover in zip(counts, crossovers, strict=True))
    gains = []
    for weight, found, crossover in zip(weights, tables, crossovers, strict=True):
        if found is not None:
            rate = load * worth / (before + others * found[load]) if load else 0.0
            gains.append((load + 1) * (worth + weight) / (after + (others + 1) * found[load + 1]) - rate)
            continue
        pressed = crossover.load * crowding + 1
        if crossover.left:
            gains.append(-max(3 * pressed * pressed / crossover.load, float(crossover.late)))
        elif crossover.eased:
            gains.append(-min(pressed, 3 * pressed * pressed / crossover.eased))
        else:
            gains.append(-pressed)
    return gains


kinds = st.sampled_from(
    [
        (DEEP, AT_64),
        (PLAIN, Crossover(256, False)),
        (None, AT_64),
        (None, Crossover(30, True, late=True)),
        (None, Crossover(256, False, eased=40)),
        (None, Crossover(256, False)),
    ]
)


@settings(max_examples=50)
@given(
    st.lists(st.tuples(kinds, st.sampled_from([1.0, 2.5])), min_size=1, max_size=4),
    st.lists(
        st.tuples(st.lists(st.integers(0, 40), min_size=4, max_size=4), st.integers(0, 100)), max_size=12
    ),
)
def test_what_is_remembered_is_what_working_it_out_gives(
    routes: list[tuple[tuple[Curve | None, Crossover], float]], engines: list[tuple[list[int], int]]
) -> None:
    curves = [curve for (curve, _), _ in routes]
    crossovers = [crossover for (_, crossover), _ in routes]
    weights = [weight for _, weight in routes]
    mixed = SpeedTable(curves, crossovers, 256, weights)
    for counts, foreign in engines + engines[::-1]:
        own = counts[: len(routes)]
        for mix in ([0] * len(routes), [3, 1, 0, 2][: len(routes)]):
            shares = own if any(own) else mix if any(mix) else [1] * len(routes)
            load = min(sum(own) + foreign, 256)
            spread = [share * (load / sum(shares)) for share in shares]
            appraisal = mixed.appraise(own, foreign, mix)
            # By schedule and by profile; the same to the last bit.
            assert list(appraisal.gains) == worked_out(curves, crossovers, weights, spread, load)
            assert appraisal.cap == SpeedTable(curves, crossovers, 256, weights).cap(shares)


def test_what_was_forgotten_is_worked_out_again_and_a_table_out_of_use_is_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.policy.choose.gain._REMEMBERED", 2)
    both = SpeedTable([DEEP, PLAIN], [AT_64] * 2, 256)
    mixes = [(1, 2), (30, 1), (0, 9), (100, 100)]
    first = [both.appraise(mix, 0, [0, 0]) for mix in mixes]
    assert first == [both.appraise(mix, 0, [0, 0]) for mix in mixes]
    used = weakref.ref(both)
    gc.disable()
    try:
        del both
        assert used() is None
    finally:
        gc.enable()
