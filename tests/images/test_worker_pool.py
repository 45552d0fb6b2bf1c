import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

import pytest

from gateway.errors import BadImage
from gateway.images.worker import guess_layout, layout_model
from gateway.images.worker_pool import WorkerPool
from tests.support import data_url, encoded, picture, png, until

ROOM = 256 * 2**20
PAGE = png("some text")
URL = data_url(PAGE).encode()
BROKEN = encoded(picture("words on a page", (300, 300)), "JPEG")[:-900]


def stopped(pool: WorkerPool) -> int:
    """Stop the process there is in whatever it does; return its id."""
    (pid,) = pool.pids
    os.kill(pid, signal.SIGSTOP)
    return pid


def read(path: str) -> bytes:
    return Path(path).read_bytes()


async def test_a_process_is_started_when_it_is_needed_and_used_again() -> None:
    async with WorkerPool(ROOM) as pool:
        assert pool.pids == []
        assert await pool.guess(URL) == guess_layout(PAGE, layout_model())
        (pid,) = pool.pids
        await pool.check(PAGE)
        for _ in range(2):
            with pytest.raises(BadImage, match="truncated or corrupt") as raised:
                await pool.check(BROKEN)
            assert raised.value.code == "invalid_image"
        assert pool.pids == [pid]
        both = await asyncio.gather(pool.guess(memoryview(URL)), pool.guess(bytearray(URL)))
        assert both[0] == both[1] is not None
        assert len(pool.pids) == 2
    assert pool.pids == []
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_one_that_is_killed_costs_one_guess(caplog: pytest.LogCaptureFixture) -> None:
    async with WorkerPool(ROOM) as pool:
        await pool.guess(URL)
        pid = stopped(pool)
        guess = asyncio.create_task(pool.guess(URL))
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGKILL)
        assert await guess is None
        (record,) = caplog.records
        assert record.levelno == logging.ERROR
        assert f"exit status {-signal.SIGKILL}" in record.getMessage()
        assert await pool.guess(URL)
        assert pid not in pool.pids


async def test_one_that_is_killed_while_it_rests_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with WorkerPool(ROOM) as pool:
        await pool.guess(URL)
        (pid,) = pool.pids
        os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert await pool.guess(URL)
        assert pid not in pool.pids
        assert not caplog.records


async def test_one_that_is_stuck_is_killed(caplog: pytest.LogCaptureFixture) -> None:
    async with WorkerPool(ROOM, longest_s=30) as pool:
        await pool.guess(URL)
        stopped(pool)
        pool._longest_s = 0.01
        assert await pool.guess(URL) is None
        assert pool.pids == []
        assert f"TimeoutError, exit status {-signal.SIGKILL}" in caplog.text


async def test_an_image_that_needs_too_much_memory_is_left(caplog: pytest.LogCaptureFixture) -> None:
    large = encoded(picture("large", (5000, 5000)), "PNG")
    async with WorkerPool(32 * 2**20) as pool:
        assert await pool.guess(data_url(large).encode()) is None
        await pool.check(large)
        assert await pool.guess(URL)
        assert {record.getMessage() for record in caplog.records} == {
            "an image needs more memory than it may have to be inspected"
        }


async def test_none_is_started_once_it_stops(caplog: pytest.LogCaptureFixture) -> None:
    async with WorkerPool(ROOM) as pool:
        guess = asyncio.create_task(pool.guess(URL))
        await asyncio.sleep(0)
    assert await guess is None
    assert pool.pids == []
    assert not caplog.records


async def test_the_stop_waits_for_no_look(caplog: pytest.LogCaptureFixture) -> None:
    async with WorkerPool(ROOM) as pool:
        await pool.guess(URL)
        stopped(pool)
        looks = [asyncio.create_task(pool.guess(URL)) for _ in range(3)]
        await until(lambda: len(pool.pids) == 3)
    assert await asyncio.gather(*looks) == [None] * 3
    assert pool.pids == []
    assert await pool.guess(URL) is None
    assert not caplog.records


async def test_where_none_can_be_started_it_is_not_tried_for_each_image(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    async with WorkerPool(ROOM) as pool:
        assert [await pool.guess(URL) for _ in range(10)] == [None] * 10
        assert len(caplog.records) == 1
        assert "cannot be started" in caplog.text


@pytest.mark.parametrize("answer", ["nonsense", '{"route": 7}', "x" * 100_000, ""])
async def test_nonsense_is_no_answer(
    answer: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    executable = tmp_path / "python"
    executable.write_text(f"#!/bin/sh\necho '{answer}'\nexec cat >/dev/null\n")
    executable.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(executable))
    async with WorkerPool(ROOM) as pool:
        assert await pool.guess(URL) is None
        assert pool.pids == []
        assert len(caplog.records) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="told by /proc")
async def test_it_gets_no_secrets_and_no_signals_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "hush")
    async with WorkerPool(ROOM) as pool:
        await pool.guess(URL)
        (pid,) = pool.pids
        assert os.getsid(pid) == pid
        assert b"hush" not in read(f"/proc/{pid}/environ")
        places = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
        assert all(place.startswith(("pipe:", "socket:", os.devnull)) for place in places), places
