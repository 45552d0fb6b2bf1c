import itertools
import math
from collections import Counter
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.admit.admission import (
    QueueSpeed,
    Refusal,
    Shed,
    Turns,
    idle,
    next_turn,
    put_out,
    refusal,
)

COSTS = {"text": 60.0, "key-value": 180.0, "table": 700.0}
QUANTUM = 256.0


def run(
    turns: Turns, heads: dict[str, float], count: int, quantum: float = QUANTUM
) -> tuple[list[str], Turns]:
    chosen = []
    for _ in range(count):
        route, turns = next_turn(turns, heads, quantum)
        chosen.append(route)
    return chosen, turns


# --- whose turn is next


def test_waiting_routes_get_equal_tokens_not_equal_requests() -> None:
    chosen, _ = run(Turns(), COSTS, 3000)
    tokens = {route: count * COSTS[route] for route, count in Counter(chosen).items()}
    assert max(tokens.values()) - min(tokens.values()) <= QUANTUM + 700
    assert Counter(chosen)["text"] > 10 * Counter(chosen)["table"]


def test_a_burst_of_tables_does_not_starve_text() -> None:
    chosen, _ = run(Turns(), {"table": 700.0, "text": 60.0}, 1000)
    between = [len(list(group)) for route, group in itertools.groupby(chosen) if route == "table"]
    assert max(between) == 1


def test_routes_of_one_cost_take_turns() -> None:
    chosen, _ = run(Turns(), dict.fromkeys("abc", 100.0), 6, quantum=100.0)
    assert chosen == ["a", "b", "c", "a", "b", "c"]


costs = st.one_of(st.floats(1, 4096), st.sampled_from([60.0, 700.0]))


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.lists(costs, min_size=1, max_size=8), min_size=1),
    st.floats(1, 5000),
    st.integers(1, 150),
    st.integers(0, 149),
)
def test_shares_differ_by_no_more_than_a_quantum_and_a_request(
    costs: dict[str, list[float]], quantum: float, count: int, since: int
) -> None:
    queues = {route: itertools.cycle(list_) for route, list_ in costs.items()}
    heads = {route: next(queue) for route, queue in queues.items()}
    dearest = max(max(list_) for list_ in costs.values())
    turns, totals, history = Turns(), Counter(dict.fromkeys(costs, 0.0)), []
    for _ in range(count):
        history.append(dict(totals))
        route, turns = next_turn(turns, heads, quantum)
        totals[route] += heads[route]
        heads[route] = next(queues[route])
        assert all(0 <= deficit <= dearest + quantum for deficit in turns.deficits.values())
    slack = 1e-6 * (1 + max(totals.values()))
    assert max(totals.values()) - min(totals.values()) <= quantum + dearest + slack
    before = history[min(since, count - 1)]
    shares = [totals[route] - before[route] for route in costs]
    assert max(shares) - min(shares) <= quantum + 2 * dearest + slack


@given(
    st.lists(
        st.tuples(st.sets(st.sampled_from("abcd"), min_size=1), st.sets(st.sampled_from("abcd"))), max_size=80
    ),
    st.fixed_dictionaries(dict.fromkeys("abcd", costs)),
    st.floats(1, 5000),
)
def test_nothing_is_saved_up_without_bound_however_routes_come_and_go(
    steps: list[tuple[set[str], set[str]]], costs: dict[str, float], quantum: float
) -> None:
    turns = Turns()
    for placeable, emptied in steps:
        heads = {route: costs[route] for route in sorted(placeable)}
        again = next_turn(turns, heads, quantum)
        route, turns = next_turn(turns, heads, quantum)
        assert (route, turns) == again
        assert route in heads
        assert all(0 <= deficit <= costs[name] + quantum for name, deficit in turns.deficits.items())
        for name in sorted(emptied):
            turns = idle(turns, name)
            assert name not in turns.deficits


@given(st.integers(0, 2**32), costs, st.floats(1, 5000))
def test_no_route_starves_beside_others_that_come_and_go(seed: int, cost: float, quantum: float) -> None:
    rng, turns, waited = Random(seed), Turns(), 0.0
    for _ in range(200):
        heads = {"steady": cost} | {route: 500.0 for route in "abc" if rng.random() < 0.6}
        route, turns = next_turn(turns, heads, quantum)
        waited = 0.0 if route == "steady" else waited + 500.0
        if route != "steady" and rng.random() < 0.5:
            turns = idle(turns, route)
        assert waited <= 3 * (cost + 500.0 + 2 * quantum)


def test_leaving_the_queue_does_not_cost_the_next_route_its_turn() -> None:
    heads = {"a": 100.0, "b": 100.0, "c": 100.0}
    chosen, turns = run(Turns(), heads, 1, quantum=100.0)
    assert chosen == ["a"]
    assert run(idle(turns, "a"), heads, 3, quantum=100.0)[0] == ["b", "c", "a"]


def test_a_route_that_empties_loses_what_it_had_and_others_do_not() -> None:
    _, turns = run(Turns(), {"a": 10.0, "b": 900.0}, 1, quantum=100.0)
    assert turns.deficits == {"a": 90.0} | {"b": 0.0}
    assert idle(turns, "b") == Turns({"a": 90.0}, visiting=True)
    assert idle(turns, "a") == Turns({"b": 0.0})
    assert idle(turns, "unknown") == turns


def test_a_route_that_cannot_be_placed_now_keeps_what_it_has_and_gains_nothing() -> None:
    _, turns = run(Turns(), {"a": 100.0, "b": 450.0}, 3, quantum=100.0)
    kept = turns.deficits["b"]
    assert kept > 0
    _, turns = run(turns, {"a": 100.0}, 20, quantum=100.0)
    assert turns.deficits["b"] == kept
    assert "b" in run(turns, {"a": 100.0, "b": 450.0}, 4, quantum=100.0)[0]


def test_a_huge_request_is_reached_without_counting_rounds_one_by_one() -> None:
    chosen, turns = run(Turns(), {"huge": 1e300, "dear": 1e299}, 11, quantum=1.0)
    assert set(chosen) == {"huge", "dear"}
    assert all(math.isfinite(deficit) for deficit in turns.deficits.values())


def test_requests_that_cost_nothing_have_their_turn() -> None:
    assert run(Turns(), {"free": 0.0}, 3)[0] == ["free"] * 3


@pytest.mark.parametrize(
    ("heads", "quantum"),
    [
        ({}, 1.0),
        ({"a": 1.0}, 0.0),
        ({"a": 1.0}, math.inf),
        ({"a": 1.0}, math.nan),
        ({"a": -1.0}, 1.0),
        ({"a": math.inf}, 1.0),
        ({"a": math.nan}, 1.0),
    ],
)
def test_senseless_values_are_refused(heads: dict[str, float], quantum: float) -> None:
    with pytest.raises(ValueError, match="no choice"):
        next_turn(Turns(), heads, quantum)


# --- how fast a queue moves


def moved(speed: QueueSpeed, since: float, interval: float, count: int) -> QueueSpeed:
    speed = speed.watched(since)
    for index in range(1, count + 1):
        speed = speed.started(since + index * interval)
    return speed


def test_speed_is_unknown_until_enough_was_seen() -> None:
    assert QueueSpeed().per_s(5.0) is None
    assert moved(QueueSpeed(), 0.0, 0.1, 10).per_s(1.0) is None
    assert moved(QueueSpeed(), 0.0, 5.0, 2).per_s(10.0) is None
    assert moved(QueueSpeed(), 0.0, 1.0, 3).per_s(3.0) is not None


@pytest.mark.parametrize("seconds", [3, 10, 100])
@pytest.mark.parametrize("per_s", [2.0, 20.0])
def test_speed_is_right_from_the_start(per_s: float, seconds: int) -> None:
    speed = moved(QueueSpeed(), 0.0, 1 / per_s, int(seconds * per_s))
    assert speed.per_s(seconds) == pytest.approx(per_s, rel=0.3)


def test_speed_falls_while_nothing_moves() -> None:
    speed = moved(QueueSpeed(), 0.0, 0.5, 60)
    later = [speed.per_s(30.0 + wait) or 0.0 for wait in (0, 5, 10, 30)]
    assert later == sorted(later, reverse=True)
    assert later[-1] < 0.05 * later[0]


def test_time_without_a_queue_is_no_standstill() -> None:
    speed = moved(QueueSpeed(), 0.0, 0.5, 60).emptied(30.0)
    assert speed.per_s(40.0) == pytest.approx(speed.per_s(30.0))
    assert speed.per_s(300.0) is None
    again = speed.watched(35.0)
    assert again.watched(36.0) == again
    assert again.per_s(35.0) == pytest.approx(speed.per_s(30.0))


def test_a_new_rush_after_a_long_rest_is_judged_by_itself() -> None:
    speed = moved(QueueSpeed(), 0.0, 0.5, 60).emptied(30.0).watched(1000.0)
    assert speed.per_s(1005.0) is None
    assert moved(speed, 1000.0, 2.0, 5).per_s(1010.0) == pytest.approx(0.5, rel=0.35)


@given(
    st.lists(st.tuples(st.sampled_from(["watched", "started", "emptied"]), st.floats(-0.01, 50)), max_size=50)
)
def test_speed_is_never_negative_nor_beyond_what_was_seen(steps: list[tuple[str, float]]) -> None:
    speed, now, starts = QueueSpeed(), 0.0, 0
    for step, passed in steps:
        now += passed
        speed = getattr(speed, step)(now)
        starts += step == "started"
        per_s = speed.per_s(now)
        assert per_s is None or 0 <= per_s <= starts / 2.0 + 1e-9


def test_a_clock_that_stands_still_divides_by_nothing() -> None:
    assert moved(QueueSpeed(), 5.0, 0.0, 50).per_s(5.0) is None


# --- who is refused


def test_a_request_waits_while_there_is_room_and_time() -> None:
    assert refusal(waiting=0, max_waiting=1, max_wait_s=30, per_s=None) is None
    assert refusal(waiting=59, max_waiting=512, max_wait_s=30, per_s=2.0) is None


def test_a_full_queue_says_when_there_is_room() -> None:
    full = refusal(waiting=512, max_waiting=512, max_wait_s=30, per_s=20.0)
    assert full == Refusal(Shed.QUEUE_FULL, 1)
    assert refusal(waiting=20, max_waiting=10, max_wait_s=300, per_s=0.5) == Refusal(Shed.QUEUE_FULL, 22)


def test_a_wait_that_would_be_too_long_is_refused_on_arrival() -> None:
    slow = refusal(waiting=60, max_waiting=512, max_wait_s=30, per_s=2.0)
    assert slow == Refusal(Shed.TOO_SLOW, 1)
    assert refusal(waiting=100, max_waiting=512, max_wait_s=30, per_s=2.0) == Refusal(Shed.TOO_SLOW, 21)


def test_a_full_and_slow_queue_says_when_the_wait_fits_too() -> None:
    assert refusal(waiting=100, max_waiting=100, max_wait_s=10, per_s=2.0) == Refusal(Shed.QUEUE_FULL, 41)


def test_somebody_may_always_wait_for_a_standing_queue_to_move_again() -> None:
    assert refusal(waiting=0, max_waiting=9, max_wait_s=30, per_s=0.0) is None
    assert refusal(waiting=1, max_waiting=9, max_wait_s=30, per_s=0.0) == Refusal(Shed.TOO_SLOW, 60)


def test_where_nobody_may_wait_nobody_does() -> None:
    assert refusal(waiting=0, max_waiting=0, max_wait_s=30, per_s=None) == Refusal(Shed.QUEUE_FULL, 2)
    assert refusal(waiting=0, max_waiting=0, max_wait_s=30, per_s=0.25) == Refusal(Shed.QUEUE_FULL, 4)


def test_one_that_waited_in_vain_hears_when_it_would_be_served() -> None:
    timed_out = partial(put_out, Shed.TIMED_OUT)
    assert timed_out(waiting=100, max_waiting=512, max_wait_s=30, per_s=2.0) == Refusal(Shed.TIMED_OUT, 21)
    assert timed_out(waiting=0, max_waiting=512, max_wait_s=30, per_s=2.0) == Refusal(Shed.TIMED_OUT, 1)
    assert timed_out(waiting=5, max_waiting=512, max_wait_s=30, per_s=None) == Refusal(Shed.TIMED_OUT, 30)
    assert timed_out(waiting=5, max_waiting=512, max_wait_s=900, per_s=None) == Refusal(Shed.TIMED_OUT, 60)


def test_one_that_made_room_hears_when_there_is_some() -> None:
    put = partial(put_out, Shed.QUEUE_FULL, max_waiting=8, max_wait_s=30)
    assert put(waiting=8, per_s=0.5) == Refusal(Shed.QUEUE_FULL, 2)
    assert put(waiting=8, per_s=None) == Refusal(Shed.QUEUE_FULL, 2)


def test_only_those_who_go_before_make_a_wait_too_long() -> None:
    ask = partial(refusal, waiting=100, max_waiting=512, max_wait_s=30, per_s=2.0)
    assert ask(ahead=59) is None
    assert ask(ahead=60) == Refusal(Shed.TOO_SLOW, 1)
    assert ask(ahead=100) == ask() == Refusal(Shed.TOO_SLOW, 21)


def test_who_is_made_room_for_finds_no_queue_full() -> None:
    ask = partial(refusal, waiting=8, max_waiting=8, max_wait_s=30, makes_room=True)
    assert ask(per_s=None, ahead=3) is None
    assert ask(per_s=0.1, ahead=3) == Refusal(Shed.TOO_SLOW, 10)


speeds = st.one_of(st.none(), st.floats(0, 1e6))


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.floats(0, allow_nan=False), speeds)
def test_every_refusal_says_a_time_and_is_lifted_by_it(
    waiting: int, max_waiting: int, max_wait_s: float, per_s: float | None
) -> None:
    refused = refusal(waiting=waiting, max_waiting=max_waiting, max_wait_s=max_wait_s, per_s=per_s)
    late = put_out(
        Shed.TIMED_OUT, waiting=waiting, max_waiting=max_waiting, max_wait_s=max_wait_s, per_s=per_s
    )
    assert 1 <= late.retry_after <= 60
    if refused is None:
        assert waiting < max_waiting
        return
    assert 1 <= refused.retry_after <= 60
    if per_s and max_waiting and refused.retry_after < 60:
        left = max(0, math.ceil(waiting - refused.retry_after * per_s - 1e-6 * waiting))
        assert refusal(waiting=left, max_waiting=max_waiting, max_wait_s=max_wait_s, per_s=per_s) is None


# --- what a request is expected to cost
