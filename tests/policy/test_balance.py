from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model import Engine
from gateway.policy.balance import Choice, EngineView, Fitness, choose
from gateway.policy.breaker import Breaker, Phase, Rules

RULES = Rules(failures=5, open_s=10, probes=2)


def view(name: str, gain: float = 1.0, load: int = 0, **more: Any) -> EngineView:
    engine = Engine(name, f"http://{name}", "pool", 0)
    return EngineView(
        engine, **{"up": True, "ours": load, "load": load, "gains": (gain,), "cap": 100, "share": 100, **more}
    )


def chosen(*views: EngineView, now: float = 0.0, avoid: str | None = None, seed: int = 0) -> Choice:
    return choose(views, 0, now=now, rules=RULES, rng=Random(seed), avoid=avoid)


def name(choice: Choice) -> str | None:
    return choice.view.engine.name if choice.view else None


def test_the_largest_gain_wins() -> None:
    assert name(chosen(view("a", 1), view("b", 3, 50), view("c", 2))) == "b"


def test_ties_go_to_the_least_loaded() -> None:
    assert name(chosen(view("a", 3, 9), view("b", 3 + 1e-9, 8), view("c", 2))) == "b"
    assert name(chosen(view("b", 3 + 1e-9, 8), view("a", 3, 9))) == "b"


def test_then_to_chance() -> None:
    assert {name(chosen(view("a"), view("b"), seed=seed)) for seed in range(20)} == {"a", "b"}


def test_what_has_failed_the_request_is_avoided() -> None:
    assert name(chosen(view("a", 9), view("b", 1), avoid="a")) == "b"
    assert chosen(view("a", 9), avoid="a").reason is Fitness.DOWN


@pytest.mark.parametrize(
    ("unfit", "reason"),
    [
        (view("a", up=False), Fitness.DOWN),
        (view("a", up=False, known=False), Fitness.RESTING),
        (view("a", load=100), Fitness.HELD),
        (view("a", rests_until=5.0), Fitness.RESTING),
        (view("a", breaker=Breaker(Phase.OPEN, since=0.0)), Fitness.RESTING),
        (view("a", load=2, fresh=2, breaker=Breaker(Phase.HALF_OPEN)), Fitness.RESTING),
        (view("a", load=40, fresh=40, back_since=0.5), Fitness.RESTING),
    ],
)
def test_no_request_goes_to_an_engine_that_may_not_take_it(unfit: EngineView, reason: Fitness) -> None:
    alone = chosen(unfit, now=1.0)
    assert (alone.view, alone.reason) == (None, reason)
    assert name(chosen(unfit, view("b", -5.0, 99), now=1.0)) == "b"


def test_requests_from_before_an_engines_trouble_do_not_count() -> None:
    assert name(chosen(view("a", load=2, breaker=Breaker(Phase.HALF_OPEN)))) == "a"
    assert name(chosen(view("a", load=40, back_since=0.5), now=1.0)) == "a"


def test_it_comes_back_with_time() -> None:
    for unfit, later in (
        (view("a", rests_until=5.0), 5.0),
        (view("a", breaker=Breaker(Phase.OPEN, since=0.0)), 10.0),
        (view("a", load=40, fresh=40, back_since=0.5), 4.0),
    ):
        assert name(chosen(unfit, now=later)) == "a"


def test_a_replica_keeps_its_share_of_a_full_engine() -> None:
    full = view("a", load=100, share=50)
    assert chosen(full).reason is Fitness.HELD
    assert name(chosen(replace(full, ours=49))) == "a"


def test_a_crowd_comes_to_a_newcomer_by_and_by() -> None:
    newcomer, others = view("new", 9.0, back_since=0.0), [view(f"old{n}", 1.0, 20) for n in range(3)]
    taken = 0
    for _ in range(128):
        if name(chosen(replace(newcomer, ours=taken, fresh=taken, load=taken), *others)) == "new":
            taken += 1
    assert taken == 8


def test_a_held_engine_is_the_best_hope() -> None:
    assert chosen(view("a", up=False), view("b", load=100), view("c", rests_until=9)).reason is Fitness.HELD
    assert chosen(view("a", up=False), view("c", rests_until=9)).reason is Fitness.RESTING
    assert chosen().reason is Fitness.DOWN


def test_a_choice_explains_itself() -> None:
    choice = chosen(view("a", 1, 4), view("b", 3, 50), view("c", up=False))
    assert choice.candidates(0.0, RULES) == [
        ("b", 3, 50, Fitness.FREE),
        ("a", 1, 4, Fitness.FREE),
        ("c", 1.0, 0, Fitness.DOWN),
    ]


@given(
    st.lists(st.tuples(st.floats(-1e4, 1e4), st.integers(0, 120), st.booleans()), max_size=8),
    st.integers(0, 9),
)
def test_only_a_free_engine_with_a_best_gain_is_chosen(
    engines: list[tuple[float, int, bool]], seed: int
) -> None:
    views = [view(str(n), gain, load, up=up) for n, (gain, load, up) in enumerate(engines)]
    choice = chosen(*views, seed=seed)
    free = [each for each in views if each.up and each.load < 100]
    assert (choice.view is None) == (not free)
    if choice.view:
        best = max(each.gains[0] for each in free)
        assert choice.view in free
        assert choice.view.gains[0] >= best - 1e-5 * abs(best) - 1e-9
