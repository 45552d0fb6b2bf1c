import datetime
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.shown_values import (
    KEY_NOT_SHOWN,
    did_you_mean,
    resembling,
    shown,
    shown_name,
    shows_key,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "nothing"),
        (True, "true"),
        ({"a": 1}, "a section"),
        ((), "an empty list"),
        (b"x", "binary data"),
        (datetime.date(2024, 1, 31), "the date 2024-01-31"),
        (-math.inf, "-.inf"),
        (5, "5"),
        ("odd text", "'odd text'"),
        ("x" * 500, "'" + "x" * 56 + "..."),
        ("http://u:secret@host/path", "'http://...@host/path'"),
        ("u:secret@host", "'...@host'"),
        ("http://u:se@cret@host", "'http://...@host'"),
        ("http://host/p?key=secret", "'http://host/p?...'"),
        ("a?b", "'a?b'"),
        ("line\nbreak", r"'line\nbreak'"),
    ],
)
def test_a_value_is_named_in_few_words_and_without_credentials(value: object, text: str) -> None:
    assert shown(value) == text


@given(st.one_of(st.text(), st.integers(), st.floats(), st.dates(), st.lists(st.text())))
def test_whatever_is_shown_is_one_short_line(value: Any) -> None:
    text = shown(value)
    assert len(text) <= 60
    assert text.isprintable()


def test_a_long_value_takes_no_longer_than_its_length() -> None:
    assert len(shown("/" * 2_000_000)) == 60  # a search from each slash on would take hours


@pytest.mark.parametrize("name", ["text", "key-value", "Tables!", "*", "team@x", "a.b_c"])
def test_names_are_shown(name: str) -> None:
    assert shown_name(name) == name


@pytest.mark.parametrize("name", ["api_key s3cr3t", "api_key=s3cr3t", "api_key:s3cr3t", "x" * 64, "a\x1b[2J"])
def test_what_may_have_swallowed_a_value_is_not(name: str) -> None:
    assert shown_name(name) == KEY_NOT_SHOWN


@pytest.mark.parametrize(
    ("key", "valueless", "right"),
    [
        ("schedul", True, True),
        ("schedul", False, True),
        ("colour", False, True),  # something stands behind it, so that it is a key
        ("hunter", True, False),
        ("s3cr3t", False, False),
        ("schedule s3cr3t", False, False),
        ("x" * 41, False, False),
    ],
)
def test_an_unknown_key_is_shown_where_it_can_be_no_value(key: str, valueless: bool, right: bool) -> None:
    assert shows_key(key, ["schedule", "pools"], valueless=valueless) is right


def test_a_misspelt_name_is_recognised_among_many() -> None:
    assert resembling("tabel", ["text", "table"]) == "table"
    assert did_you_mean("tabel", ["text", "table"]) == " - did you mean 'table'?"
    assert did_you_mean("x" * 1_000_000, [f"team-{n}" for n in range(100_000)]) == ""
