"""Shares of the memory for requests under way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.admit.memory_share import default_documents, default_limit, may_hold

MIB = 2**20
asks = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 400)), max_size=60)


def held(asked: list[tuple[int, int]], limit: int) -> list[int]:
    """What each of six clients holds once all that were let have taken what they asked for."""
    own = [0] * 6
    for client, more in asked:
        if may_hold(more, own=own[client], total=sum(own), limit=limit):
            own[client] += more
    return own


@given(asks, st.integers(1, 2000))
def test_there_is_never_more_held_than_there_is_and_something_left_for_who_comes_anew(
    asked: list[tuple[int, int]], limit: int
) -> None:
    own = held(asked, limit)
    assert sum(own) <= limit
    # The last who took something left at least as much free as it had.
    assert not any(own) or limit - sum(own) >= min(part for part in own if part)


def test_one_client_alone_gets_half() -> None:
    assert held([(0, 1)] * 1000, 1000)[0] == 500


def test_a_hog_leaves_the_others_their_shares() -> None:
    own = held([(0, 1)] * 1000 + [(client, 1) for client in range(1, 6)] * 1000, 1000)
    assert own[0] == 500
    # What the hog holds is not taken from it; what it gives back is shared.
    assert min(own[1:]) >= 80


def test_many_that_ask_in_turn_get_equal_shares_with_one_more_in_reserve() -> None:
    own = held([(client, 1) for client in range(6)] * 1000, 7000)
    assert own == [pytest.approx(1000, abs=2)] * 6


@pytest.mark.parametrize(
    ("memory", "documents", "limit"),
    [(128, 1, 64), (2304, 1, 288), (3072, 2, 341), (16384, 4, 4373)],
)
def test_the_limit_leaves_room_for_what_a_byte_costs_and_for_the_processes(
    memory: int, documents: int, limit: int
) -> None:
    assert default_documents(memory * MIB) == documents
    assert default_limit(memory * MIB, documents) == pytest.approx(limit * MIB, abs=MIB)
