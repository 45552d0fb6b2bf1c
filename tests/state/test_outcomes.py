"""What attempts and health checks say of engines."""

from __future__ import annotations

import pytest

from gateway.policy.choose.balance import Fitness
from gateway.policy.fail.breaker import Outcome, Phase
from gateway.policy.fail.retry import Failure
from tests.state.world import CONFIG, DEEP, PLAIN, World


class TestRefusals:
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

    @pytest.mark.parametrize("early_ms", range(0, 12, 2))
    def test_a_rest_that_ends_while_an_engine_is_passed_over_leaves_nobody_waiting(
        self, early_ms: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world = World(engines=[PLAIN])
        world.state.record_failure(world.take(), Failure.BUSY)
        world.timers.early_s = early_ms / 1000
        waiter, _ = world.wait()
        world.timers.early_s = 0

        def clock() -> float:
            world.now += 0.003
            return world.now

        monkeypatch.setattr(world.state, "_clock", clock)
        monkeypatch.setattr(world.state._roster, "_clock", clock)
        world.timers.run(200)
        assert waiter.lease

    def test_what_a_refusing_engine_had_before_does_not_speak_for_it(self) -> None:
        world = World(engines=[PLAIN])
        earlier = world.take()
        world.now += 1
        world.state.record_failure(world.take(), Failure.BUSY)
        earlier.record_outcome(Outcome.SUCCESS)
        assert world.refused() is Fitness.RESTING


class TestBreaker:
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

    def test_requests_from_before_the_trouble_do_not_stand_in_the_way_of_probes(self) -> None:
        world = World(engines=[PLAIN])
        world.take(), world.take()
        for _ in range(5):
            world.now += 1
            with world.take() as lease:
                world.state.record_failure(lease, Failure.GARBAGE)
        world.now += 10
        assert len(world.fill()) == 2

    def test_an_engine_that_was_down_is_probed_first_but_not_at_the_start(self) -> None:
        world = World(engines=[PLAIN])
        assert world.status("p0:80").phase is Phase.CLOSED
        world.now += 60
        world.state.mark("p0:80", up=False)
        world.state.mark("p0:80", up=True)
        assert world.status("p0:80").phase is Phase.HALF_OPEN
        assert len(world.fill()) == 2


class TestBlame:
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
