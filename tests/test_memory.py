"""The account of what requests hold: it always comes back to nothing."""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Unavailable
from gateway.memory import Held, Memory

LIMIT = 10_000
steps = st.lists(
    st.tuples(
        st.sampled_from(("open", "add", "answered", "drop", "close")), st.integers(0, 9), st.integers(0, 6000)
    ),
    max_size=80,
)


@given(steps)
def test_the_account_is_the_sum_of_what_is_held_and_returns_to_nothing(
    steps: list[tuple[str, int, int]],
) -> None:
    memory = Memory(LIMIT)
    open_: dict[int, tuple[str, Held]] = {}
    for step, which, size in steps:
        if step == "open":
            if which in open_:
                open_.pop(which)[1].close()
            client = "abc"[which % 3]
            open_[which] = client, memory.hold(client)
        elif which in open_:
            held = open_[which][1]
            before = held.size
            if step in ("add", "answered"):
                with contextlib.suppress(Unavailable):
                    (held.add if step == "add" else held.answered)(size)
                    before += size
                assert held.size == before
            elif step == "drop":
                held.drop(size)
                assert held.size == max(0, before - size)
            else:
                held.close()
                held.close()
                assert held.size == 0
        own: Counter[str] = Counter()
        for client, held in open_.values():
            own[client] += held.size
        assert memory.total == own.total() <= LIMIT
    for _, held in open_.values():
        held.close()
    assert memory.total == 0
    assert not memory._own  # nor is any client remembered


def test_a_client_leaves_the_others_room() -> None:
    memory = Memory(1000)
    hog = memory.hold("a")
    hog.add(500)
    with pytest.raises(Unavailable, match="1,000 bytes") as refused:
        hog.add(1)
    assert (refused.value.status, refused.value.code) == (503, "memory_full")
    assert refused.value.retry_after is not None
    memory.hold("b").add(250)
    hog.drop(200)
    hog.add(20)


def test_what_is_only_expected_takes_nothing() -> None:
    memory = Memory(1000)
    held = memory.hold("a")
    held.expect(500)
    held.expect(500)
    assert memory.total == 0
    with pytest.raises(Unavailable):
        held.expect(501)


def test_an_answer_may_have_what_no_request_may() -> None:
    memory = Memory(1000)
    held = memory.hold("a")
    held.add(500)
    held.answered(500)
    with pytest.raises(Unavailable):
        held.answered(1)
    assert memory.total == 1000
