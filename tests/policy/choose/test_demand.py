import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.choose.demand import busy, counts, useful_load
from gateway.policy.choose.gain import Crossover, Curve, SpeedTable

NONE = Crossover(256, left=False)
DEEP = Curve([(1, 150), (10, 1200), (32, 2600), (40, 2700), (64, 2500), (128, 1500), (256, 900)])
PLAIN = Curve([(1, 60), (10, 600), (32, 1600), (64, 2600), (128, 3600), (256, 4400)])


def test_a_depth_that_another_beats_is_useful_up_to_the_crossover() -> None:
    table = SpeedTable([None], [Crossover(64, left=True)], 256)
    assert useful_load(table, 0) == 64


def test_a_depth_that_stays_best_is_useful_up_to_max_load() -> None:
    assert useful_load(SpeedTable([None], [NONE], 200), 0) == 200


def test_past_a_peak_that_is_certain_requests_wait_and_are_no_use() -> None:
    table = SpeedTable([PLAIN, DEEP], [NONE, Crossover(200, left=True)], 256)
    assert useful_load(table, 1) == table.cap([0, 1]) < 200
    assert useful_load(table, 0) == 256


def test_what_others_sent_is_taken_to_be_like_ours() -> None:
    assert counts([3, 1], 8, [0, 5]) == [6, 2]
    assert counts([0, 0], 8, [0, 5]) == [0, 8]
    assert counts([0, 0], 8, [0, 0]) == [4, 4]
    assert counts([0, 0], 0, [0, 0]) == [0, 0]


def test_an_engine_is_as_busy_as_its_profile_says() -> None:
    table = SpeedTable([PLAIN], [NONE], 256)
    assert busy(table, [256], [0]) == 0
    assert busy(table, [256], [64]) == pytest.approx(PLAIN.rate(64) / PLAIN.rate(256), rel=0.01)
    assert busy(table, [256], [256]) == 1


def test_without_a_profile_a_quarter_of_the_requests_is_most_of_the_work() -> None:
    table = SpeedTable([None, PLAIN], [NONE, NONE], 256)
    assert busy(table, [256, 256], [64, 0]) == pytest.approx(0.25 * 1.1 / 0.35)
    assert busy(table, [256, 256], [32, 32]) == pytest.approx(0.25 * 1.1 / 0.35)
    assert busy(table, [256, 256], [0, 64]) != pytest.approx(0.25 * 1.1 / 0.35)


def test_routes_share_an_engine_each_by_its_own_useful_load() -> None:
    table = SpeedTable([None, None], [NONE, NONE], 256)
    assert busy(table, [64, 192], [32, 96]) == 1
    assert busy(table, [64, 192], [64, 192]) == 2


LOADS = st.lists(st.integers(0, 300), min_size=2, max_size=2)


@given(LOADS, st.sampled_from([[None, None], [PLAIN, DEEP], [PLAIN, None]]), st.integers(1, 256))
def test_more_requests_never_make_an_engine_less_busy(
    requests: list[int], curves: list[Curve | None], useful: int
) -> None:
    table = SpeedTable(curves, [NONE, NONE], 256)
    most = [useful, table.cap([0, 1])]
    now = busy(table, most, requests)
    assert 0 <= now <= max(1, sum(requests) / min(most))
    assert busy(table, most, [2 * count for count in requests]) >= now - 1e-9
