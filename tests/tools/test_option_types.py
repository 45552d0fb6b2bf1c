import argparse

import pytest

from gateway import cli
from gateway.tools.option_types import positive, whole


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_ports_are_ports(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["serve", "--port", port])
    assert "a port is a number from 0 to 65535" in capsys.readouterr().err


def test_whole_numbers_are_read_within_their_range() -> None:
    assert [whole(1, 2000)(text) for text in ("1", "2000")] == [1, 2000]
    for text in ("0", "2001", "-1", "1.5", "", "٣", "9" * 5000):
        with pytest.raises(argparse.ArgumentTypeError, match="a number from 1 to 2,000, not "):
            whole(1, 2000)(text)


def test_what_is_positive_is_finite() -> None:
    assert positive("0.5") == 0.5
    for text in ("0", "-1", "inf", "nan", "many"):
        with pytest.raises(ValueError, match=r"^$|could not convert"):
            positive(text)
