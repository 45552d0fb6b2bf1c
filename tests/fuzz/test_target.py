"""The fuzzer's corpus and random bytes, without the fuzzer."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.target import PARSERS, run_input

CORPUS = sorted((Path(__file__).parents[2] / "fuzz" / "corpus").iterdir())


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_no_input_of_the_corpus_breaks_a_parser(path: Path) -> None:
    run_input(path.read_bytes())


def test_the_corpus_is_small_and_reaches_every_parser() -> None:
    inputs = [path.read_bytes() for path in CORPUS]
    assert {data[0] for data in inputs} == set(range(len(PARSERS)))
    assert sum(map(len, inputs)) < 1_000_000


@given(st.binary(max_size=100), st.sampled_from(range(len(PARSERS))))
def test_no_bytes_break_a_parser(data: bytes, parser: int) -> None:
    run_input(bytes([parser]) + data)


@given(st.sampled_from(CORPUS), st.data())
def test_no_damage_to_the_corpus_breaks_a_parser(path: Path, data: st.DataObject) -> None:
    whole = path.read_bytes()
    at = data.draw(st.integers(1, len(whole)))
    piece = data.draw(st.binary(max_size=8) | st.sampled_from([b"", whole[1 : 1 + at]]))
    run_input(whole[:at] + piece + whole[at + data.draw(st.integers(0, 16)) :])
