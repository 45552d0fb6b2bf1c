import asyncio
import errno
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.engines.supervisor import Supervisor
from tests.support import until

# Serves one fixed page on an inherited socket and ends with its standard input, as the embedded engine does.
CHILD = """
import os, socket, sys, threading
def serve():
    listener = socket.socket(fileno=int(sys.argv[1]))
    while True:
        connection, _ = listener.accept()
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\\r\\nconnection: close\\r\\ncontent-length: 2\\r\\n\\r\\nok")
        connection.close()
threading.Thread(target=serve, daemon=True).start()
sys.stdin.buffer.read()
"""


@asynccontextmanager
async def running(supervisor: Supervisor) -> AsyncIterator[None]:
    task = asyncio.create_task(supervisor.run())
    try:
        yield
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def page(url: str) -> str:
    async with httpx.AsyncClient(timeout=20) as http:
        return (await http.get(url)).text


async def test_a_killed_child_is_reported_and_started_again_on_the_same_port() -> None:
    deaths: list[int] = []
    supervisor = Supervisor(lambda fd: ["-c", CHILD, str(fd)], lambda: deaths.append(1))
    assert supervisor.pid is None
    async with running(supervisor):
        assert await page(supervisor.url) == "ok"
        first = supervisor.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: deaths)
        assert await page(supervisor.url) == "ok"
        assert supervisor.pid != first
        assert supervisor.restarts == 1
        last = supervisor.pid
    assert last is not None
    assert not alive(last)


async def test_a_child_that_will_not_stop_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.engines.supervisor._STOP_S", 0.05)
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + CHILD
    supervisor = Supervisor(lambda fd: ["-c", stubborn, str(fd)], lambda: None)
    async with running(supervisor):
        assert await page(supervisor.url) == "ok"
        pid = supervisor.pid
    assert pid is not None
    assert not alive(pid)


async def test_a_child_that_cannot_start_is_tried_again_ever_more_slowly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gateway.engines.supervisor._FIRST_PAUSE_S", 0.001)
    supervisor = Supervisor(lambda fd: ["-c", "raise SystemExit(3)"], lambda: None)
    async with running(supervisor):
        await until(lambda: supervisor.restarts >= 3, within_s=30)
    messages = [
        record.getMessage() for record in caplog.records if record.name == "gateway.engines.supervisor"
    ]
    assert "exit status 3" in messages[0]


async def test_a_child_that_hangs_can_be_killed_and_comes_back() -> None:
    supervisor = Supervisor(lambda fd: ["-c", CHILD, str(fd)], lambda: None)
    supervisor.kill()
    async with running(supervisor):
        assert await page(supervisor.url) == "ok"
        assert supervisor.pid is not None
        os.kill(supervisor.pid, signal.SIGSTOP)
        supervisor.kill()
        await until(lambda: supervisor.restarts == 1)
        assert await page(supervisor.url) == "ok"


async def test_a_machine_without_processes_or_descriptors_is_no_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gateway.engines.supervisor._FIRST_PAUSE_S", 0.001)
    start = asyncio.create_subprocess_exec
    refusals = [OSError(errno.EMFILE, "Too many open files"), BlockingIOError(errno.EAGAIN, "no process")]

    async def exec_(*command: Any, **options: Any) -> asyncio.subprocess.Process:
        if refusals:
            raise refusals.pop()
        return await start(*command, **options)

    monkeypatch.setattr("gateway.engines.supervisor.asyncio.create_subprocess_exec", exec_)
    supervisor = Supervisor(lambda fd: ["-c", CHILD, str(fd)], lambda: None)
    async with running(supervisor):
        assert await page(supervisor.url) == "ok"
    assert supervisor.restarts == 2
    assert "cannot be started ([Errno 24] Too many open files)" in caplog.text
