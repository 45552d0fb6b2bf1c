import argparse
from pathlib import Path

import pytest

from gateway.tools.sweep.sweep_options import arguments

NUMBERS = ("--concurrency", "--rate", "--window", "--max-warmup", "--repeats-max", "--max-tokens")


def parsed(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    arguments(parser)
    return parser.parse_args(["--out", "out", *options])


def test_without_options_it_is_the_published_grid() -> None:
    options = parsed()
    assert options.concurrency == (1, 10, 24, 32, 40, 64, 80, 128, 256)
    assert (options.window, options.out, options.config) == (120, Path("out"), None)
    assert options.rate == ()


def test_lists_are_sorted_and_hold_each_once() -> None:
    options = parsed("--concurrency", "64, 1,64", "--rate", "2.5,1", "--routes", "text,table,text")
    assert options.concurrency == (1, 64)
    assert options.rate == (1, 2.5)
    assert options.routes == ("text", "table")


def test_engines_and_prompts_are_pairs() -> None:
    options = parsed("--engine", "0=http://a:1", "--engine", "3=http://b:1", "--prompt", "text=OCR: a=b")
    assert options.engine == [(0, "http://a:1"), (3, "http://b:1")]
    assert options.prompt == [("text", "OCR: a=b")]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        *(
            ([option, text], repr(text))
            for option in NUMBERS
            for text in ("0", "-1", "nan", "1e9", "many", "")
        ),
        (["--concurrency", "1,0"], "from 1 to 1,000,000, not '0'"),
        (["--window", "0.5"], "of at least 1, and up to 86,400, not '0.5'"),
        (["--rate", "-0.0"], "above 0, and up to 10,000, not '-0.0'"),
        (["--routes", " , "], "names none"),
        (["--pools", ""], "names none"),
        (["--engine", "http://a:1"], "DEPTH=URL"),
        (["--engine", "x=http://a:1"], "DEPTH=URL"),
        (["--prompt", "text="], "ROUTE=TEXT"),
        (["--write", "--diff"], "not allowed with"),
        (["--report-only", "--from-vllm-bench", "a.json"], "not allowed with"),
    ],
)
def test_wrong_options_are_told(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(*options)
    assert said in capsys.readouterr().err
