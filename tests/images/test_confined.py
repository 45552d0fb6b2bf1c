from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.images.confined import start

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.images.confined import ConfinedProcess

MIB = 2**20
ROOM = 64 * MIB
PROGRAM = """
import sys
from gateway.images.confined import confine, outlive_signals

outlive_signals()
confine(int(sys.argv[1]))
while size := sys.stdin.buffer.readline():
    try:
        held = bytes(int(size))
    except MemoryError:
        held = b""
    print(len(held), flush=True)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="told by /proc")


@asynccontextmanager
async def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ConfinedProcess]:
    (tmp_path / "hostile_reader.py").write_text(PROGRAM)
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.setenv("ENGINE_KEY", "hush")
    confined = await start("hostile_reader", ROOM)
    try:
        yield confined
    finally:
        confined.requests.close()
        confined.process.kill()
        confined.process.wait()


async def exchange(confined: ConfinedProcess, request: bytes) -> bytes:
    confined.requests.write(request)
    return await confined.responses.readline()


async def test_it_is_confined_before_it_reads_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with program(tmp_path, monkeypatch) as confined:
        assert await exchange(confined, b"1\n") == b"1\n"
        process = confined.process
        own = Path(f"/proc/{process.pid}")
        assert b"hush" not in (own / "environ").read_bytes()
        assert (own / "oom_score_adj").read_text() == "1000\n"
        assert (own / "fd/2").readlink() == Path(os.devnull)
        assert resource.prlimit(process.pid, resource.RLIMIT_CORE) == (0, 0)
        assert os.getsid(process.pid) == process.pid
        least = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(19, least + 10)


async def test_memory_is_what_it_was_told_and_a_stop_ends_it_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with program(tmp_path, monkeypatch) as confined:
        for stop in (signal.SIGTERM, signal.SIGINT):
            assert await exchange(confined, b"1\n") == b"1\n"
            confined.process.send_signal(stop)
        assert await exchange(confined, b"%d\n" % (2 * ROOM)) == b"0\n"
        assert await exchange(confined, b"%d\n" % (ROOM // 2)) == b"%d\n" % (ROOM // 2)
        confined.requests.write_eof()
        assert await asyncio.to_thread(confined.process.wait, 30) == 0


async def test_what_cannot_be_started_leaves_no_socket_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            await start("hostile_reader", ROOM)
    await asyncio.sleep(0)
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1  # the listing's own
