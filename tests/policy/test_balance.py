from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gateway.model import Engine, EngineView
from gateway.policy.balance import least_loaded


def views(states: list[tuple[bool, int]]) -> list[EngineView]:
    return [
        EngineView(Engine(str(index), f"http://e{index}", "p", 0), up, load)
        for index, (up, load) in enumerate(states)
    ]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 500))), st.integers())
def test_takes_an_engine_that_is_up_and_has_the_least(states: list[tuple[bool, int]], seed: int) -> None:
    chosen = least_loaded(views(states), Random(seed))
    loads = [load for up, load in states if up]
    if chosen is None:
        assert not loads
    else:
        assert chosen.up
        assert chosen.load == min(loads)


def test_ties_are_spread() -> None:
    rng = Random(1)
    chosen = {least_loaded(views([(True, 3)] * 4), rng) for _ in range(100)}
    assert len(chosen) == 4
