import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.account.pace import MeanTokens, Pace


def test_nothing_is_written_at_first() -> None:
    assert Pace(100).rate(100) == 0
    assert Pace(100).rate(1000) == 0


@pytest.mark.parametrize("seconds", [5, 30, 300])
def test_a_steady_pace_is_told_from_the_first_seconds_on(seconds: int) -> None:
    pace = Pace(100)
    for now in range(101, 101 + seconds):
        pace = pace.after(tokens=80, now=now)
    assert pace.rate(100 + seconds) == pytest.approx(80, rel=0.15)


def test_one_answer_at_the_very_start_is_no_burst() -> None:
    assert Pace(100).after(300, 100.001).rate(100.001) == 300


def test_the_latest_half_minute_counts_most_and_silence_counts() -> None:
    pace = Pace(0)
    for now in range(1, 101):
        pace = pace.after(10, now)
    for now in range(101, 201):
        pace = pace.after(200, now)
    assert pace.rate(200) == pytest.approx(200, rel=0.05)
    assert pace.rate(290) == pytest.approx(10, rel=0.05)


def test_a_route_that_has_not_answered_is_guessed_and_the_guess_soon_forgotten() -> None:
    mean = MeanTokens()
    assert mean.tokens == 256
    for _ in range(60):
        mean = mean.after(700)
    assert mean.tokens == pytest.approx(700, rel=0.02)


def test_the_mean_follows_a_change_but_not_one_answer() -> None:
    mean = MeanTokens(60.0, 1000)
    assert mean.after(4000).tokens < 300
    for _ in range(100):
        mean = mean.after(700)
    assert mean.tokens == pytest.approx(700, rel=0.02)


@given(st.lists(st.integers(-5, 10**400), max_size=30))
def test_no_engine_makes_its_route_free_or_endless(lengths: list[int]) -> None:
    mean = MeanTokens()
    for length in lengths:
        mean = mean.after(length)
        assert 1 <= mean.tokens <= 1_000_000
