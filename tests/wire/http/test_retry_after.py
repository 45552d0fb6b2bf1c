from __future__ import annotations

import pytest

from gateway.wire.http.retry_after import retry_after_s


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7),
        ("0", 0),
        ("007", 7),
        ("999999999", 999_999_999),
        (None, None),
        ("", None),
        ("9999999999", None),
        ("9" * 5000, None),
        ("-3", None),
        ("1.5", None),
        ("soon", None),
        (" 7", None),
        ("7\n", None),
        ("\u0663", None),
        ("Fri, 31 Dec 1999 23:59:59 GMT", None),
    ],
)
def test_seconds_are_read_and_nothing_else(value: str | None, seconds: int | None) -> None:
    assert retry_after_s(value) == seconds
