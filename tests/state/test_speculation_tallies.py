"""Sums of figures of speculation."""

from __future__ import annotations

import pytest

from gateway.model import Speculation
from gateway.state.speculation_tallies import SpeculationTally


def test_a_tally_knows_the_last_minutes_apart_from_the_rest() -> None:
    tally = SpeculationTally(depth=2)
    assert tally.positions == [0, 0]
    tally.add(Speculation(100, 100, 300, (60, 30, 10)))
    tally.fold(0.0)
    tally.fold(10.0)
    assert (tally.recent.at, tally.recent.sums.length) == (0.0, 2.0)
    tally.add(Speculation(100, 300, 300, (100, 100, 100)))
    tally.fold(3000.0)
    assert tally.recent.sums.length == pytest.approx(4.0, abs=0.001)
    assert (tally.drafts, tally.accepted, tally.draft_tokens) == (200, 400, 600)
    assert tally.positions == [160, 130, 110]
