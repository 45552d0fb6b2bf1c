"""What readings of engines' metrics change."""

from __future__ import annotations

import json
import math
from random import Random
from typing import TYPE_CHECKING

import pytest

from gateway.config import parse
from gateway.model import Reading
from gateway.policy.choose.balance import Fitness
from gateway.state.fleet import Fleet
from gateway.state.store import State
from tests.state.world import ALL, CONFIG, PLAIN, World

if TYPE_CHECKING:
    from pathlib import Path


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
