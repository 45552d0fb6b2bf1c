"""What is handed out does not change when the state does."""

from __future__ import annotations

import dataclasses

import pytest

from gateway.model import Reading, Speculation
from gateway.policy.fail.retry import Failure
from tests.state.world import DEEP, World


def test_a_snapshot_stays_as_it_was() -> None:
    world = World(engines=DEEP[:1])
    before = world.state.snapshot()
    told = repr(before)
    lease = world.take("table")
    world.state.record_failure(lease, Failure.GARBAGE)
    world.state.record_reading(
        "d0:80",
        Reading(
            at=101, load=9, own=1, mismatch="it sleeps", speculation={"0": Speculation(1, 1, 3, (1, 0, 0))}
        ),
    )
    world.state.history.record_answer("table", 70)
    world.wait("table")
    world.state.requests.drain(frozenset())
    after = world.state.snapshot()
    assert repr(before) == told
    assert repr(after) != told
    assert (before.engines[0].view.load, after.engines[0].view.load) == (0, 10)
    assert (before.draining, after.draining) == (False, True)


def test_nothing_of_it_can_be_set() -> None:
    snapshot = World(engines=DEEP[:1]).state.snapshot()
    (status,) = snapshot.engines
    for value, name in ((snapshot, "draining"), (status, "stale"), (snapshot.routes["text"], "waiting")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, True)
    with pytest.raises(TypeError):
        status.rejected["format"] = 1  # type: ignore[index]
    with pytest.raises(TypeError):
        snapshot.routes["text"] = snapshot.routes["table"]  # type: ignore[index]
    with pytest.raises(TypeError):
        snapshot.routes["text"].acceptance["d", "request"] = status.recent  # type: ignore[index]
