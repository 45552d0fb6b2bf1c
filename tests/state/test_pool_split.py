"""Routes that are kept apart under load."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from tests.state.world import CONFIG, CURVES, DEEP, PLAIN, World

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


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
