from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.engines.embedded.stop_strings import StopStrings, stop_strings
from gateway.errors import BadRequest


def cut(pieces: list[str], stops: list[str], *, keep: bool = False) -> tuple[str, str | None]:
    """What is let through of a text in pieces, and what ended it."""
    cutter = StopStrings(stops, keep=keep)
    passed = ""
    for piece in pieces:
        passed += cutter.feed(piece)
        if cutter.hit:
            return passed, cutter.hit
    return passed + cutter.rest(), None


def test_a_text_ends_before_the_first_stop_string() -> None:
    assert cut(["one\n", "two\nthr", "ee"], ["three", "two"]) == ("one\n", "two")
    assert cut(["one\n", "two\nthr", "ee"], ["three"]) == ("one\ntwo\n", "three")
    assert cut(["one\n", "two\nthr", "ee"], ["three"], keep=True) == ("one\ntwo\nthree", "three")
    assert cut(["one"], ["four"]) == ("one", None)
    assert cut(["one"], []) == ("one", None)


def test_what_cannot_begin_a_stop_string_is_not_held_back() -> None:
    cutter = StopStrings(["END"])
    assert cutter.feed("a line") == "a line"
    assert cutter.feed("E") == ""
    assert cutter.feed("x") == "Ex"


TEXTS = st.text(alphabet="abc", max_size=6)


@given(st.lists(TEXTS, max_size=8), st.lists(TEXTS.filter(bool), max_size=4), st.booleans())
def test_the_pieces_make_no_difference(pieces: list[str], stops: list[str], keep: bool) -> None:
    whole = "".join(pieces)
    passed, hit = cut(pieces, stops, keep=keep)
    assert (passed, hit) == cut(list(whole), stops, keep=keep)
    ends = [whole.find(stop) + len(stop) for stop in stops if stop in whole]
    if ends:
        assert hit is not None
        assert passed + ("" if keep else hit) == whole[: min(ends)]
    else:
        assert (passed, hit) == (whole, None)


@pytest.mark.parametrize(("stop", "stops"), [(None, ()), ("a", ("a",)), (["a", "b"], ("a", "b")), ([], ())])
def test_a_requests_stop(stop: Any, stops: tuple[str, ...]) -> None:
    assert stop_strings(stop) == stops


@pytest.mark.parametrize("stop", [7, [7], "", [""], ["a", ""], ["x"] * 17, ["x" * 257]])
def test_an_odd_stop_is_refused(stop: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        stop_strings(stop)
    assert caught.value.param == "stop"
