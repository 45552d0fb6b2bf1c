from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.http.trace_context import read

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_valid_parent_and_its_state_are_passed_on_as_they_came() -> None:
    headers = [(b"host", b"x"), (b"traceparent", PARENT), (b"tracestate", b"rojo=00f067aa0ba902b7, a=b")]
    assert read(headers) == {"traceparent": PARENT.decode(), "tracestate": "rojo=00f067aa0ba902b7, a=b"}


def test_states_in_several_headers_are_one() -> None:
    headers = [(b"tracestate", b"a=1"), (b"traceparent", PARENT), (b"tracestate", b"b=2")]
    assert read(headers)["tracestate"] == "a=1,b=2"


@pytest.mark.parametrize("state", [b"a=" + b"x" * 511, b"a=\x07", b"a=\xff", b""])
def test_a_state_that_is_wrong_or_too_long_is_left_away(state: bytes) -> None:
    assert read([(b"traceparent", PARENT), (b"tracestate", state)]) == {"traceparent": PARENT.decode()}


@pytest.mark.parametrize(
    "parent",
    [
        PARENT.upper(),
        PARENT + b"-more",
        b"ff" + PARENT[2:],
        b"00-" + b"0" * 32 + b"-b7ad6b7169203331-01",
        b"00-0af7651916cd43dd8448eb211c80319c-" + b"0" * 16 + b"-01",
        PARENT[:-1],
        b" " + PARENT,
        PARENT + b"\r\nx: y",
        b"01" + PARENT[2:] + b"-" + b"x" * 300,
        b"",
    ],
)
def test_a_wrong_parent_is_no_parent_and_takes_its_state_along(parent: bytes) -> None:
    assert read([(b"traceparent", parent), (b"tracestate", b"a=1")]) == {}


def test_a_later_version_may_go_on() -> None:
    parent = b"01" + PARENT[2:] + b"-what-comes"
    assert read([(b"traceparent", parent)]) == {"traceparent": parent.decode()}


def test_two_parents_are_none() -> None:
    assert read([(b"traceparent", PARENT), (b"traceparent", PARENT)]) == {}


@given(
    st.lists(
        st.tuples(st.sampled_from([b"traceparent", b"tracestate", b"other"]), st.binary() | st.just(PARENT))
    )
)
def test_whatever_comes_only_short_printable_text_goes_on(headers: list[tuple[bytes, bytes]]) -> None:
    found = read(headers)
    assert set(found) <= {"traceparent", "tracestate"}
    assert "tracestate" not in found or "traceparent" in found
    assert all(value.isascii() and value.isprintable() and len(value) <= 512 for value in found.values())
