"""The budget that further attempts come out of."""

from __future__ import annotations

import pytest

from gateway.policy.fail.retry import Failure
from tests.state.world import World


def test_retries_come_out_of_one_budget() -> None:
    world = World()
    spent = 0
    while world.state.retries.may_retry(Failure.BUSY, attempts=1, seconds_left=9):
        spent += 1
    assert spent == 100
    assert world.state.retries.may_retry(Failure.DIED, attempts=1, seconds_left=9)
    for _ in range(10):
        world.state.retries.requests += 1
    assert world.state.snapshot().retry_budget == pytest.approx(1)
