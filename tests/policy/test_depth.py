from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.depth import (
    Crossover,
    Curve,
    Table,
    crossover_by_curves,
    crossover_by_schedule,
    depth_at,
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


def table(curve: Curve | None, max_load: int = 256, crossover: Crossover = AT_64) -> Table:
    return Table([curve], [crossover], max_load)


@given(points)
def test_the_curve_lies_above_its_points_and_is_concave(measured: list[tuple[int, float]]) -> None:
    curve = Curve(measured)
    for load, rate in measured:
        assert curve.rate(load) >= rate * (1 - 1e-9)
    rates = [curve.rate(load) for load in range(400)]
    gains = [after - before for before, after in pairwise(rates)]
    positive = [gain for gain, rate in zip(gains, rates[1:], strict=True) if rate > 0]
    assert all(later <= earlier + 1e-6 for earlier, later in pairwise(positive))


def test_nothing_is_promised_beyond_what_was_measured() -> None:
    assert PLAIN.rate(400) == PLAIN.rate(256)
    assert DEEP.rate(300) < DEEP.rate(256)
    assert DEEP.rate(100_000) == 0
    assert PLAIN.rate(-1) == 0


@given(points, points, st.integers(1, 40))
def test_greedy_by_gain_is_the_best_split(
    left: list[tuple[int, float]], right: list[tuple[int, float]], requests: int
) -> None:
    tables = [table(Curve(left)), table(Curve(right))]
    loads = [0, 0]
    for _ in range(requests):
        gains = [tables[side].appraise([loads[side]], 0, [0]).gains[0] for side in (0, 1)]
        loads[gains.index(max(gains))] += 1
    curves = Curve(left), Curve(right)
    best = max(curves[0].rate(n) + curves[1].rate(requests - n) for n in range(requests + 1))
    assert curves[0].rate(loads[0]) + curves[1].rate(loads[1]) >= best - 1e-6 * best


def test_a_request_does_not_crowd_the_engine_where_it_would_run_fastest_itself() -> None:
    crowded, idle = table(DEEP).appraise([50], 0, [0]), table(PLAIN).appraise([10], 0, [0])
    assert DEEP.speed(51) < PLAIN.speed(11)
    assert idle.gains[0] > crowded.gains[0]
    # At 30 it would still run faster on the deep engine, and yet the fleet gains more by the plain one.
    deep, plain = table(DEEP).appraise([33], 0, [0]), table(PLAIN).appraise([3], 0, [0])
    assert DEEP.speed(34) > PLAIN.speed(4)
    assert plain.gains[0] > deep.gains[0]


def test_what_others_sent_counts_and_has_our_mix() -> None:
    both = Table([DEEP, PLAIN], [AT_64] * 2, 256)
    assert both.appraise([10, 10], 20, [0, 0]) == both.appraise([20, 20], 0, [0, 0])
    assert both.appraise([0, 0], 20, [3, 3]).gains == both.appraise([10, 10], 0, [0, 0]).gains
    assert both.appraise([0, 0], 20, [0, 0]).gains == both.appraise([0, 0], 20, [1, 1]).gains


def test_the_gain_counts_what_neighbours_of_other_routes_lose() -> None:
    slow = Curve([(1, 100), (50, 100)])
    mixed = Table([DEEP, slow], [AT_64] * 2, 256)
    n, m = 20, 10
    before = n * DEEP.speed(30) + m * slow.speed(30)
    after = (n + 1) * DEEP.speed(31) + m * slow.speed(31)
    assert mixed.appraise([n, m], 0, [0, 0]).gains[0] == pytest.approx(after - before)


def test_a_neighbour_without_a_curve_is_slowed_as_the_route_itself_is() -> None:
    mixed = Table([DEEP, None], [AT_64] * 2, 256)
    gains = mixed.appraise([20, 10], 0, [0, 0]).gains
    assert gains[0] == pytest.approx(DEEP.rate(31) - DEEP.rate(30))


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
        mixed = Table([DEEP, None], [AT_64] * 2, 256)
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

    def test_the_depth_that_wins_low_is_filled_to_half_its_crossover(self) -> None:
        deep, plain = Crossover(64, True), Crossover(64, False)
        assert self.fill(32, deep, plain) == (32, 0)
        assert self.fill(64, deep, plain) == (32, 32)
        assert self.fill(200, deep, plain) == (100, 100)

    def test_then_load_over_crossover_is_kept_equal(self) -> None:
        deep, plain = self.fill(300, Crossover(50, True), Crossover(100, False))
        assert plain == pytest.approx(2 * deep, abs=2)

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
        ([(1, 63, 3), (64, 4096, 0)], 0, Crossover(64, False)),
        ([(1, 63, 3), (64, 127, 0), (128, 4096, 3)], 3, Crossover(64, True)),
        ([(1, 63, 3), (64, 127, 0), (128, 4096, 3)], 0, Crossover(128, False)),
        ([(1, 4096, 3)], 3, Crossover(256, True)),
        ([(1, 4096, 3)], 0, Crossover(256, False)),
        ([(1, 40, 3), (41, 80, 1), (81, 4096, 0)], 1, Crossover(81, False)),
        ([(1, 40, 3), (41, 4096, 0)], 7, Crossover(41, False)),
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
    assert crossover_by_schedule(schedule, depths, 256) == Crossover(256, True)


def test_crossovers_by_curves() -> None:
    deep = crossover_by_curves(DEEP, [PLAIN], 256)
    plain = crossover_by_curves(PLAIN, [DEEP], 256)
    assert deep.wins_low
    assert not plain.wins_low
    assert deep.load == plain.load
    assert DEEP.rate(deep.load) < PLAIN.rate(deep.load)
    assert crossover_by_curves(DEEP, [], 256) == Crossover(256, True)
    assert crossover_by_curves(Curve([(1, 1)]), [DEEP], 256) == Crossover(256, False)


def test_the_expected_rate_is_the_profiles_sum() -> None:
    both = Table([DEEP, PLAIN], [AT_64] * 2, 256)
    assert both.expected_rate([32, 0]) == pytest.approx(DEEP.rate(32))
    assert both.expected_rate([0, 0]) == 0
    assert both.expected_rate([16, 16]) == pytest.approx((DEEP.rate(32) + PLAIN.rate(32)) / 2)
    assert Table([DEEP, None], [AT_64] * 2, 256).expected_rate([1, 1]) is None
    assert both.profiled(0)
    assert both.crossover(1) == Crossover(64, True)


@pytest.mark.parametrize(("own", "foreign"), list(product((0, 5, 300), (0, 5, 500))))
def test_any_load_can_be_appraised(own: int, foreign: int) -> None:
    appraisal = table(DEEP).appraise([own], foreign, [0])
    assert len(appraisal.gains) == 1
