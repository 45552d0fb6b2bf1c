from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.policy.choose import composition
from gateway.policy.choose.composition import Kind, Load, Market, advise, compositions, own_schedule
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


def load(*rows: tuple[float, ...]) -> Load:
    """Rows of a weight, then requests by route."""
    table = np.array(rows, dtype=float)
    return Load(table[:, 0] / table[:, 0].sum(), table[:, 1:])


def market(*kinds: Kind, worth: tuple[float, ...] | None = None) -> Market:
    return Market(kinds, MAX, worth or (1.0,) * len(kinds[0].curves))


ONE = market(Kind("deep", (DEEP,)), Kind("plain", (PLAIN,)))
TWO = market(Kind("deep", (STURDY[0], DEEP)), Kind("plain", (STURDY[1], PLAIN)))


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


def test_few_requests_want_depth_and_a_crowd_does_not() -> None:
    quiet = advise(ONE, load((1, 4)), 2, np.random.default_rng(1))
    crowd = advise(ONE, load((1, 300)), 2, np.random.default_rng(1))
    assert quiet.chosen.fleet == (2, 0)
    assert crowd.chosen.fleet == (0, 2)
    assert quiet.rivals[-1].outcome.fleet == (0, 2)
    assert quiet.rivals[-1].gain > 0.5
    assert quiet.rivals[-1].sure == 1
    assert quiet.rivals[-1].low < quiet.rivals[-1].gain < quiet.rivals[-1].high
    assert quiet.compositions == 3


def test_load_that_breathes_wants_both() -> None:
    advice = advise(ONE, load((9, 3), (1, 200)), 2, np.random.default_rng(1))
    assert advice.chosen.fleet == (1, 1)
    bands = {(band.first, band.last): band for band in advice.bands}
    assert bands[3, 3].best == (2, 0)
    assert bands[3, 3].time == pytest.approx(0.9)
    assert bands[200, 200].best == (0, 2)
    assert 0 < bands[200, 200].regret < 0.5
    mean = sum(band.time * band.rate for band in advice.bands)
    assert mean == pytest.approx(advice.chosen.rate)


def test_time_without_requests_brings_nothing_and_is_in_no_band() -> None:
    whole = advise(ONE, load((1, 10)), 1, np.random.default_rng(1))
    half = advise(ONE, load((1, 10), (1, 0)), 1, np.random.default_rng(1))
    assert half.chosen.rate == pytest.approx(whole.chosen.rate / 2)
    assert [band.time for band in half.bands] == [0.5]


def test_of_fleets_that_cannot_be_told_apart_the_simpler_is_recommended() -> None:
    # As above, where mixing wins - but so uncertain that nobody knows.
    vague = market(
        Kind("deep", (curve(0.004, 1e-4, 4e-6, error=0.5),)),
        Kind("plain", (curve(0.010, 5e-5, 1e-7, error=0.5),)),
    )
    breathing = load((9, 3), (1, 200))
    advice = advise(vague, breathing, 2, np.random.default_rng(1))
    assert advice.best.fleet == (1, 1)
    assert advice.chosen.fleet in {(2, 0), (0, 2)}
    best = next(rival for rival in advice.rivals if rival.outcome is advice.best)
    assert best.gain < 0
    assert best.low < 0 < best.high


def test_the_same_generator_gives_the_same_advice() -> None:
    first, second = (advise(ONE, load((3, 5), (1, 100)), 2, np.random.default_rng(7)) for _ in range(2))
    assert [rival.sure for rival in first.rivals] == [rival.sure for rival in second.rivals]
    assert [rival.low for rival in first.rivals] == [rival.low for rival in second.rivals]


def test_routes_that_spoil_each_other_are_kept_apart() -> None:
    advice = advise(TWO, load((1, 160, 160)), 2, np.random.default_rng(1))
    assert advice.chosen.fleet == (1, 1)
    (band,) = advice.bands
    assert band.apart > 0.05
    assert set(band.shared) == {(0, 1, (0,)), (1, 1, (1,))}


def test_equal_engines_keep_routes_apart_too() -> None:
    outcome = TWO.outcome((2, 0), load((1, 160, 60)))
    assert outcome is not None
    assert outcome.rate > TWO.alike(outcome, load((1, 160, 60)))[0] * 1.02


def test_what_a_token_is_worth_counts() -> None:
    dear = market(*TWO.kinds, worth=(5.0, 1.0))
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


def test_fewer_and_more_engines_and_how_many_are_enough() -> None:
    advice = advise(ONE, load((1, 20), (1, 2 * MAX + 50)), 2, np.random.default_rng(1))
    fewer, same, more = advice.sizes
    assert [sum(size.outcome.fleet) for size in advice.sizes] == [1, 2, 3]
    assert fewer.outcome.rate < same.outcome.rate < more.outcome.rate
    assert fewer.held == same.held == pytest.approx(0.5)
    assert more.held == 0
    assert advice.enough == (0, 3)


def test_one_engine_has_no_smaller_fleet() -> None:
    advice = advise(ONE, load((1, 20)), 1, np.random.default_rng(1))
    assert [sum(size.outcome.fleet) for size in advice.sizes] == [1, 2]


def test_nothing_is_enough_for_a_crowd_that_no_fleet_holds() -> None:
    advice = advise(ONE, load((1, MAX * 2000)), 1, np.random.default_rng(1))
    assert advice.enough is None
    assert advice.chosen.waiting[0] > 0


def test_a_route_goes_only_where_it_was_measured() -> None:
    only = market(Kind("deep", (STURDY[0], None)), Kind("plain", (None, PLAIN)))
    population = load((1, 30, 30))
    assert only.outcome((2, 0), population) is None
    advice = advise(only, population, 2, np.random.default_rng(1))
    assert [advice.chosen.fleet, *(rival.outcome.fleet for rival in advice.rivals)] == [(1, 1)]
    assert advice.chosen.splits.tolist() == [[[30, 0], [0, 30]]]
    assert advice.bands[0].apart == 0
    assert advice.own is None
    assert advice.enough is None
    # With one engine, nobody serves both.
    with pytest.raises(ValueError, match="no fleet of 1"):
        advise(only, population, 1, np.random.default_rng(1))


def test_the_size_below_may_serve_nobody() -> None:
    only = market(Kind("deep", (STURDY[0], None)), Kind("plain", (None, PLAIN)))
    advice = advise(only, load((1, 30, 30)), 2, np.random.default_rng(1))
    assert [sum(size.outcome.fleet) for size in advice.sizes] == [2, 3]


def test_an_engine_s_own_schedule_is_the_best_depth_at_each_load() -> None:
    steady = load((1, 20))
    kind = own_schedule(ONE.kinds, steady)
    assert kind is not None
    (merged,) = kind.curves
    assert merged is not None
    (change,) = merged.breaks
    assert DEEP.rate(change - 1) >= PLAIN.rate(change - 1)
    assert DEEP.rate(change) <= PLAIN.rate(change)
    for n in (1, 10, change - 1, change, 100, 256):
        assert merged.rate(n) == pytest.approx(max(DEEP.rate(n), PLAIN.rate(n)), rel=0.02)
    advice = advise(ONE, load((9, 3), (1, 200)), 2, np.random.default_rng(1))
    assert advice.own is not None
    assert advice.own.rate >= advice.chosen.rate


def test_all_routes_of_an_engine_change_their_depth_together() -> None:
    changes = []
    for steady in (load((1, 20, 0)), load((1, 20, 20)), load((1, 0, 20))):
        kind = own_schedule(TWO.kinds, steady)
        changes.append([curve and curve.breaks for curve in kind.curves] if kind else None)
    # Alone, the sturdy route would never leave the depth.
    assert changes[0] is None
    assert changes[1] is not None
    assert changes[1][0] == changes[1][1]
    assert changes[2] is not None
    assert changes[2][0] is None


def test_there_is_nothing_to_estimate_where_it_was_measured_or_one_depth_wins() -> None:
    scheduled = Curve([(n, PLAIN.rate(n)) for n in LOADS], [24])
    assert own_schedule((Kind("deep", (DEEP,)), Kind("auto", (scheduled,))), load((1, 20))) is None
    assert own_schedule((Kind("deep", (DEEP,)),), load((1, 20))) is None


@pytest.mark.parametrize(("kinds", "engines"), [(1, 4), (2, 3), (3, 4), (4, 2)])
def test_every_composition_comes_once(kinds: int, engines: int) -> None:
    found = list(compositions(kinds, engines))
    assert len(set(found)) == len(found) == math.comb(engines + kinds - 1, engines)
    assert all(sum(fleet) == engines and len(fleet) == kinds for fleet in found)


@pytest.mark.parametrize("breathing", [load((9, 6), (1, 500)), load((1, 6))])
def test_a_search_of_many_compositions_finds_what_trying_all_does(
    breathing: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = advise(ONE, breathing, 6, np.random.default_rng(1))
    monkeypatch.setattr(composition, "_EXHAUSTIVE", 1)
    searched = advise(ONE, breathing, 6, np.random.default_rng(1))
    assert searched.best.fleet == whole.best.fleet
    assert searched.best.rate == whole.best.rate
    assert {(6, 0), (0, 6)} <= {rival.outcome.fleet for rival in searched.rivals} | {searched.chosen.fleet}


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
    kinds = (Kind("deep", (STURDY[0], DEEP) * 3), Kind("plain", (STURDY[1], PLAIN) * 3))
    many = market(*kinds)
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
