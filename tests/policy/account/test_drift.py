import pytest

from gateway.policy.account.drift import Drift


def test_nothing_is_known_at_first() -> None:
    assert Drift().rate == 0
    assert Drift().ratio is None


def test_live_against_promise() -> None:
    drift = Drift()
    for _ in range(50):
        drift = drift.after(tokens=80, seconds=1, promised_rate=100)
    assert drift.rate == pytest.approx(80)
    assert drift.ratio == pytest.approx(0.8)


@pytest.mark.parametrize(("tokens", "off"), [(60, True), (75, False), (140, False), (160, True)])
def test_a_profile_that_no_longer_fits_is_noticed_after_a_while(tokens: int, off: bool) -> None:
    drift, seen = Drift(), []
    for _ in range(80):
        drift = drift.after(tokens, 1, 100)
        seen.append(drift.off)
    assert not any(seen[:20])
    assert seen[-1] is off


def test_few_tokens_are_no_drift() -> None:
    drift = Drift()
    for _ in range(200):
        drift = drift.after(1, 1, 9)
    assert not drift.off


def test_the_latest_half_minute_counts_most() -> None:
    drift = Drift()
    for tokens in [10] * 100 + [200] * 100:
        drift = drift.after(tokens, 1, None)
    assert drift.rate == pytest.approx(200, rel=0.05)


def test_time_without_a_promise_does_not_count_against_it() -> None:
    drift = Drift()
    for _ in range(20):
        drift = drift.after(100, 1, 100).after(5000, 1, None)
    assert drift.ratio == pytest.approx(1, rel=0.1)
    assert Drift().after(50, 1, 0.0).ratio is None
