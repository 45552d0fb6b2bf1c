from __future__ import annotations

import os
import resource
import signal
import socket
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.images.confined import start

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

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


@contextmanager
def program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """A confined module, and the other end of its input and output."""
    (tmp_path / "hostile_reader.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("ENGINE_KEY", "hush")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = start("hostile_reader", theirs, ROOM)
        theirs.close()
        try:
            yield process, ours
        finally:
            process.kill()
            process.wait()


def test_it_is_confined_before_it_reads_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with program(tmp_path, monkeypatch) as (process, ours):
        ours.sendall(b"1\n")
        assert ours.recv(100) == b"1\n"
        own = Path(f"/proc/{process.pid}")
        assert b"hush" not in (own / "environ").read_bytes()
        assert (own / "oom_score_adj").read_text() == "1000\n"
        assert (own / "fd/2").readlink() == Path(os.devnull)
        assert resource.prlimit(process.pid, resource.RLIMIT_CORE) == (0, 0)
        assert os.getsid(process.pid) == process.pid
        least = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(19, least + 10)


def test_memory_is_what_it_was_told_and_a_stop_ends_it_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with program(tmp_path, monkeypatch) as (process, ours):
        for stop in (signal.SIGTERM, signal.SIGINT):
            ours.sendall(b"1\n")
            assert ours.recv(100) == b"1\n"
            process.send_signal(stop)
        ours.sendall(b"%d\n" % (2 * ROOM))
        assert ours.recv(100) == b"0\n"
        ours.sendall(b"%d\n" % (ROOM // 2))
        assert ours.recv(100) == b"%d\n" % (ROOM // 2)
        ours.shutdown(socket.SHUT_WR)
        assert process.wait(30) == 0
