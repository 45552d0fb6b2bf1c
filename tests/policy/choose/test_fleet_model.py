from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.policy.choose.fleet_model import EngineKind, FleetModel, LoadHistogram
from gateway.policy.choose.gain import Crossover, Curve, SpeedTable

LOADS = (1, 4, 10, 24, 40, 64, 100, 160, 256)
MAX = 256


def curve(constant: float, linear: float, square: float = 0.0, error: float = 0.01) -> Curve:
    return Curve(
        [
            (
                n,
                n / (constant + linear * n + square * n * n),
                error * n / (constant + linear * n + square * n * n),
            )
            for n in LOADS
        ]
    )


# Deep wins with few requests and collapses in a crowd; plain bears one.
DEEP = curve(0.004, 1e-4, 4e-6)
PLAIN = curve(0.010, 5e-5, 1e-7)
# Of another route that bears a crowd on either.
STURDY = (curve(0.004, 4e-4), curve(0.012, 6e-4))


def load(*rows: tuple[float, ...]) -> LoadHistogram:
    """Rows of a weight, then requests by route."""
    table = np.array(rows, dtype=float)
    return LoadHistogram(table[:, 0] / table[:, 0].sum(), table[:, 1:])


def model(*kinds: EngineKind, worth: tuple[float, ...] | None = None) -> FleetModel:
    return FleetModel(kinds, MAX, worth or (1.0,) * len(kinds[0].curves))


ONE = model(EngineKind("deep", (DEEP,)), EngineKind("plain", (PLAIN,)))
TWO = model(EngineKind("deep", (STURDY[0], DEEP)), EngineKind("plain", (STURDY[1], PLAIN)))


def table(curves: tuple[Curve | None, ...]) -> SpeedTable:
    return SpeedTable(curves, [Crossover(MAX, left=False)] * len(curves), MAX)


def exhaustive(fleet: tuple[int, ...], requests: int) -> float:
    """The best split of one route's requests, by trying all."""
    tables = [table((one,)) for one, count in zip((DEEP, PLAIN), fleet, strict=True) for _ in range(count)]
    if len(tables) == 1:
        return tables[0].rate([requests])
    return max(
        sum(
            one.rate([count])
            for one, count in zip(tables, np.diff([0, *bars, requests]).tolist(), strict=True)
        )
        for bars in itertools.combinations_with_replacement(range(requests + 1), len(tables) - 1)
    )


@pytest.mark.parametrize("fleet", [(1, 1), (2, 0), (0, 2), (2, 1)])
@pytest.mark.parametrize("requests", [1, 6, 40, 90])
def test_a_population_is_worth_its_best_split(fleet: tuple[int, ...], requests: int) -> None:
    outcome = ONE.outcome(fleet, load((1, requests)))
    assert outcome is not None
    # A request may be on an engine for a part of the time.
    assert outcome.rate == pytest.approx(exhaustive(fleet, requests), rel=0.02)
    assert outcome.splits.sum() == pytest.approx(requests)
    assert outcome.waiting.tolist() == [0]


def test_equal_engines_keep_routes_apart_too() -> None:
    outcome = TWO.outcome((2, 0), load((1, 160, 60)))
    assert outcome is not None
    assert outcome.rate > TWO.equal_mix_rates(outcome, load((1, 160, 60)))[0] * 1.02


def test_what_a_token_is_worth_counts() -> None:
    dear = model(*TWO.kinds, worth=(5.0, 1.0))
    crowd = load((1, 160, 160))
    cheap_rate, dear_rate = TWO.outcome((1, 1), crowd), dear.outcome((1, 1), crowd)
    assert cheap_rate is not None
    assert dear_rate is not None
    assert dear_rate.rate > 1.5 * cheap_rate.rate


def test_requests_wait_only_where_no_engine_has_a_place() -> None:
    one = ONE.outcome((1, 0), load((1, 200)))
    both = ONE.outcome((1, 1), load((1, 200)))
    assert one is not None
    assert both is not None
    cap = table((DEEP,)).cap([1])
    assert cap < 100
    assert one.waiting[0] == pytest.approx(200 - cap)
    assert one.rate == pytest.approx(table((DEEP,)).rate([cap]), rel=0.01)
    assert both.waiting[0] == pytest.approx(0, abs=0.01)


def test_many_engines_are_moved_in_groups_and_none_is_lost() -> None:
    large = load((1, 600))
    outcome = ONE.outcome((13, 8), large)
    small = ONE.outcome((2, 1), load((1, 600 * 3 / 21)))
    assert outcome is not None
    assert small is not None
    assert outcome.engines.sum() == 21
    assert len(outcome.engines) < 10
    assert outcome.engines[outcome.kinds == 0].sum() == 13
    assert outcome.splits.sum() == pytest.approx(600)
    assert outcome.rate == pytest.approx(small.rate * 7, rel=0.05)


def test_many_routes_are_split_as_well() -> None:
    kinds = (EngineKind("deep", (STURDY[0], DEEP) * 3), EngineKind("plain", (STURDY[1], PLAIN) * 3))
    many = model(*kinds)
    population = load((1, 50, 50, 40, 40, 30, 30))
    outcome = many.outcome((1, 1), population)
    assert outcome is not None
    assert outcome.splits.sum(axis=1)[0].tolist() == pytest.approx([50, 50, 40, 40, 30, 30])
    # Whatever they are called: two routes in three parts each are two routes.
    two = TWO.outcome((1, 1), load((1, 120, 120)))
    assert two is not None
    assert outcome.rate == pytest.approx(two.rate, rel=0.05)


@settings(max_examples=20)
@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 2), st.integers(0, 2))
@example(188, 74, 1, 0)
def test_nobody_is_lost_and_more_engines_never_write_less(a: int, b: int, deep: int, plain: int) -> None:
    population = load((1, a, b))
    less, more = TWO.outcome((deep + 1, plain), population), TWO.outcome((deep + 1, plain + 1), population)
    assert less is not None
    assert more is not None
    for outcome in (less, more):
        served = outcome.splits.sum(axis=1)[0]
        assert served.sum() + outcome.waiting[0] == pytest.approx(a + b)
        assert (outcome.splits >= 0).all()
        assert outcome.waiting[0] >= -1e-6
        # Who waits is no choice: each route waits like the other, but for what the search leaves undecided.
        even = np.array([a, b]) * served.sum() / max(a + b, 1)
        assert served == pytest.approx(even, rel=0.05, abs=(a + b) / 40)
    assert more.rate >= less.rate * 0.97
