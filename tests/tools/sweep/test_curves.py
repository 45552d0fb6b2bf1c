import math

import numpy as np
import pytest

from gateway.tools.sweep.curves import Noise, drawn, noise_of, points_of, scales, usable
from gateway.tools.sweep.sweep_values import MeasuredPoint, SweepCell, SweptPool, Window
from tests.tools.sweep.synthetic import LOADS, true_rate


def a_window(load: int, rate: float, repeat: int = 0, **more: object) -> Window:
    cell = SweepCell("text", "plain", load, repeat)
    return Window(cell=cell, engine="e", started="", seconds=120, rate=rate, **more)  # type: ignore[arg-type]


def test_a_point_is_the_mean_of_its_valid_windows() -> None:
    windows = [
        a_window(10, 90),
        a_window(10, 110, 1),
        a_window(10, 900, 2, invalid=("1 request failed",)),
        a_window(1, 50),
    ]
    (one, ten) = points_of(windows, "text")["plain"]
    assert (one.load, one.rate, one.windows) == (1, 50, 1)
    assert (ten.load, ten.rate, ten.windows) == (10, 100, 2)


def test_open_loops_other_routes_and_idle_windows_make_no_point() -> None:
    windows = [
        Window(cell=SweepCell("text", "plain", 256, per_s=2.0), engine="e", started="", seconds=1, rate=5),
        Window(cell=SweepCell("table", "plain", 10), engine="e", started="", seconds=1, rate=5),
        a_window(10, 0.0),
    ]
    assert usable(windows, "text") == {}
    assert points_of(windows, "text") == {}


def test_noise_is_pooled_over_repeats_relative_to_each_rate() -> None:
    rng = np.random.default_rng(1)
    groups = [
        [a_window(load, rate * (1 + 0.1 * rng.standard_normal()), repeat) for repeat in range(3)]
        for load, rate in [(1, 10.0), (10, 100.0), (64, 5000.0)] * 30
    ]
    noise = noise_of(groups)
    assert noise.freedom == 180
    assert noise.seen == pytest.approx(0.1, rel=0.15)


def test_noise_is_assumed_where_nothing_was_repeated() -> None:
    noise = noise_of([[a_window(1, 10.0)], [a_window(10, 50.0)]])
    assert noise.seen is None
    assert points_of([a_window(1, 10.0)], "text")["plain"][0].stderr == pytest.approx(0.5)


def test_a_window_without_a_second_one_is_taken_to_be_twice_as_uncertain_as_it_says() -> None:
    assert points_of([a_window(1, 10.0, stderr=0.1)], "text")["plain"][0].stderr == pytest.approx(0.2)


def test_repeats_overrule_a_window_that_thinks_itself_exact_but_not_one_that_knows_its_error() -> None:
    windows = [
        a_window(1, 90.0),
        a_window(1, 110.0, 1),
        a_window(10, 100.0, stderr=0.01),
        a_window(24, 100.0, stderr=30.0),
    ]
    one, ten, more = points_of(windows, "text")["plain"]
    seen = math.sqrt(2) * 0.1
    assert one.stderr == pytest.approx(100 * seen / math.sqrt(2))
    assert ten.stderr == pytest.approx(100 * seen)
    assert more.stderr == pytest.approx(30.0)


def test_few_repeats_leave_the_noise_itself_uncertain() -> None:
    rng = np.random.default_rng(0)
    few, many = (scales(Noise(0.1, freedom), 4000, rng) for freedom in (2, 200))
    assert np.percentile(few, 95) > 2.5
    assert np.percentile(many, 95) < 1.2
    assert scales(Noise(0.05, 0), 3, rng).tolist() == [1, 1, 1]


def through(points: list[MeasuredPoint], pool: SweptPool, loads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    curve = drawn(points, pool, loads, np.ones(1000), np.random.default_rng(0))
    return np.exp(curve.mean), np.exp(curve.draws)


LINE = np.union1d(np.arange(1.0, 257.0), LOADS)


@pytest.mark.parametrize("fit", ["h100-9b", "slow-verify"])
@pytest.mark.parametrize("route", ["text", "key-value", "table"])
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_between_exact_points_the_curve_is_within_two_percent_of_the_truth(
    fit: str, route: str, depth: int
) -> None:
    points = [
        MeasuredPoint(load, rate := true_rate(fit, route, depth, load), 1e-3 * rate, 2) for load in LOADS
    ]
    truth = np.array([true_rate(fit, route, depth, int(load)) for load in LINE])
    mean, _ = through(points, SweptPool(depth), LINE)
    inside = LINE >= 10
    assert np.max(np.abs(mean / truth - 1)[inside]) < 0.02


def test_draws_hold_the_truth_as_often_as_they_say() -> None:
    truth = np.array([true_rate("slow-verify", "table", 1, int(load)) for load in LINE])
    rng = np.random.default_rng(3)
    held = []
    for _ in range(40):
        points = [
            MeasuredPoint(load, truth[load - 1] * (1 + 0.1 * rng.standard_normal()), 0.1 * truth[load - 1], 1)
            for load in LOADS
        ]
        _, draws = through(points, SweptPool(1), LINE)
        low, high = np.percentile(draws, (2.5, 97.5), axis=0)
        held.append((low <= truth) & (truth <= high))
    assert np.mean(held) > 0.9


def test_an_engine_that_changes_its_depth_may_jump_there() -> None:
    ranges = ((1, 63, 3), (64, 4096, 0))
    points = [
        MeasuredPoint(load, rate := true_rate("h100-9b", "table", 3, load, ranges), 1e-3 * rate, 2)
        for load in (1, 10, 24, 32, 40, 60, 64, 80, 128, 256)
    ]
    loads = np.array([point.load for point in points] + [50, 100], dtype=float)
    loads.sort()
    mean, _ = through(points, SweptPool(3, ranges=ranges), loads)
    for load in (50, 100):
        truth = true_rate("h100-9b", "table", 3, load, ranges)
        assert mean[np.searchsorted(loads, load)] == pytest.approx(truth, rel=0.03)


def test_a_single_point_makes_a_curve_that_is_sure_of_it_and_of_little_else() -> None:
    mean, draws = through([MeasuredPoint(32, 1000.0, 10.0, 1)], SweptPool(0), LINE)
    spread = draws.std(axis=0) / mean
    assert mean[31] == pytest.approx(1000, rel=0.01)
    assert spread[31] < 0.02
    assert spread[255] > 0.3
