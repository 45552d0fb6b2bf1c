"""Times and numbers of connections."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.admit.connection_limits import SLOWEST, capacity, files_needed, heads_in_parts, overdue


@pytest.mark.parametrize(
    ("elapsed_s", "moved", "late"),
    [
        (30, 0, False),
        (30.1, 0, True),
        (31, SLOWEST, False),
        (31.1, SLOWEST, True),
        (1030, 1000 * SLOWEST, False),
    ],
)
def test_who_moves_bytes_has_more_time_and_who_moves_few_has_not(
    elapsed_s: float, moved: int, late: bool
) -> None:
    assert overdue(elapsed_s, moved, 30) is late


@given(st.floats(0, 1e6), st.integers(0, 2**40), st.integers(0, 2**40))
def test_more_bytes_never_make_one_late(elapsed_s: float, moved: int, more: int) -> None:
    assert overdue(elapsed_s, moved, 30) or not overdue(elapsed_s, moved + more, 30)


@given(st.integers(1, 10**6), st.integers(0, 10**6))
def test_connections_leave_files_for_the_engines_and_the_rest(files: int, places: int) -> None:
    clients = capacity(files, None, places)
    assert clients >= 1
    if files > 1000:
        assert clients + min(clients, places) < files - 250
        assert clients >= files // 3


def test_what_is_configured_is_taken_at_its_word() -> None:
    assert capacity(1024, 5000, 256) == 5000


def test_what_is_configured_needs_its_files() -> None:
    assert capacity(files_needed(5000, 256, 3072), None, 256) >= 5000
    assert files_needed(None, 256, 3072) == files_needed(256 + 3072, 256, 0)


@given(st.integers(1024, 2**20))
def test_unfinished_heads_fit_into_what_there_is_for_them(header_bytes: int) -> None:
    assert 1 <= heads_in_parts(header_bytes) * header_bytes <= 64 * 2**20
