"""A call at a moment that may be changed, and requests that wait for one."""

from __future__ import annotations

import math

import pytest

from gateway.state.alarm import Alarm
from tests.state.world import Timers


def rung(timers: Timers) -> tuple[Alarm, list[float]]:
    calls: list[float] = []
    return Alarm(timers.call_later, lambda: calls.append(timers.now)), calls


def test_it_calls_once_at_the_moment() -> None:
    timers = Timers()
    alarm, calls = rung(timers)
    alarm.set(103.0, 100.0)
    timers.run(102.9)
    assert calls == []
    timers.run(200.0)
    assert calls == [103.0]
    assert timers.set == []


@pytest.mark.parametrize("moment", [102.0, 107.0])
def test_another_moment_takes_the_place_of_the_first(moment: float) -> None:
    timers = Timers()
    alarm, calls = rung(timers)
    alarm.set(103.0, 100.0)
    alarm.set(moment, 100.0)
    timers.run(200.0)
    assert calls == [moment]


def test_the_same_moment_costs_no_timer() -> None:
    timers = Timers()
    alarm, _ = rung(timers)
    alarm.set(103.0, 100.0)
    (timer,) = timers.set
    alarm.set(103.0, 101.0)
    assert timers.set == [timer]


@pytest.mark.parametrize("how", ["clear", "infinity"])
def test_it_may_be_taken_back(how: str) -> None:
    timers = Timers()
    alarm, calls = rung(timers)
    alarm.set(103.0, 100.0)
    if how == "clear":
        alarm.clear()
        alarm.clear()
    else:
        alarm.set(math.inf, 100.0)
    assert timers.set == []
    timers.run(200.0)
    assert calls == []
    alarm.set(203.0, 200.0)
    timers.run(300.0)
    assert calls == [203.0]


def test_it_may_be_set_again_when_it_calls() -> None:
    """As where a loop calls a little early: the moment has not come, and the same one is set."""
    timers = Timers(early_s=0.5)
    calls: list[float] = []

    def call() -> None:
        calls.append(timers.now)
        if timers.now < 103.0:
            timers.early_s = 0.0
            alarm.set(103.0, timers.now)

    alarm = Alarm(timers.call_later, call)
    alarm.set(103.0, 100.0)
    timers.run(200.0)
    assert calls == [102.5, 103.0]


def test_a_moment_that_is_past_does_not_keep_the_loop_busy() -> None:
    timers = Timers()
    alarm, calls = rung(timers)
    alarm.set(99.0, 100.0)
    timers.run(100.0)
    assert calls == []
    timers.run(101.0)
    assert calls == [100.001]
