from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.choice.fleet import ROUTES, Pool
from bench.choice.sweep import (
    FITS,
    LOADS,
    Sweep,
    alone,
    engine_schedule,
    measured,
    model_rate,
    needed,
)
from bench.choice.trace import fleet_of
from gateway.config.schema import check_ranges

DEEP, SHALLOW, PLAIN = Pool("deep", 3), Pool("shallow", 1), Pool("plain", 0)
POOLS = (DEEP, SHALLOW, PLAIN)


def sweep(fit: str = "h100-9b") -> Sweep:
    keys = needed([fleet_of((3, 1, 0, 0))])
    return Sweep(
        fit,
        {key: model_rate(fit, key[1], key[2], alone(ROUTES.index(key[0]), key[3])) for key in keys},
    )


def test_a_short_window_measures_the_model() -> None:
    assert measured("h100-9b", "table", 3, (), 40) == pytest.approx(
        model_rate("h100-9b", 3, (), (0, 0, 40)), rel=0.05
    )


@pytest.mark.parametrize("fit", FITS)
def test_engines_turn_plain_where_that_wins(fit: str) -> None:
    (_, last, deep), (first, _, plain) = engine_schedule(fit)
    assert (deep, plain) == (3, 0)
    assert first == last + 1
    gains = {
        load: sum(
            model_rate(fit, 3, (), alone(place, load)) / model_rate(fit, 0, (), alone(place, load)) - 1
            for place in range(3)
        )
        for load in (first - 5, first + 5)
    }
    assert gains[first - 5] > 0 > gains[first + 5]


@given(st.integers(0, 1000), st.sampled_from(ROUTES))
def test_noise_is_five_percent_and_follows_the_seed(seed: int, route: str) -> None:
    found = sweep()
    noisy = found.curve(route, DEEP, seed)
    assert noisy == found.curve(route, DEEP, seed)
    for (load, rate), (_, exact) in zip(noisy, found.curve(route, DEEP), strict=True):
        assert load in LOADS
        assert rate == pytest.approx(exact, rel=0.3)
        assert rate != exact


@given(st.integers(0, 1000), st.sampled_from(ROUTES), st.sampled_from(FITS))
def test_schedules_are_ranges_that_a_configuration_takes(seed: int, route: str, fit: str) -> None:
    ranges = sweep(fit).schedule(route, POOLS, seed)
    check_ranges(ranges)
    assert ranges[0][0] == 1
    assert {depth for _, _, depth in ranges} <= {0, 1, 3}


def test_weights_make_up_for_what_a_token_costs() -> None:
    weights = sweep().weights(POOLS, 1, 1.0)
    assert weights["table"] == 1.0
    assert weights["text"] > weights["key-value"] > 1.0
    assert set(sweep().weights(POOLS, 1, 0.0).values()) == {1.0}
