from __future__ import annotations

import math

import numpy as np
import pytest

from gateway.policy.choose import composition
from gateway.policy.choose.composition import advise, compositions, own_schedule
from gateway.policy.choose.fleet_model import EngineKind, LoadHistogram
from gateway.policy.choose.gain import Curve
from tests.policy.choose.test_fleet_model import DEEP, LOADS, MAX, ONE, PLAIN, STURDY, TWO, curve, load, model


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
    vague = model(
        EngineKind("deep", (curve(0.004, 1e-4, 4e-6, error=0.5),)),
        EngineKind("plain", (curve(0.010, 5e-5, 1e-7, error=0.5),)),
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
    only = model(EngineKind("deep", (STURDY[0], None)), EngineKind("plain", (None, PLAIN)))
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
    only = model(EngineKind("deep", (STURDY[0], None)), EngineKind("plain", (None, PLAIN)))
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
    assert (
        own_schedule((EngineKind("deep", (DEEP,)), EngineKind("auto", (scheduled,))), load((1, 20))) is None
    )
    assert own_schedule((EngineKind("deep", (DEEP,)),), load((1, 20))) is None


@pytest.mark.parametrize(("kinds", "engines"), [(1, 4), (2, 3), (3, 4), (4, 2)])
def test_every_composition_comes_once(kinds: int, engines: int) -> None:
    found = list(compositions(kinds, engines))
    assert len(set(found)) == len(found) == math.comb(engines + kinds - 1, engines)
    assert all(sum(fleet) == engines and len(fleet) == kinds for fleet in found)


@pytest.mark.parametrize("breathing", [load((9, 6), (1, 500)), load((1, 6))])
def test_a_search_of_many_compositions_finds_what_trying_all_does(
    breathing: LoadHistogram, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = advise(ONE, breathing, 6, np.random.default_rng(1))
    monkeypatch.setattr(composition, "_EXHAUSTIVE", 1)
    searched = advise(ONE, breathing, 6, np.random.default_rng(1))
    assert searched.best.fleet == whole.best.fleet
    assert searched.best.rate == whole.best.rate
    assert {(6, 0), (0, 6)} <= {rival.outcome.fleet for rival in searched.rivals} | {searched.chosen.fleet}
