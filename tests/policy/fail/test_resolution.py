from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.fail.resolution import MAX_ADDRESSES, Addresses

A, B, C = "10.0.0.1", "10.0.0.2", "10.0.0.3"


def after(*answers: set[str] | None) -> tuple[str, ...]:
    addresses = Addresses()
    for answer in answers:
        addresses = addresses.after(None if answer is None else frozenset(answer))
    return addresses.current


def test_every_address_of_an_answer_is_in_use_in_a_stable_order() -> None:
    assert after({C, A, B}) == (A, B, C)
    assert after({A}, {A, B}) == (A, B)


def test_a_resolver_that_fails_takes_nothing_away() -> None:
    assert after({A, B}, None, set(), None, set()) == (A, B)


def test_one_answer_without_an_address_is_forgiven_and_two_in_a_row_are_not() -> None:
    assert after({A, B}, {A}) == (A, B)
    assert after({A, B}, {A}, {A}) == (A,)
    assert after({A, B}, {A}, {A, B}, {A}) == (A, B)


def test_a_failure_between_two_answers_forgives_nothing() -> None:
    assert after({A, B}, {A}, None, {A}) == (A,)


def test_a_fleet_that_is_replaced_overlaps_for_one_answer() -> None:
    assert after({A, B}, {C}) == (A, B, C)
    assert after({A, B}, {C}, {C}) == (C,)


def test_an_address_that_went_may_come_back() -> None:
    assert after({A, B}, {A}, {A}, {A, B}) == (A, B)


def test_an_endless_answer_is_cut_and_drops_no_address_in_use() -> None:
    many = {f"10.1.{number // 256}.{number % 256}" for number in range(2 * MAX_ADDRESSES)}
    flooded = after({A, B}, many | {A, B})
    assert len(flooded) == MAX_ADDRESSES
    assert {A, B} < set(flooded)


answers = st.none() | st.frozensets(st.sampled_from("abcdefgh"), max_size=8)


@given(st.lists(answers, max_size=20))
def test_an_address_is_in_use_exactly_if_one_of_the_last_two_good_answers_has_it(
    told: list[frozenset[str] | None],
) -> None:
    addresses = Addresses()
    for answer in told:
        addresses = addresses.after(answer)
    # An address stays through the first answer that lacks it, so the last two decide.
    good = [answer for answer in told if answer]
    assert set(addresses.current) == frozenset().union(*good[-2:])
    assert list(addresses.current) == sorted(addresses.current)
