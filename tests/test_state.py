import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model import Engine
from gateway.state import State

ENGINES = [Engine("a", "http://a", "p", 0), Engine("b", "http://b", "q", 3)]
ROUTES = ["text", "table"]


def test_engines_are_down_until_marked_up_and_news_is_told_once() -> None:
    state = State(ENGINES, ROUTES)
    assert not any(view.up for view in state.snapshot().engines)
    assert [state.mark("a", up=True), state.mark("a", up=True)] == [True, False]
    assert state.mark("b", up=False)
    assert [view.up for view in state.views(["p", "q"])] == [True, False]


def test_views_are_of_the_pools_asked_for() -> None:
    assert [view.engine.name for view in State(ENGINES, ROUTES).views(["q"])] == ["b"]


def test_a_lease_is_a_place_on_its_engine_and_in_its_route() -> None:
    state = State(ENGINES, ROUTES)
    with state.lease("table", ENGINES[1]), state.lease("table", ENGINES[1]):
        assert [view.load for view in state.snapshot().engines] == [0, 2]
        assert state.snapshot().in_flight == {"text": 0, "table": 2}


@given(st.lists(st.tuples(st.sampled_from(ROUTES), st.sampled_from(ENGINES), st.booleans()), max_size=30))
def test_leases_end_at_zero_however_their_blocks_end(requests: list[tuple[str, Engine, bool]]) -> None:
    state = State(ENGINES, ROUTES)
    for route, engine, fails in requests:
        try:
            with state.lease(route, engine):
                assert state.snapshot().in_flight[route] == 1
                if fails:
                    raise RuntimeError
        except RuntimeError:
            assert fails
    assert set(state.snapshot().in_flight.values()) == {0}
    assert {view.load for view in state.snapshot().engines} == {0}


def test_a_snapshot_does_not_change_afterwards() -> None:
    state = State(ENGINES, ROUTES)
    before = state.snapshot()
    with state.lease("text", ENGINES[0]):
        assert before.in_flight == {"text": 0, "table": 0}


def test_an_engine_that_is_not_configured_cannot_be_marked() -> None:
    with pytest.raises(KeyError):
        State(ENGINES, ROUTES).mark("c", up=True)
