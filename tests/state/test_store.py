"""The store's bookkeeping, in a time that tests make pass."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import parse
from gateway.model import Engine, Reading, Speculation
from gateway.policy.account.acceptance import Sample, Source
from gateway.policy.choose.balance import Choice, Fitness
from gateway.policy.choose.split import replanned
from gateway.policy.fail.breaker import Outcome, Phase
from gateway.policy.fail.retry import Failure
from gateway.state.fleet import Fleet
from gateway.state.lease import Lease
from gateway.state.ledger import AnswerKind
from gateway.state.store import State
from tests.policy.choose.test_balance import asked_each

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.state.queues import Waiter

CONFIG = """
model: glm-ocr
pools:
  deep:
    speculative_config: {method: mtp, num_speculative_tokens: 3}
    engines: [http://d0:80, http://d1:80]
    max_load: 4
  plain: {engines: [http://p0:80], max_load: 4}
routes:
  text: {schedule: [[1, 63, 3], [64, 4096, 0]]}
  table: {pools: [deep]}
retry: {budget: 0.1}
"""
DEEP = [Engine("d0:80", "http://d0:80", "deep", 3), Engine("d1:80", "http://d1:80", "deep", 3)]
PLAIN = Engine("p0:80", "http://p0:80", "plain", 0)
ALL = [*DEEP, PLAIN]


class World:
    """A state, and the time it lives in."""

    def __init__(
        self, text: str = CONFIG, engines: Iterable[Engine] = ALL, *, up: bool = True, folder: Path = Path()
    ) -> None:
        self.now = 100.0
        self.fleet = Fleet.of(parse(text, "routes.yaml", folder, {}))
        self.state = State(self.fleet, engines, lambda: self.now, Random(0))
        if up:
            for engine in engines:
                self.state.mark(engine.name, up=True)

    def take(self, route: str = "text", **more: Any) -> Lease:
        taken = self.state.take(route, **more)
        assert isinstance(taken, Lease)
        return taken

    def refused(self, route: str = "text") -> Fitness:
        taken = self.state.take(route)
        assert isinstance(taken, Choice)
        return taken.reason

    def wait(self, route: str = "text", **more: Any) -> tuple[Waiter, list[int]]:
        woken: list[int] = []
        return self.state.wait(route, lambda: woken.append(1), **more), woken

    def load(self, name: str) -> int:
        return next(
            status.view.load for status in self.state.snapshot().engines if status.view.engine.name == name
        )

    def replan(self) -> None:
        situation = self.state.split_inputs()
        self.state.adopt_split(replanned(situation) if situation else None)

    def fill(self, route: str = "text") -> list[Lease]:
        leases = []
        while isinstance(taken := self.state.take(route), Lease):
            leases.append(taken)
        return leases

    def status(self, name: str) -> Any:
        return next(status for status in self.state.snapshot().engines if status.view.engine.name == name)


class TestLeases:
    def test_a_place_is_taken_at_once_and_given_back_once(self) -> None:
        world = World()
        lease = world.take()
        assert world.load(lease.engine.name) == 1
        assert world.state.snapshot().routes["text"].in_flight == 1
        lease.release()
        lease.release()
        assert world.load(lease.engine.name) == 0
        with world.take() as lease:
            assert world.load(lease.engine.name) == 1
        assert world.load(lease.engine.name) == 0

    def test_it_knows_its_depth_under_the_load_it_made(self) -> None:
        text = CONFIG.replace(
            "num_speculative_tokens: 3}",
            "num_speculative_tokens: 3, num_speculative_tokens_per_batch_size: [[1, 1, 3], [2, 9, 1]]}",
        )
        world = World(text, DEEP[:1])
        assert [world.take("table").depth for _ in range(3)] == [3, 1, 1]

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


class TestReadings:
    def test_only_what_is_not_ours_is_foreign(self) -> None:
        world = World(engines=[PLAIN])
        world.take()
        world.state.record_reading("p0:80", Reading(at=100, load=3, own=1))
        assert world.load("p0:80") == 3
        world.state.record_reading("p0:80", Reading(at=101, load=0, own=1))
        assert world.load("p0:80") == 1

    def test_a_stale_one_keeps_what_it_showed(self) -> None:
        world = World(engines=[PLAIN])
        world.state.record_reading("p0:80", Reading(at=100, load=3, own=0))
        world.now += 1000
        world.state.mark("p0:80", up=False)
        world.state.mark("p0:80", up=True)
        assert world.load("p0:80") == 3
        assert world.status("p0:80").reading_age_s == 1000
        assert world.status("p0:80").stale

    def test_a_sleeping_engine_gets_nothing(self) -> None:
        world = World(engines=[PLAIN])
        world.state.record_reading("p0:80", Reading(at=100, load=0, own=0, awake=False))
        assert world.refused() is Fitness.DOWN
        world.state.record_reading("p0:80", Reading(at=101, load=0, own=0))
        world.take()

    def test_a_crowd_comes_by_and_by_to_an_engine_that_wakes_or_comes_back(self) -> None:
        for leave, come_back in (
            (
                lambda world: world.state.record_reading(
                    "p0:80", Reading(at=100, load=0, own=0, awake=False)
                ),
                lambda world: world.state.record_reading("p0:80", Reading(at=101, load=0, own=0)),
            ),
            (
                lambda world: world.state.set_engines([]),
                lambda world: world.state.set_engines([PLAIN]),
            ),
        ):
            world = World(CONFIG.replace("max_load: 4", "max_load: 200"), [PLAIN])
            world.take()
            world.now += 1
            leave(world)
            come_back(world)
            assert len(world.fill()) == 8
            world.now += 1
            assert len(world.fill()) == 8
            world.now += 60
            assert len(world.fill()) > 100

    def test_a_gap_in_the_readings_is_no_drift(self) -> None:
        world = World(engines=[PLAIN])
        for at in (100, 101, 700):
            world.state.record_reading("p0:80", Reading(at=at, load=1, own=0, generation_tokens=at))
        assert world.status("p0:80").rate == pytest.approx(1)

    def test_tokens_per_second_are_measured_and_survive_a_restart(self) -> None:
        world = World(engines=[PLAIN])
        for at, tokens in ((100, 5000), (101, 5100), (102, 5200), (103, 50), (104, 150)):
            world.state.record_reading("p0:80", Reading(at=at, load=1, own=0, generation_tokens=tokens))
        assert world.status("p0:80").rate == pytest.approx(100)
        assert world.status("p0:80").ratio is None

    def test_a_mismatch_is_told(self, caplog: pytest.LogCaptureFixture) -> None:
        world = World()
        for at in (100, 101):
            world.state.record_reading(
                "d0:80", Reading(at=at, load=0, own=0, mismatch="it does not speculate")
            )
        assert world.status("d0:80").mismatch == "it does not speculate"
        assert caplog.text.count("it does not speculate") == 1

    def test_readings_of_unknown_engines_are_dropped(self) -> None:
        world = World()
        world.state.record_reading("gone", Reading(at=100, load=3, own=0))
        assert not world.state.mark("gone", up=True)
        world.state.mark_lost("gone")
        assert world.state.activity("gone").in_flight == 0
        assert world.state.activity("gone").active_at == -math.inf


class TestQueues:
    def test_first_come_first_served(self) -> None:
        world = World(engines=[PLAIN])
        held = world.fill()
        (first, one), (second, two) = world.wait(), world.wait()
        world.now += 3
        held.pop().release()
        assert (one, two) == ([1], [])
        assert first.lease is not None
        assert world.state.snapshot().routes["text"].oldest_wait_s == 3
        first.lease.release()
        assert second.lease is not None

    def test_nobody_overtakes_who_waits(self) -> None:
        world = World(engines=[PLAIN])
        held = world.fill()
        waiter, _ = world.wait()
        assert world.refused() is Fitness.HELD
        held.pop().release()
        assert waiter.lease is not None

    def test_who_leaves_frees_the_place_at_once(self) -> None:
        world = World(engines=[PLAIN])
        held = world.fill()
        (first, _), (second, woken) = world.wait(), world.wait()
        world.state.leave(first)
        world.state.leave(first)
        assert world.state.queues.waiting("text") == 1
        held.pop().release()
        assert woken
        world.state.leave(second)
        assert second.lease is not None
        assert first.lease is None

    def test_every_choice_is_explained_in_the_debug_log(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG, "gateway")
        World(engines=[PLAIN]).take()
        (record,) = [record for record in caplog.records if record.message == "choice"]
        fields = record.fields  # type: ignore[attr-defined]
        assert (fields["route"], fields["chosen"]) == ("text", "p0:80")
        assert [row[0] for row in fields["candidates"]] == ["p0:80"]

    def test_a_retry_that_avoids_the_free_engine_does_not_block_the_others(self) -> None:
        world = World()
        held = world.fill()
        freed = held.pop()
        retry, _ = world.wait(avoid=freed.engine.name, first=True)
        (other, woken), (last, _) = world.wait(), world.wait()
        freed.release()
        assert woken
        assert other.lease is not None
        assert retry.lease is None
        next(lease for lease in held if lease.engine != freed.engine).release()
        assert retry.lease is not None
        assert last.lease is None

    def test_when_the_first_leaves_the_next_is_looked_at(self) -> None:
        world = World(engines=[PLAIN])
        held = world.fill()
        first, _ = world.wait(avoid="p0:80", first=True)
        world.state.requests.draining = True
        second, woken = world.wait()
        held.pop().release()
        assert woken
        assert second.lease
        world.state.leave(first)

    def test_the_oldest_wait_is_the_oldest_ones(self) -> None:
        world = World(engines=[PLAIN])
        world.fill()
        world.wait()
        world.now += 20
        world.wait(first=True)
        assert world.state.snapshot().routes["text"].oldest_wait_s == 20

    def test_who_was_taken_in_before_is_first(self) -> None:
        world = World(engines=[PLAIN])
        held = world.fill()
        world.wait()
        again, woken = world.wait(first=True)
        held.pop().release()
        assert woken
        assert again.lease

    def test_a_route_that_cannot_be_placed_does_not_hold_up_another(self) -> None:
        world = World()
        tables = world.fill("table")
        blocked, _ = world.wait("table")
        text, woken = world.wait("text")
        assert woken
        assert text.lease is not None
        assert text.lease.engine == PLAIN
        assert blocked.lease is None
        tables.pop().release()
        assert blocked.lease is not None

    def test_a_burst_of_long_answers_does_not_starve_short_ones(self) -> None:
        world = World(engines=DEEP[:1])
        for _ in range(200):
            world.state.record_answer("table", 700)
            world.state.record_answer("text", 70)
        held = world.fill("text")
        tables = [world.wait("table")[0] for _ in range(200)]
        texts = [world.wait("text")[0] for _ in range(200)]
        for _ in range(110):
            lease = held.pop(0)
            lease.release()
            held += [waiter.lease for waiter in tables + texts if waiter.lease and waiter.lease not in held]
            held = [lease for lease in held if lease.held]
        served = sum(waiter.lease is not None for waiter in texts)
        assert served == pytest.approx(100, abs=10)

    def test_an_engine_that_comes_up_takes_who_waits(self) -> None:
        world = World(engines=[PLAIN])
        world.state.mark("p0:80", up=False)
        waiter, _ = world.wait()
        assert waiter.lease is None
        world.state.mark("p0:80", up=True)
        assert waiter.lease is not None

    def test_the_queues_speed_is_seen(self) -> None:
        world = World(engines=[PLAIN])
        held = world.fill()
        waiters = [world.wait()[0] for _ in range(20)]
        assert world.state.queues.speed("text") is None
        for _ in range(10):
            world.now += 0.5
            held.pop(0).release()
            held += [waiter.lease for waiter in waiters if waiter.lease and waiter.lease not in held]
            held = [lease for lease in held if lease.held]
        speed = world.state.queues.speed("text")
        assert speed is not None
        assert speed == pytest.approx(2, rel=0.3)


class TestFailures:
    def test_a_busy_engine_rests_for_a_moment(self) -> None:
        world = World(engines=[PLAIN])
        lease = world.take()
        world.state.record_failure(lease, Failure.BUSY)
        lease.release()
        assert world.refused() is Fitness.RESTING
        world.now += 1
        world.take()

    def test_one_that_shuts_down_gets_a_single_trial_now_and_then(self) -> None:
        world = World(engines=[PLAIN])
        world.state.record_failure(world.take(), Failure.STOPPING)
        for _ in range(3):
            world.now += 9.9
            assert world.refused() is Fitness.RESTING
            world.now += 0.2
            trial = world.take()
            assert world.refused() is Fitness.RESTING
            world.state.record_failure(trial, Failure.STOPPING)

    def test_one_that_shut_down_and_was_down_is_another_process(self) -> None:
        world = World(engines=[PLAIN])
        world.state.record_failure(world.take(), Failure.STOPPING)
        world.state.mark(PLAIN.name, up=False)
        assert world.refused() is Fitness.DOWN
        world.state.mark(PLAIN.name, up=True)
        world.take()

    def test_one_that_goes_on_refusing_is_only_tried_however_many_wait(self) -> None:
        world = World(CONFIG.replace("max_load: 4", "max_load: 100"), [PLAIN])
        world.state.record_failure(world.take(), Failure.BUSY)
        waiting = [world.wait()[0] for _ in range(50)]
        for seconds in range(1, 4):
            world.now += 1.01
            world.state.pump()
            assert sum(waiter.lease is not None for waiter in waiting) == 4 * seconds
        waiting[0].lease.record_outcome(Outcome.SUCCESS)  # type: ignore[union-attr]
        world.state.pump()
        assert all(waiter.lease for waiter in waiting)

    def test_what_a_refusing_engine_had_before_does_not_speak_for_it(self) -> None:
        world = World(engines=[PLAIN])
        earlier = world.take()
        world.now += 1
        world.state.record_failure(world.take(), Failure.BUSY)
        earlier.record_outcome(Outcome.SUCCESS)
        assert world.refused() is Fitness.RESTING

    def test_failures_open_the_breaker_and_probes_close_it(self) -> None:
        world = World(engines=[PLAIN])
        for _ in range(5):
            with world.take() as lease:
                world.state.record_failure(lease, Failure.GARBAGE)
        assert world.refused() is Fitness.RESTING
        assert world.status("p0:80").phase is Phase.OPEN
        world.now += 10
        probes = world.fill()
        assert len(probes) == 2
        for probe in probes:
            probe.record_outcome(Outcome.SUCCESS)
            probe.release()
        assert world.status("p0:80").phase is Phase.CLOSED
        assert len(world.fill()) == 4

    def test_the_crowd_does_not_come_at_once_when_probes_went_well(self) -> None:
        world = World(CONFIG.replace("max_load: 4", "max_load: 100"), [PLAIN])
        for _ in range(5):
            with world.take() as lease:
                world.state.record_failure(lease, Failure.GARBAGE)
        world.now += 10
        for _ in range(2):
            with world.take() as probe:
                probe.record_outcome(Outcome.SUCCESS)
        loads = []
        for _ in range(3):
            world.fill()
            loads.append(world.load("p0:80"))
            world.now += 1
        assert loads == [8, 16, 32]

    def test_an_unreachable_engine_is_down_at_once(self, caplog: pytest.LogCaptureFixture) -> None:
        world = World(engines=[PLAIN])
        with world.take() as lease:
            world.state.record_failure(lease, Failure.UNREACHABLE)
        assert world.refused() is Fitness.DOWN
        assert "p0:80 is down" in caplog.text

    def test_a_500_is_the_engines_own_only_while_others_succeed(self) -> None:
        def seven_errors(world: World, route: str, *, beside: str) -> Phase:
            """Errors of d0 under a route, while p0 succeeds under another."""
            for _ in range(7):
                world.now += 1
                with world.take(route, avoid="p0:80") as lease:
                    world.state.record_failure(lease, Failure.ERROR)
                if PLAIN.name in {engine.name for engine in world.state.engines()}:
                    with world.take(beside, avoid="d0:80") as lease:
                        lease.record_outcome(Outcome.SUCCESS)
            return Phase(world.status("d0:80").phase)

        assert seven_errors(World(engines=DEEP[:1]), "text", beside="text") is Phase.CLOSED
        both = World(engines=[DEEP[0], PLAIN])
        assert seven_errors(both, "text", beside="text") is Phase.OPEN
        apart = World(
            CONFIG.replace("pools: [deep]", "pools: [deep]}\n  key-value: {pools: [plain]"), [DEEP[0], PLAIN]
        )
        assert seven_errors(apart, "table", beside="key-value") is Phase.CLOSED

    def test_errors_from_before_others_succeeded_do_not_count(self) -> None:
        world = World(engines=[DEEP[0], PLAIN])
        with world.take(avoid="d0:80") as lease:
            lease.record_outcome(Outcome.SUCCESS)
        for _ in range(9):
            with world.take(avoid="p0:80") as lease:
                world.state.record_failure(lease, Failure.ERROR)
        assert world.status("d0:80").phase is Phase.CLOSED

    def test_requests_from_before_the_trouble_do_not_stand_in_the_way_of_probes(self) -> None:
        world = World(engines=[PLAIN])
        world.take(), world.take()
        for _ in range(5):
            world.now += 1
            with world.take() as lease:
                world.state.record_failure(lease, Failure.GARBAGE)
        world.now += 10
        assert len(world.fill()) == 2

    def test_who_waits_for_a_lost_engine_is_told(self) -> None:
        world = World(engines=[PLAIN])
        told: list[str] = []
        first, second = world.take(), world.take()
        first.on_lost = lambda: told.append("first")
        world.state.mark_lost("p0:80")
        assert told == ["first"]
        assert world.refused() is Fitness.DOWN
        second.release()

    def test_signs_of_life_are_noted(self) -> None:
        world = World(engines=[PLAIN])
        lease = world.take()
        world.now += 7
        lease.record_activity()
        assert world.state.activity("p0:80").active_at == 107

    def test_an_engine_that_was_down_is_probed_first_but_not_at_the_start(self) -> None:
        world = World(engines=[PLAIN])
        assert world.status("p0:80").phase is Phase.CLOSED
        world.now += 60
        world.state.mark("p0:80", up=False)
        world.state.mark("p0:80", up=True)
        assert world.status("p0:80").phase is Phase.HALF_OPEN
        assert len(world.fill()) == 2

    def test_retries_come_out_of_one_budget(self) -> None:
        world = World()
        spent = 0
        while world.state.retries.may_retry(Failure.BUSY, attempts=1, seconds_left=9):
            spent += 1
        assert spent == 100
        assert world.state.retries.may_retry(Failure.DIED, attempts=1, seconds_left=9)
        for _ in range(10):
            world.state.retries.count_request()
        assert world.state.snapshot().retry_budget == pytest.approx(1)


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

    def test_waiting_requests_of_a_removed_route_are_woken_without_a_place(self) -> None:
        world = World(engines=[PLAIN])
        world.fill()
        waiter, woken = world.wait()
        fleet = Fleet.of(parse(CONFIG.replace("text:", "words:"), "routes.yaml", Path(), {}))
        world.state.configure(fleet, ALL)
        assert woken
        assert waiter.lease is None
        world.state.leave(waiter)
        world.state.record_answer("text", 3)

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


def test_profiles_give_the_live_ratio(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    profile = {"route": "text", "pools": {"plain": [[1, 100], [4, 400]]}, "meta": {}}
    (tmp_path / "text.json").write_text(json.dumps(profile))
    text = CONFIG.replace("text: {", "text: {pools: [plain], profile: text.json, ").replace(
        "[1, 63, 3], [64, 4096, 0]", "[1, 4096, 0]"
    )
    now = 100.0
    state = State(Fleet.of(parse(text, "routes.yaml", tmp_path, {})), ALL, lambda: now, Random(0))
    state.mark("p0:80", up=True)
    taken = [state.take("text") for _ in range(2)]
    for second in range(20):
        state.record_reading(
            "p0:80", Reading(at=100.0 + second, load=2, own=2, generation_tokens=160.0 * second)
        )
    status = next(status for status in state.snapshot().engines if status.view.engine == PLAIN)
    assert status.ratio == pytest.approx(0.8)
    assert not status.drifts
    for second in range(20, 90):
        state.record_reading(
            "p0:80", Reading(at=100.0 + second, load=2, own=2, generation_tokens=3200 + 60.0 * (second - 20))
        )
    assert caplog.text.count("times what its profiles say") == 1
    assert len(taken) == 2


# Two routes that are best kept apart under load: see tests/policy/choose/test_split.py.
CURVES = {
    "text": {"deep": (0.004, 4e-4, 0), "plain": (0.012, 6e-4, 0)},
    "table": {"deep": (0.004, 1e-4, 4e-6), "plain": (0.012, 5e-5, 1e-7)},
}


class TestPlan:
    def world(self, folder: Path) -> World:
        for route, pools in CURVES.items():
            points = {
                pool: [[n, n / (a + b * n + c * n * n), 0.01] for n in (1, 10, 40, 80, 160, 320)]
                for pool, (a, b, c) in pools.items()
            }
            (folder / f"{route}.json").write_text(json.dumps({"route": route, "pools": points, "meta": {}}))
        text = CONFIG.replace("max_load: 4", "max_load: 320").replace(
            "table: {pools: [deep]}", "table: {profile: table.json}"
        )
        text = text.replace("text: {schedule", "text: {profile: text.json, schedule")
        return World(text, [DEEP[0], PLAIN], folder=folder)

    def test_routes_move_apart_as_their_requests_are_renewed(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "gateway")
        world = self.world(tmp_path)
        leases = [world.take(route) for _ in range(160) for route in ("text", "table")]
        world.replan()
        assert caplog.text.count("routes are kept apart: {") == 1
        for lease in leases:
            lease.release()
            world.replan()
            world.take(lease.route)
        deep, plain = (world.status(name).view.own for name in ("d0:80", "p0:80"))
        assert deep[0] > 3 * deep[1]
        assert plain[1] > 3 * plain[0]

    def test_it_ends_with_the_load_and_with_an_engine(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "gateway")
        world = self.world(tmp_path)
        leases = [world.take(route) for _ in range(160) for route in ("text", "table")]
        world.replan()
        for lease in leases[30:]:
            lease.release()
        world.replan()
        assert "kept apart no more" in caplog.text
        leases = [world.take(route) for _ in range(160) for route in ("text", "table")]
        world.replan()
        world.state.mark("d0:80", up=False)
        world.replan()
        assert caplog.text.count("kept apart no more") == 2
        assert world.take("text").engine == PLAIN

    def test_without_profiles_there_is_none(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "gateway")
        world = World(CONFIG.replace("max_load: 4", "max_load: 320"))
        for _ in range(160):
            world.take("text")
        world.replan()
        assert "apart" not in caplog.text


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


class TestAcceptance:
    SCHEDULED = CONFIG.replace(
        "num_speculative_tokens: 3}",
        "num_speculative_tokens: 3, num_speculative_tokens_per_batch_size: [[1, 1, 3], [2, 9, DEPTH]]}",
    )

    @staticmethod
    def streamed(world: World, *, chunks: int = 50, told: Speculation | None = None) -> Lease:
        with world.take("table") as lease:
            lease.request_sent(AnswerKind.STREAM)
            for _ in range(chunks + 1):
                lease.count_step()
            lease.answer_complete(told, 76)
        return lease

    def test_a_pool_whose_engines_need_not_draft_gives_no_estimates(self) -> None:
        assert self.streamed(World()).sample == Sample(Source.STREAM, Speculation(50, 25))
        for text in (
            self.SCHEDULED.replace("DEPTH", "0"),
            CONFIG.replace("method: mtp", "method: ngram"),
            CONFIG.replace("method: mtp", "method: suffix"),
        ):
            assert self.streamed(World(text)).sample is None
        assert self.streamed(World(self.SCHEDULED.replace("DEPTH", "1"))).sample is not None

    def test_a_request_keeps_the_depth_it_was_sent_to(self) -> None:
        world = World()
        lease = world.take("table")
        lease.request_sent(AnswerKind.STREAM)
        for _ in range(51):
            lease.count_step()
        other = Fleet.of(
            parse(CONFIG.replace("tokens: 3", "tokens: 1").replace("63, 3]", "63, 1]"), "f", Path(), {})
        )
        world.state.configure(other, ALL)
        lease.answer_complete(None, 126)
        assert lease.sample == Sample(Source.STREAM, Speculation(50, 75))

    def test_figures_of_another_depth_than_the_pools_are_not_its(self) -> None:
        world = World()
        heard: list[str] = []
        world.state.speculation.listen(lambda route, pool, sample: heard.append(route))
        self.streamed(world, told=Speculation(20, 10, 20, (10,)))
        assert heard == []
        self.streamed(world, told=Speculation(20, 10, 60, (6, 3, 1)))
        assert heard == ["table"]

    def test_figures_of_routes_and_pools_that_have_gone_still_count(self) -> None:
        world = World()
        heard: list[tuple[str, str]] = []
        world.state.speculation.listen(lambda route, pool, sample: heard.append((route, pool)))
        self.streamed(world, told=Speculation(20, 10, 60, (6, 3, 1)))
        late = world.take("table")
        late.request_sent(AnswerKind.WHOLE)
        plain = "model: m\npools: {plain: {engines: [http://p0:80]}}\nroutes: {text: {}}"
        world.state.configure(Fleet.of(parse(plain, "f", Path(), {})), [PLAIN])
        late.answer_complete(Speculation(20, 10, 60, (6, 3, 1)), 31)
        late.release()
        assert heard == [("table", "deep")] * 2
        assert world.state.snapshot().routes["text"].acceptance == {}
        assert world.state.speculation.by_key["table", "deep", Source.REQUEST].drafts == 40

    def test_an_estimate_is_believed_once_the_engines_counters_bear_it_out(self) -> None:
        world = World(engines=DEEP[:1])
        heard: list[tuple[str, str, Source]] = []
        world.state.speculation.listen(lambda route, pool, sample: heard.append((route, pool, sample.source)))

        def read(at: int, drafts: int) -> None:
            counted = {"0": Speculation(drafts, drafts / 2, 3 * drafts, (drafts / 2, 0, 0))}
            chunks = world.state.activity("d0:80").chunks
            world.state.record_reading(
                "d0:80", Reading(at, 0, 0, finished=drafts // 50, chunks=chunks, speculation=counted)
            )

        read(101, 0)
        lease = self.streamed(world)
        assert lease.trusted_sample() is None
        for at in (102, 103, 104):
            read(at, 50)
        assert heard == [("table", "deep", Source.STREAM)]
        assert lease.trusted_sample() == lease.sample
        lease = self.streamed(world, chunks=25)
        for at in (105, 106, 107):
            read(at, 100)
        assert len(heard) == 1
        assert world.status("d0:80").merges_chunks
        assert lease.trusted_sample() is None
        lease = self.streamed(world, chunks=25, told=Speculation(50, 25, 150, (20, 5, 0)))
        assert lease.trusted_sample() == lease.sample
        assert len(heard) == 2

    def test_a_stream_of_more_tokens_than_steps_can_write_convicts_its_engine(self) -> None:
        world = World(engines=DEEP[:1])
        self.streamed(world, chunks=10)
        assert world.status("d0:80").merges_chunks

    def test_it_tells_how_many_chunks_have_come(self) -> None:
        world = World(engines=DEEP[:1])
        self.streamed(world, chunks=7)
        self.streamed(world, chunks=5)
        assert (world.state.activity("d0:80").chunks, world.state.activity("gone").chunks) == (12, 0)

    def test_an_engine_that_leaves_keeps_nothing_back(self) -> None:
        world = World(engines=DEEP[:1])
        heard: list[str] = []
        world.state.speculation.listen(lambda route, pool, sample: heard.append(route))

        def read(at: int, drafts: int) -> None:
            counted = {"0": Speculation(drafts, drafts, 3 * drafts, (drafts, 0, 0))}
            chunks = world.state.activity("d0:80").chunks
            world.state.record_reading(
                "d0:80", Reading(at, 0, 0, finished=drafts // 50, chunks=chunks, speculation=counted)
            )

        read(101, 0)
        self.streamed(world)
        for at in (102, 103, 104):
            read(at, 50)
        self.streamed(world)
        assert len(heard) == 1
        world.state.set_engines(DEEP[1:])
        assert len(heard) == 2

    def test_what_has_not_been_sent_is_not_accounted(self) -> None:
        with World().take("table") as lease:
            lease.count_step()
            lease.mark_uncountable()
            lease.answer_complete(None, 76)
        assert lease.sample is None
