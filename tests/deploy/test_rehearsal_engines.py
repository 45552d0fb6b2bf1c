"""The rehearsal of engines that come and go, in its short form; `make rehearse` has the long one."""

from __future__ import annotations

from collections import Counter

import pytest

from deploy.rehearsal.common import rehearse
from deploy.rehearsal.engines import BROKEN, LOSS, EnginesOptions, EnginesRehearsal, EnginesReport, Phase
from deploy.rehearsal.pods import Ended

SHORT = EnginesOptions(clients=16, pace=0.02, phases=(1, 2, 3))


async def test_engines_come_and_go_without_loss() -> None:
    said: list[str] = []
    report = await rehearse(EnginesRehearsal, SHORT, said.append)
    assert report.faults() == [], (report.tally.failures, said)
    assert [phase.answered >= SHORT.clients for phase in report.phases] == [True] * 3
    assert len(report.ended) == 6  # both of each pool, the one that was taken away, and the only one
    assert not any(phase.failures for phase in report.phases)
    assert report.tally.answered > report.tally.streamed > 0


@pytest.mark.parametrize(
    ("what", "reason", "lost"),
    [
        ("updated", BROKEN, 1),
        ("updated", "502 engine_died", 1),
        (LOSS, "502 engine_died", 1),
        (LOSS, BROKEN, 0),
    ],
)
def test_only_streams_of_an_engine_that_is_lost_may_break(what: str, reason: str, lost: int) -> None:
    report = EnginesReport(SHORT, phases=[Phase(what, answered=9, failures=Counter({reason: 1}))])
    assert report.phases[0].lost == lost
    assert bool(report.faults()) == bool(lost)


def test_an_engine_that_had_to_be_killed_or_failed_is_a_fault_and_so_is_an_idle_pool() -> None:
    report = EnginesReport(
        SHORT,
        ended=[("a", Ended(0, False, 1.0)), ("b", Ended(-9, True, 1.0)), ("c", Ended(1, False, 1.0))],
        served={"mtp3": 5.0, "plain": 0.0},
    )
    assert [fault.partition(" ")[0] for fault in report.faults()] == ["pool", "b", "c"]
