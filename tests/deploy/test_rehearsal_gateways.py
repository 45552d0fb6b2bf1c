"""Rolling updates without a cluster: real gateways, signals and connections; the engines are simulated."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.rehearsal import __main__ as command
from deploy.rehearsal.common import rehearse
from deploy.rehearsal.gateways import GatewaysOptions, GatewaysRehearsal, GatewaysReport
from deploy.rehearsal.pods import ROOT, Ended
from tests.support import until


async def rehearsed(**options: Any) -> tuple[GatewaysReport, list[str]]:
    """Rehearse in short; pytest shows what is printed where a test fails."""
    report = await rehearse(GatewaysRehearsal, GatewaysOptions(clients=16, pace=0.1, **options), print)
    for failure in report.tally.failures:
        print(failure)
    return report, report.faults()


@pytest.mark.timeout(900)
async def test_an_update_of_gateways_and_of_their_configuration_loses_no_request() -> None:
    report, faults = await rehearsed()
    assert faults == []
    assert len(report.ended) == report.reloads == 2
    assert all(ended.status == 0 and not ended.killed for _, ended in report.ended)
    assert 0 < report.tally.streamed < report.tally.answered


@pytest.mark.timeout(900)
async def test_losses_are_found_where_gateways_end_without_warning() -> None:
    report, faults = await rehearsed(replicas=1, abrupt=True)
    assert report.tally.failures
    assert any("requests failed" in fault for fault in faults)
    assert any("was killed" in fault for fault in faults)


def test_a_rehearsal_tells_whatever_went_wrong() -> None:
    report = GatewaysReport(GatewaysOptions(), ended=[("one", Ended(1, False, 3.0))], reloads=1)
    assert report.faults() == [
        "1 of 2 gateways were replaced",
        "1 of 2 gateways took the ConfigMap's change over",
        "one ended with exit status 1",
    ]


def test_the_command_names_what_it_can_rehearse(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        command.main(["gateway", "--help"])
    assert exit.value.code == 0
    assert "--pace" in capsys.readouterr().out


def session(leader: int) -> set[int]:
    """The processes of a session."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(int(folder.name)) == leader:
                found.add(int(folder.name))
    return found


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc to find processes")
async def test_a_rehearsal_that_is_told_to_end_leaves_nothing_running() -> None:
    words = [sys.executable, "-m", "deploy.rehearsal", "gateway", "--clients=1"]
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*words, cwd=ROOT, start_new_session=True, stdout=quiet)
    # Engines, gateways and itself.
    await until(lambda: len(session(process.pid)) >= 7, within_s=120)
    process.terminate()
    assert await process.wait() == 128 + signal.SIGINT
    assert session(process.pid) == set()
