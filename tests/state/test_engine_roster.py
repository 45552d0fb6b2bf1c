"""Which engines there are, and which takes a request."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import parse
from gateway.model import Engine, Reading
from gateway.policy.choose.balance import Fitness
from gateway.policy.fail.breaker import Breaker, Phase
from gateway.policy.fail.retry import Failure
from gateway.state.engine_record import EngineRecord
from gateway.state.engine_roster import fresh_requests
from gateway.state.fleet import Fleet
from gateway.state.lease import Lease
from tests.policy.choose.test_balance import asked_each
from tests.state.world import ALL, CONFIG, PLAIN, World

if TYPE_CHECKING:
    from collections.abc import Callable


class TestChoice:
    def test_an_engine_that_is_not_up_is_not_chosen(self) -> None:
        world = World(up=False)
        assert world.refused() is Fitness.RESTING
        for engine in ALL:
            world.state.mark(engine.name, up=False)
        assert world.refused() is Fitness.DOWN
        world.state.mark("p0:80", up=True)
        assert world.take().engine == PLAIN
        assert world.refused("table") is Fitness.DOWN
        assert not world.state.is_up("table")
        assert world.refused("no such route") is Fitness.DOWN

    def test_max_load_is_the_engines_and_others_requests_count(self) -> None:
        world = World(engines=[PLAIN])
        world.state.record_reading("p0:80", Reading(at=100, load=3, own=0))
        assert len(world.fill()) == 2
        assert world.refused() is Fitness.HELD

    @pytest.mark.parametrize(("replicas", "share"), [(1, 4), (3, 2), (9, 1)])
    def test_each_of_several_replicas_keeps_its_share(self, replicas: int, share: int) -> None:
        world = World(CONFIG + f"server: {{replicas: {replicas}}}", [PLAIN])
        world.state.record_reading("p0:80", Reading(at=100, load=400, own=0))
        assert len(world.fill()) == share

    def test_every_choice_is_explained_in_the_debug_log(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG, "gateway")
        World(engines=[PLAIN]).take()
        (record,) = [record for record in caplog.records if record.message == "choice"]
        fields = record.fields  # type: ignore[attr-defined]
        assert (fields["route"], fields["chosen"]) == ("text", "p0:80")
        assert [row[0] for row in fields["candidates"]] == ["p0:80"]


class TestReload:
    def test_leases_are_kept_and_removed_engines_drained(self) -> None:
        world = World()
        lease = world.take("table")
        rest = [engine for engine in ALL if engine != lease.engine]
        world.state.configure(world.fleet, rest)
        assert world.load(lease.engine.name) == 1
        assert world.status(lease.engine.name).leaving
        assert all(held.engine != lease.engine for held in world.fill())
        assert lease.engine in world.state.engines()
        lease.release()
        assert lease.engine not in world.state.engines()

    def test_one_that_comes_back_goes_on(self) -> None:
        world = World(engines=[PLAIN])
        lease = world.take()
        world.state.set_engines([])
        assert world.refused() is Fitness.DOWN
        world.state.set_engines([PLAIN])
        world.take()
        assert world.load("p0:80") == 2
        lease.release()
        assert world.load("p0:80") == 1

    def test_another_url_is_another_engine(self) -> None:
        world = World(engines=[PLAIN])
        lease = world.take()
        world.state.set_engines([Engine("p0:80", "https://p0:80", "plain", 0)])
        waiter, woken = world.wait()
        assert not woken
        world.state.mark("p0:80", up=True)
        assert waiter.lease is not None
        assert waiter.lease.engine.url == "https://p0:80"
        lease.release()
        assert world.load("p0:80") == 1

    def test_another_pool_makes_another_engine_of_an_address(self) -> None:
        world = World(engines=[PLAIN])
        world.state.record_reading("p0:80", Reading(at=100, load=3, own=0, mismatch="it speculates"))
        world.state.set_engines([Engine("p0:80", "http://p0:80", "deep", 3)])
        assert (world.load("p0:80"), world.status("p0:80").mismatch) == (0, "")
        assert world.refused() is Fitness.RESTING

    def test_who_comes_before_a_name_is_resolved_waits_for_its_engines(self) -> None:
        world = World(engines=[])
        assert world.refused() is Fitness.DOWN
        world.state.set_engines([], pending=["plain"])
        assert world.refused() is Fitness.RESTING
        assert world.refused("table") is Fitness.DOWN
        waiter, _ = world.wait()
        world.state.set_engines([PLAIN])
        world.state.mark("p0:80", up=True)
        assert waiter.lease is not None

    def test_any_number_of_routes(self) -> None:
        routes = ", ".join(f"r{n}: {{}}" for n in range(60))
        world = World(CONFIG[: CONFIG.index("routes:")] + f"routes: {{{routes}}}")
        for n in range(8):
            world.take(f"r{n}")

    def test_a_removed_pools_engine_ends_its_work(self) -> None:
        world = World()
        lease = world.take("table")
        text = (
            CONFIG.replace("  plain:", "  plain2:")
            .replace("  deep:", "  deep2:")
            .replace("[deep]", "[deep2]")
        )
        world.state.configure(Fleet.of(parse(text, "routes.yaml", Path(), {})), [])
        assert world.status(lease.engine.name).leaving
        lease.release()
        assert world.state.engines() == ()


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    *["take table", "take text", "take table", "take text", "end", "end"],
                    *["read", "mark", "busy", "error", "late", "leave"],
                ]
            ),
            st.integers(0, 9),
        ),
        max_size=60,
    )
)
def test_what_is_kept_up_is_as_if_it_were_worked_out_for_every_choice(moves: list[tuple[str, int]]) -> None:
    engines = [
        Engine(f"{pool}{number}:80", f"http://{pool}{number}:80", pool, depth)
        for pool, depth in (("deep", 3), ("plain", 0))
        for number in range(3)
    ]
    world = World(engines=engines)
    state = world.state
    leases: list[Lease] = []
    for move, number in moves:
        name = engines[number % len(engines)].name
        if move.startswith("take"):
            route = move.removeprefix("take ")
            avoid = name if number % 2 else None
            index = world.fleet.routes.index(route)
            views = [status.view for status in state.snapshot().engines]
            may = [view for view in views if world.fleet.serves[view.engine.pool][index]]
            theirs = Random()
            theirs.setstate(state._roster._rng.getstate())
            asked = asked_each(may, index, world.now, theirs, avoid, rules=world.fleet.rules)
            taken = state.take(route, avoid)
            if isinstance(taken, Lease):
                assert asked[0] is not None
                assert asked[0].engine == taken.engine
                leases.append(taken)
            else:
                assert (None, taken.reason) == asked
        elif move == "end" and leases:
            leases.pop(number % len(leases)).release()
        elif move == "read":
            world.now += 0.5
            state.record_reading(name, Reading(at=world.now, load=number, own=0, awake=number != 3))
        elif move == "mark":
            state.mark(name, up=number % 3 > 0)
        elif move in ("busy", "error") and leases:
            failure = Failure.BUSY if move == "busy" else Failure.DIED
            state.record_failure(leases[number % len(leases)], failure)
        elif move == "late":
            world.now += number
        elif move == "leave":
            state.set_engines(engines[number % 3 :])
    for status in state.snapshot().engines:
        view = status.view
        have = [
            sum(lease.engine == view.engine and lease.route == route for lease in leases)
            for route in world.fleet.routes
        ]
        assert list(view.own) == have
        if any(have):
            anew = Fleet.of(world.fleet.config).tables[view.engine.pool]
            appraisal = anew.appraise(have, view.load - sum(have), [])
            assert (view.gains, view.cap) == (appraisal.gains, appraisal.cap)


@dataclass(eq=False)
class Placed:
    begun: float
    on_lost: Callable[[], None] | None = None


def test_only_requests_of_a_newcomer_are_fresh() -> None:
    def fresh(now: float, **known: object) -> int:
        record = EngineRecord(PLAIN, lambda *_: True)
        record.leases = {Placed(95.0), Placed(100.0), Placed(101.0)}
        for name, value in known.items():
            setattr(record, name, value)
        return fresh_requests(record, now)

    assert fresh(102.0) == 0
    assert fresh(102.0, back_since=100.0) == 2
    assert fresh(107.0, back_since=100.0) == 0
    assert fresh(200.0, back_since=94.0, breaker=Breaker(Phase.HALF_OPEN, since=101.0)) == 1
