import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tools.ocr.ocr_options import arguments, pages


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", (0,)), ("0-3", (0, 1, 2, 3)), ("7, 0,2-3", (0, 2, 3, 7)), ("1-2,2-3", (1, 2, 3))],
)
def test_pages_are_named_one_by_one_or_from_to(text: str, expected: tuple[int, ...]) -> None:
    assert pages(text) == expected


@pytest.mark.parametrize(
    "text", ["", "-1", "3-1", "a", "1,,2", "0-", "1.5", "0-99999999", "٣", "0-9999,10000"]
)
def test_what_names_no_pages_is_refused_with_what_would(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"pages"):
        pages(text)


@given(st.text(alphabet="0123456789-, "))
def test_whatever_names_pages_is_bounded(text: str) -> None:
    try:
        found = pages(text)
    except argparse.ArgumentTypeError:
        return
    assert list(found) == sorted(set(found))
    assert 0 < len(found) <= 10_000


def test_defaults_and_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    arguments(parser)
    options = parser.parse_args(["a.pdf"])
    assert (options.url, options.concurrency, options.format) == ("http://127.0.0.1:8000", 4, None)
    for wrong in ("0", "65", "many"):
        with pytest.raises(SystemExit):
            parser.parse_args(["a.pdf", f"--concurrency={wrong}"])
        assert "a number from 1 to 64" in capsys.readouterr().err
