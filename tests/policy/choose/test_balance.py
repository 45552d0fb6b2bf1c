import math
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.model import Engine
from gateway.policy.choose.balance import Board, Choice, EngineView, Fitness
from gateway.policy.fail.breaker import Breaker, Phase, Rules

RULES = Rules(failures=5, open_s=10, probes=2)


def view(name: str, gain: float = 1.0, load: int = 0, *, pool: str = "pool", **more: Any) -> EngineView:
    engine = Engine(name, f"http://{name}", pool, 0)
    return EngineView(
        engine, **{"up": True, "ours": load, "load": load, "gains": (gain,), "cap": 100, "share": 100, **more}
    )


def chosen(*views: EngineView, now: float = 0.0, avoid: str | None = None, seed: int = 0) -> Choice:
    board = Board(views, [(True,)] * len(views), 1)
    return board.choose(0, now=now, rules=RULES, rng=Random(seed), avoid=avoid)


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


@given(
    rests_until=st.floats(0, 30),
    breaker=st.builds(Breaker, st.sampled_from(Phase), since=st.floats(0, 30)),
    back_since=st.floats(0, 30),
    fresh=st.integers(0, 600),
    now=st.floats(0, 50),
)
def test_it_is_known_when_time_makes_it_available(
    rests_until: float, breaker: Breaker, back_since: float, fresh: int, now: float
) -> None:
    unfit = view("a", rests_until=rests_until, breaker=breaker, back_since=back_since, fresh=fresh)
    at = unfit.available_at(now, RULES)
    if at == math.inf:
        later = [unfit.fitness(now + seconds, RULES) for seconds in (0.0, 0.5, 3.0, 100.0)]
        assert len(set(later)) == 1
    else:
        assert at > now
        before, after = unfit.fitness(math.nextafter(at, 0.0), RULES), unfit.fitness(at, RULES)
        assert before is Fitness.RESTING
        # A half-open breaker waits for its probes.
        probing = breaker.at(at, RULES).phase is Phase.HALF_OPEN and fresh >= RULES.probes
        assert after is (Fitness.RESTING if probing else Fitness.FREE)


def test_a_board_knows_which_is_available_first() -> None:
    views = [
        view("a", rests_until=5.0),
        view("b", breaker=Breaker(Phase.OPEN, since=-6.0)),
        view("c", up=False, rests_until=2.0),
        view("d"),
    ]
    board = Board(views, [(True,)] * len(views), 1)
    assert board.available_at(0.0, RULES) == 4.0
    assert board.available_at(4.0, RULES) == 5.0
    assert board.available_at(5.0, RULES) == math.inf


def test_a_replica_keeps_its_share_of_a_full_engine() -> None:
    full = view("a", load=100, share=50)
    assert chosen(full).reason is Fitness.HELD
    assert name(chosen(full._replace(ours=49))) == "a"


def test_a_crowd_comes_to_a_newcomer_by_and_by() -> None:
    newcomer, others = view("new", 9.0, back_since=0.0), [view(f"old{n}", 1.0, 20) for n in range(3)]
    taken = 0
    for _ in range(128):
        if name(chosen(newcomer._replace(ours=taken, fresh=taken, load=taken), *others)) == "new":
            taken += 1
    assert taken == 8


def test_a_held_engine_is_the_best_hope() -> None:
    assert chosen(view("a", up=False), view("b", load=100), view("c", rests_until=9)).reason is Fitness.HELD
    assert chosen(view("a", up=False), view("c", rests_until=9)).reason is Fitness.RESTING
    assert chosen().reason is Fitness.DOWN


def test_a_choice_explains_itself() -> None:
    views = view("a", 1, 4), view("b", 3, 50), view("c", up=False), view("other", 9)
    board = Board(views, [(True,), (True,), (True,), (False,)], 1)
    assert board.candidates(0, 0.0, RULES) == [
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


def asked_each(
    views: Sequence[EngineView],
    route: int,
    now: float,
    rng: Random,
    avoid: str | None = None,
    rules: Rules = RULES,
) -> tuple[EngineView | None, Fitness]:
    """The rule as it reads: every engine is asked, and the best one taken."""
    best: list[EngineView] = []
    low, high = -math.inf, -math.inf
    asked = [view for view in views if view.engine.name != avoid]
    for view in asked:
        if view.fitness(now, rules) is not Fitness.FREE:
            continue
        gain = view.gains[route]
        if gain < low:
            continue
        if gain > high or view.load < best[0].load:
            best = [view]
            low, high = gain - 1e-6 * abs(gain), gain + 1e-6 * abs(gain)
        elif view.load == best[0].load:
            best.append(view)
    if best:
        return best[0] if len(best) == 1 else rng.choice(best), Fitness.FREE
    reasons = {view.fitness(now, rules) for view in asked}
    hope = next((reason for reason in (Fitness.HELD, Fitness.RESTING) if reason in reasons), Fitness.DOWN)
    return None, hope


ROUTES = 3
# Equal, but for what rounding makes of it.
gains = st.builds(
    lambda gain, noise: gain * (1 + noise * 1e-15),
    st.sampled_from([-3.5, -1.0, 0.0, 0.1, 7.0, 1234.5]),
    st.integers(-3, 3),
)
stands: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    up=st.sampled_from([True, True, True, False]),
    known=st.booleans(),
    ours=st.integers(0, 4),
    fresh=st.integers(0, 12),
    load=st.integers(0, 5),
    gains=st.tuples(*[gains] * ROUTES),
    cap=st.integers(1, 6),
    share=st.integers(1, 6),
    breaker=st.builds(Breaker, phase=st.sampled_from(Phase), since=st.floats(0, 30)),
    rests_until=st.sampled_from([-math.inf, 5.0, 20.0]),
    back_since=st.sampled_from([-math.inf, 0.0, 12.0]),
)
calm = stands.map(
    lambda stand: {
        **stand,
        "up": True,
        "breaker": Breaker(),
        "rests_until": -math.inf,
        "back_since": -math.inf,
    }
)
steps = st.tuples(st.integers(0, 7), st.one_of(stands, calm), st.integers(0, ROUTES - 1), st.floats(0, 9))


@settings(max_examples=60)
@given(
    st.lists(st.tuples(*[st.booleans()] * ROUTES), min_size=8, max_size=8),
    st.lists(steps, max_size=40),
    st.none() | st.integers(0, 7),
    st.integers(0, 9),
)
def test_the_board_chooses_as_if_every_engine_had_been_asked(
    serves: list[tuple[bool, ...]],
    changes: list[tuple[int, dict[str, Any], int, float]],
    avoided: int | None,
    seed: int,
) -> None:
    views = [
        EngineView(Engine(f"e{place}", "", f"pool{place % 2}", 0), up=True, gains=(1.0,) * ROUTES)
        for place in range(8)
    ]
    board, now = Board(views, serves, ROUTES), 0.0
    ours, theirs = Random(seed), Random(seed)
    avoid = None if avoided is None else f"e{avoided}"
    for place, stand, route, passed in changes:
        views[place] = views[place]._replace(**stand)
        board.put(place, views[place])
        now += passed
        may = [view for view, routes in zip(views, serves, strict=True) if routes[route]]
        for pool in (None, "pool1"):
            choice = board.choose(route, now=now, rules=RULES, rng=ours, avoid=avoid, pool=pool)
            asked = [view for view in may if pool in (None, view.engine.pool)]
            assert (choice.view, choice.reason) == asked_each(asked, route, now, theirs, avoid)
