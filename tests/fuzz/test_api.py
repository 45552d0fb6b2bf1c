"""A few hundred fuzzed requests to a gateway of its own; `python -m tests.fuzz.long` sends 20,000."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fuzz.campaign import Tally, replay, send_documented, send_mutations
from tests.fuzz.target import target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fuzz.target import Target

SEED = 1
# Requests that were answered wrongly once.
KEPT = sorted((Path(__file__).parent / "kept").glob("*.http"))


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with target(tmp_path_factory.mktemp("fuzz")) as running:
        yield running


@pytest.fixture
def tally(fuzzed: Target) -> Iterator[Tally]:
    """What a test sends; afterwards nothing was wrong, and nothing is left behind."""
    tally = Tally()
    yield tally
    assert tally.problems == []
    assert fuzzed.own_faults() == []
    fuzzed.check_at_rest()


def test_all_that_the_document_allows_and_forbids(fuzzed: Target, tally: Tally) -> None:
    send_documented(fuzzed, SEED, 0, tally, every=3)
    assert tally.statuses[200] > 50
    assert tally.statuses[400] > 50


@pytest.mark.parametrize("kind", ["json", "body", "wire"])
def test_damaged_requests(fuzzed: Target, tally: Tally, kind: str) -> None:
    send_mutations(fuzzed, SEED, {kind: 100}, tally)
    assert tally.sent == 100


def test_requests_that_once_went_wrong(fuzzed: Target, tally: Tally) -> None:
    asyncio.run(replay(fuzzed, ((path.name, path.read_bytes()) for path in KEPT), tally))
    assert tally.sent == len(KEPT)
