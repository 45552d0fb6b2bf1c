from __future__ import annotations

import pytest

from gateway import cli


@pytest.mark.parametrize(
    "options",
    [
        ("--engines", "0"),
        ("--engines", "-3"),
        ("--engines", "two"),
        ("--engines", "100000"),
        ("--engines", "2", "--max-load", "0"),
        ("--engines", "2", "--since", "soon"),
        ("--engines", "2", "--step", "0s"),
        ("--engines", "2", "--weight", "text"),
        ("--engines", "2", "--weight", "text=0"),
        ("--engines", "2", "--weight", "text=much"),
        ("--engines", "2", "--weight", "=2"),
        (),
    ],
)
def test_absurd_options_are_refused(capsys: pytest.CaptureFixture[str], options: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["plan", "--profiles", "profiles", "--load", "day.csv", *options])
    assert "usage: ocr-gateway plan" in capsys.readouterr().err
