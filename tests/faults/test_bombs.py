"""Images made to cost whoever opens them cost little, as told by processes that open one each."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.serving import SHARED
from tests import bombs

NASTY = sorted(map(str, (SHARED / "images" / "nasty").glob("*.*"))) if SHARED else []
# What a process takes for itself while it works, such as memory that it has freed and not given back.
SPARE = 24 * 1024 * 1024

Outcomes = dict[str, dict[str, Any]]


@pytest.fixture(
    scope="module", params=[1500, pytest.param(7000, marks=pytest.mark.faults)], ids="{} pixels a side".format
)
def told(request: pytest.FixtureRequest) -> Outcomes:
    """What came of every image."""
    command = [sys.executable, "-m", "tests.bombs", str(request.param), *NASTY]
    root = Path(__file__).resolve().parents[2]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    outcomes: Outcomes = json.loads(run.stdout)
    return outcomes


def test_most_are_refused_before_a_pixel_is_decoded(told: Outcomes) -> None:
    for name in bombs.REFUSED:
        assert (told[name]["what"], told[name]["decoded"]) == ("refused", 0), name


def test_others_are_looked_at_or_left_and_never_a_fault(told: Outcomes) -> None:
    for name in bombs.taken(0):
        assert told[name]["what"] in ("looked at", "left", "corrupt"), name


def test_none_takes_more_memory_than_was_said_before(told: Outcomes) -> None:
    for name, outcome in told.items():
        assert outcome["peak"] <= outcome["weight"] + SPARE, name
        assert outcome["what"] == "left" or outcome["weight"] <= bombs.DECODING_BYTES, name


@pytest.mark.skipif(not NASTY, reason="no nasty images here")
def test_images_that_broke_others_break_nothing_here(told: Outcomes) -> None:
    outcomes = {Path(name).name: told[name]["what"] for name in NASTY}
    assert {name for name, what in outcomes.items() if what == "corrupt"} <= {"13_truncated.jpg"}
    assert outcomes["18_bomb_20000x20000.png"] == "refused"
    assert outcomes["12_progressive.jpg"] == "looked at"
