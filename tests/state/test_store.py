"""The state as a whole."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.choose.balance import Fitness
from gateway.policy.fail.breaker import Outcome
from gateway.policy.fail.retry import Failure
from gateway.state.lease import Lease
from tests.conftest import fleet
from tests.state.world import ALL, CONFIG, PLAIN, World
from tests.support import FakeEngine, answer, chat

if TYPE_CHECKING:
    from gateway.state.queues import Waiter
    from tests.support import _Sender


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["take", "wait", "release", "leave", "down", "up", "lose"]), st.integers(0, 9)
        )
    )
)
def test_every_place_is_given_back(moves: list[tuple[str, int]]) -> None:
    """Whatever mix of taking, waiting, leaving and dying engines, the counts end at zero."""
    world = World()
    leases: list[Lease] = []
    waiters: list[Waiter] = []
    for move, index in moves:
        world.now += 0.1
        engine = ALL[index % 3].name
        if move == "take" and isinstance(taken := world.state.take(["text", "table"][index % 2]), Lease):
            leases.append(taken)
        elif move == "wait":
            waiters.append(world.wait(["text", "table"][index % 2])[0])
        elif move == "release" and leases:
            leases.pop(index % len(leases)).release()
        elif move == "leave" and waiters:
            waiter = waiters.pop(index % len(waiters))
            world.state.leave(waiter)
            if waiter.lease:
                waiter.lease.release()
        elif move in ("down", "up"):
            world.state.mark(engine, up=move == "up")
        elif move == "lose":
            world.state.mark_lost(engine)
        assert all(0 <= status.view.load <= 4 for status in world.state.snapshot().engines)
    for waiter in waiters:
        world.state.leave(waiter)
        if waiter.lease:
            waiter.lease.release()
    for lease in leases:
        lease.release()
    snapshot = world.state.snapshot()
    routes = world.state.snapshot().routes.values()
    assert {(route.in_flight, route.waiting) for route in routes} == {(0, 0)}
    assert all(status.view.load == 0 for status in snapshot.engines)
    assert all(route.in_flight == route.waiting == 0 for route in snapshot.routes.values())


class TestWaitingForTime:
    """Requests that wait get an engine when only time has passed: nothing else happens in these tests."""

    def test_a_rest_ends(self) -> None:
        world = World(engines=[PLAIN])
        with world.take() as lease:
            world.state.record_failure(lease, Failure.BUSY)
        waiter, woken = world.wait()
        world.pass_time(0.99)
        assert not woken
        world.pass_time(0.02)
        assert woken
        assert waiter.lease
        assert waiter.lease.begun == pytest.approx(101.0, abs=0.01)

    def test_the_rest_of_one_that_goes_on_refusing_ends_again_and_again(self) -> None:
        world = World(CONFIG.replace("max_load: 4", "max_load: 100"), [PLAIN])
        with world.take() as lease:
            world.state.record_failure(lease, Failure.STOPPING)
        waiting = [world.wait()[0] for _ in range(5)]
        for turn in range(1, 6):
            world.pass_time(10.0)
            assert sum(waiter.lease is not None for waiter in waiting) == turn

    def test_an_open_breaker_lets_probes_through(self) -> None:
        world = World(engines=[PLAIN])
        for _ in range(5):
            with world.take() as lease:
                world.state.record_failure(lease, Failure.GARBAGE)
        waiting = [world.wait()[0] for _ in range(3)]
        world.pass_time(9.99)
        assert not any(waiter.lease for waiter in waiting)
        world.pass_time(0.02)
        assert [waiter.lease is not None for waiter in waiting] == [True, True, False]
        assert world.timers.set == []  # the third waits for the probes
        for waiter in waiting[:2]:
            assert waiter.lease
            waiter.lease.record_outcome(Outcome.SUCCESS)
            waiter.lease.release()
        assert waiting[2].lease

    def test_an_engine_that_is_back_takes_ever_more(self) -> None:
        world = World(CONFIG.replace("max_load: 4", "max_load: 200"), [PLAIN])
        world.take()
        world.now += 1
        world.state.set_engines([])
        world.state.set_engines([PLAIN])
        waiting = [world.wait()[0] for _ in range(60)]
        served = []
        for _ in range(5):
            served.append(sum(waiter.lease is not None for waiter in waiting))
            world.pass_time(1.0)
        assert served == [8, 16, 32, 60, 60]
        begun = [waiter.lease.begun - 101.0 for waiter in waiting if waiter.lease]
        assert 0 < begun[8] < begun[9] < 0.5  # one by one, not at each full second

    def test_only_while_somebody_waits(self) -> None:
        world = World(engines=[PLAIN])
        with world.take() as lease:
            world.state.record_failure(lease, Failure.BUSY)
        assert world.refused() is Fitness.RESTING
        assert world.timers.set == []
        (first, _), (second, _) = world.wait(), world.wait()
        assert len(world.timers.set) == 1
        world.state.leave(first)
        assert len(world.timers.set) == 1
        world.state.leave(second)
        assert world.timers.set == []

    def test_the_first_engine_to_be_free_again_counts(self) -> None:
        world = World()
        leases = world.fill()
        for lease in leases:
            if lease.engine.name == "d0:80":
                world.state.record_failure(lease, Failure.STOPPING)
            elif lease.engine.name == "d1:80":
                world.state.record_failure(lease, Failure.BUSY)
        waiter, _ = world.wait("table")
        for lease in leases:
            lease.release()
        assert waiter.lease is None
        world.pass_time(1.1)
        assert waiter.lease
        assert waiter.lease.engine.name == "d1:80"

    def test_where_time_brings_nothing_none_is_waited_for(self) -> None:
        world = World(engines=[PLAIN])
        held = world.fill()
        world.wait()
        assert world.timers.set == []
        world.state.mark("p0:80", up=False)
        assert world.timers.set == []
        assert held

    async def test_a_request_is_served_long_before_the_next_poll(self) -> None:
        async def busy_once(engine: FakeEngine, request: dict[str, Any], send: _Sender) -> None:
            if len(engine.bodies) == 1:
                await send.json({"error": {"message": "full"}}, status=503)
            else:
                await answer(engine, request, send)

        settings = "{polling: {scrape_s: 30}, retry: {per_request: 0}}"
        async with fleet(1, settings) as served_fleet:
            served_fleet.engines[0].behave = busy_once
            first = await served_fleet.http.post("/v1/chat/completions", json=chat())
            assert first.status_code == 503
            async with asyncio.timeout(10):
                second = await served_fleet.http.post("/v1/chat/completions", json=chat())
            assert second.status_code == 200
