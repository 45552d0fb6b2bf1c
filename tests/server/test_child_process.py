"""When processes are started again; tests/server/test_embedded_process.py has real ones."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest

from gateway.server import child_process
from gateway.server.child_process import keep_running
from tests.support import until

if TYPE_CHECKING:
    from collections.abc import Iterator


class Run:
    """A process that ends as told: with a status, or so that it cannot be started."""

    def __init__(self, *ends: int | OSError, lived_s: float = 0) -> None:
        self.ends: Iterator[int | OSError] = iter(ends)
        self.heard: list[int] = []
        self.lived_s = lived_s

    async def __call__(self) -> int:
        await asyncio.sleep(self.lived_s)
        end = next(self.ends)
        if isinstance(end, OSError):
            raise end
        return end

    def restarts(self, status: int) -> bool:
        self.heard.append(status)
        return status != 7


async def test_a_process_is_started_again_with_ever_longer_pauses_until_its_end_is_enough(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(child_process, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(child_process, "_LONGEST_PAUSE_S", 0.004)
    run = Run(3, -9, OSError("no room"), 0, 7)
    await keep_running("it", run, asyncio.Event(), run.restarts)
    assert run.heard == [3, -9, 1, 0, 7]
    assert [record.args and record.args[2] for record in caplog.records] == [0.002, 0.004, 0.004, 0.004]  # type: ignore[index]
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "it has ended (exit status 3)",
        "it has ended (signal 9)",
        "it cannot be started (no room)",
        "it has ended (exit status 0)",
    ]


async def test_who_lived_long_is_started_again_soon(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(child_process, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(child_process, "_WELL_S", 0.005)
    run = Run(1, 1, 7, lived_s=0.01)
    await keep_running("it", run, asyncio.Event(), run.restarts)
    assert [record.args and record.args[2] for record in caplog.records] == [0.001, 0.001]  # type: ignore[index]


@pytest.mark.parametrize("when", ["before its end", "in the pause"])
async def test_nothing_is_started_again_once_all_is_to_stop(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "_FIRST_PAUSE_S", 3600)
    stopping, run = asyncio.Event(), Run(1, 2)
    keeping = asyncio.create_task(keep_running("it", run, stopping, run.restarts))
    if when == "in the pause":
        await until(lambda: run.heard)
    stopping.set()
    await keeping
    assert run.heard == [1]


async def test_a_child_has_its_descriptor_and_ends_with_its_standard_input() -> None:
    code = "import os, sys; os.fstat(int(sys.argv[1])); sys.exit(len(sys.stdin.read()))"
    with socket.socket() as inherited:
        number = inherited.fileno()
        process = await child_process.start("-c", code, str(number), descriptor=number)
    assert process.stdin is not None
    process.stdin.write(b"abc")
    process.stdin.close()
    assert await process.wait() == 3
