from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.admit.token_bucket import Bucket

LIMITS = st.integers(1, 10**12)
# Gaps between requests in seconds, on a clock that has run for up to years.
GAPS = st.floats(0, 300, allow_subnormal=False)


def test_a_minutes_worth_may_be_taken_at_once_and_comes_back_evenly() -> None:
    bucket = Bucket.full(60, 0.0)
    for _ in range(60):
        taken = bucket.taken(1, 0.0)
        assert taken
        bucket = taken
    assert bucket.taken(1, 0.5) is None
    assert bucket.wait_s(1, 0.5) == pytest.approx(0.5)
    assert bucket.taken(1, 1.0)
    assert bucket.reset_s(15.0) == pytest.approx(45)
    assert bucket.filled(1000.0) == Bucket.full(60, 1000.0)


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = Bucket(60, 0.0, 100.0)
    assert bucket.filled(50.0) is bucket
    assert bucket.taken(1, 50.0) is None


@pytest.mark.parametrize(("limit", "left"), [(200, 110), (50, 0), (100, 10)])
def test_what_has_been_used_counts_against_another_limit(limit: int, left: float) -> None:
    bucket = Bucket(100, 10.0, 5.0)
    assert bucket.limited(limit, 5.0) == Bucket(limit, left, 5.0)


@given(LIMITS, st.floats(0, 1e8), st.lists(st.tuples(GAPS, st.floats(0, 1)), max_size=40))
def test_no_more_than_a_minutes_worth_and_the_rate_ever_passes(
    limit: int, start: float, asks: list[tuple[float, float]]
) -> None:
    bucket, now, passed = Bucket.full(limit, start), start, 0
    for gap, share in asks:
        now += gap
        amount = max(1, int(limit * share))
        if taken := bucket.taken(amount, now):
            bucket, passed = taken, passed + amount
        assert 0 <= bucket.left <= limit
    assert passed <= limit * (1 + (now - start) / 60) * (1 + 1e-6)


@given(LIMITS, st.floats(0, 1e7), st.floats(0, 1), st.floats(0, 1))
def test_who_waits_as_long_as_told_gets_in_and_a_second_before_does_not(
    limit: int, now: float, left: float, share: float
) -> None:
    bucket, amount = Bucket(limit, limit * left, now), max(1, int(limit * share))
    wait_s = bucket.wait_s(amount, now)
    assert 0 <= wait_s <= 60
    assert bucket.taken(amount, now + wait_s)
    if wait_s > 1:
        assert bucket.taken(amount, now + wait_s - 1) is None
