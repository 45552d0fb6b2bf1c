from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.fail.breaker import Outcome
from gateway.policy.fail.retry import (
    CAP,
    FLOOR_PER_S,
    Budget,
    Failure,
    blame,
    budget_after_retry,
    failure_of,
    was_seen,
)

DEATHS = {Failure.UNREACHABLE, Failure.CONNECT_TIMEOUT, Failure.DIED, Failure.LOST, Failure.STOPPING}
ELSEWHERE = {Failure.REFUSED, Failure.KEY, Failure.BUSY, Failure.BAD_GATEWAY, Failure.GATEWAY_TIMEOUT}
RETRIED = DEATHS | ELSEWHERE | {Failure.GARBAGE}
FULL = Budget(0.1)
EMPTY = Budget(0.1, level=0.0, updated_at=50.0)


def left(failure: Failure, **changes: Any) -> Budget | None:
    case: dict[str, Any] = {
        "attempts": 1,
        "per_request": 1,
        "seconds_left": 30.0,
        "budget": FULL,
        "now": 50.0,
    }
    return budget_after_retry(failure, **(case | changes))


@pytest.mark.parametrize("failure", Failure)
def test_what_another_engine_may_do_better_is_retried(failure: Failure) -> None:
    assert (left(failure) is not None) == (failure in RETRIED)


@pytest.mark.parametrize("failure", Failure)
@pytest.mark.parametrize(
    "change",
    [{"attempts": 2}, {"per_request": 0}, {"attempts": 0, "per_request": 0}, {"seconds_left": 0.0}],
    ids=repr,
)
def test_nothing_is_retried_once_time_or_retries_are_up(failure: Failure, change: dict[str, Any]) -> None:
    assert left(failure, **change) is None


@pytest.mark.parametrize("budget", [EMPTY, Budget(0.0)])
@pytest.mark.parametrize("failure", sorted(RETRIED))
def test_only_the_death_of_an_engine_is_retried_beyond_the_budget(failure: Failure, budget: Budget) -> None:
    assert left(failure, budget=budget) == (budget if failure in DEATHS else None)


def test_an_engine_that_took_no_connection_or_was_stopped_has_not_seen_the_request() -> None:
    unseen = {failure for failure in Failure if not was_seen(failure)}
    assert unseen == {Failure.UNREACHABLE, Failure.STOPPING}
    assert left(Failure.STOPPING, attempts=0)


@pytest.mark.parametrize(("failure", "cost"), [(Failure.BUSY, 1), (Failure.DIED, 0)])
def test_a_retry_costs_one_and_a_death_nothing(failure: Failure, cost: int) -> None:
    budget = left(failure)
    assert budget
    assert budget.remaining(50) == CAP - cost


@pytest.mark.parametrize("failure", Failure)
def test_the_engine_is_blamed_for_what_is_its_own(failure: Failure) -> None:
    neutral = {Failure.BUSY, Failure.ERROR, Failure.REJECTED, Failure.STOPPING}
    assert blame(failure) is (Outcome.NEUTRAL if failure in neutral else Outcome.FAILURE)


def test_a_server_error_is_the_engines_own_only_where_others_agree() -> None:
    assert blame(Failure.ERROR, others_agree=True) is Outcome.FAILURE
    assert blame(Failure.BUSY, others_agree=True) is Outcome.NEUTRAL


@pytest.mark.parametrize(
    ("status", "failure"),
    [
        (200, None),
        (204, None),
        (400, Failure.REJECTED),
        (401, Failure.KEY),
        (403, Failure.KEY),
        (404, Failure.REFUSED),
        (405, Failure.REFUSED),
        (422, Failure.REJECTED),
        (429, Failure.BUSY),
        (500, Failure.ERROR),
        (501, Failure.ERROR),
        (502, Failure.BAD_GATEWAY),
        (503, Failure.BUSY),
        (504, Failure.GATEWAY_TIMEOUT),
        (599, Failure.ERROR),
        (302, Failure.GARBAGE),
        (101, Failure.GARBAGE),
    ],
)
def test_what_a_status_means(status: int, failure: Failure | None) -> None:
    assert failure_of(status) is failure


def drained(budget: Budget, now: float) -> tuple[int, Budget]:
    spent = 0
    while (after := budget.spend(now)) is not None:
        budget, spent = after, spent + 1
    return spent, budget


def test_a_new_budget_bridges_a_sudden_trouble() -> None:
    assert drained(FULL, 0.0)[0] == CAP


def test_a_quiet_gateway_regains_ten_a_second_and_never_more_than_the_cap() -> None:
    _, empty = drained(FULL, 0.0)
    assert drained(empty, 2.0)[0] == 2 * FLOOR_PER_S
    assert drained(empty, 3600.0)[0] == CAP


def test_each_request_adds_its_share() -> None:
    budget = EMPTY
    for _ in range(40):
        budget = budget.begun(50.0)
    assert budget.remaining(50.0) == pytest.approx(4.0)


def test_a_share_of_nothing_never_fills_and_a_reload_may_give_one() -> None:
    none = Budget(0.0).begun(0.0).begun(1000.0)
    assert none.remaining(2000.0) == 0
    assert none.spend(2000.0) is None
    assert replace(none, share=0.1).remaining(1001.0) == FLOOR_PER_S


def test_a_storm_gets_no_more_than_share_and_floor() -> None:
    budget, retries = EMPTY, 0
    for request in range(20_000):
        now = 50 + request / 1000
        budget = budget.begun(now)
        if spent := left(Failure.BUSY, budget=budget, now=now):
            budget, retries = spent, retries + 1
    assert retries == pytest.approx(20_000 * 0.1 + 20 * FLOOR_PER_S, abs=2)


@given(
    st.floats(0, 1),
    st.lists(st.tuples(st.booleans(), st.floats(-0.01, 5, allow_subnormal=False)), max_size=60),
)
def test_the_budget_stays_within_its_bounds_and_gains_nothing_from_a_wavering_clock(
    share: float, steps: list[tuple[bool, float]]
) -> None:
    budget, now, latest = Budget(share), 0.0, 0.0
    begun = spent = 0
    for spends, passed in steps:
        now += passed
        latest = max(latest, now)
        if spends:
            after = budget.spend(now)
            assert (after is None) == (budget.remaining(now) < 1)
            budget, spent = after or budget, spent + (after is not None)
        else:
            budget, begun = budget.begun(now), begun + 1
        assert 0 <= budget.remaining(now) <= CAP
    assert spent <= CAP + begun * share + FLOOR_PER_S * (latest + 0.01) + 1e-6
