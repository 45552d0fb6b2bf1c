import asyncio
import errno
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.config import Config, parse
from gateway.server.embedded_process import EmbeddedProcess, EmbeddedSupervisor
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

WITHOUT = "model: m\npools: {p: {engines: [http://127.0.0.1:9]}}\nroutes: {text: {}}\n"
WITH = WITHOUT.replace("http://127.0.0.1:9", "embedded")


@asynccontextmanager
async def running(process: EmbeddedProcess | EmbeddedSupervisor) -> AsyncIterator[None]:
    task = asyncio.create_task(process.run())
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
    process = EmbeddedProcess(lambda fd: ["-c", CHILD, str(fd)], lambda: deaths.append(1))
    assert process.pid is None
    async with running(process):
        assert await page(process.url) == "ok"
        first = process.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: deaths)
        assert await page(process.url) == "ok"
        assert process.pid != first
        assert process.restarts == 1
        last = process.pid
    assert last is not None
    assert not alive(last)


async def test_a_child_that_will_not_stop_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.server.embedded_process._STOP_S", 0.05)
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + CHILD
    process = EmbeddedProcess(lambda fd: ["-c", stubborn, str(fd)], lambda: None)
    async with running(process):
        assert await page(process.url) == "ok"
        pid = process.pid
    assert pid is not None
    assert not alive(pid)


async def test_a_child_that_cannot_start_is_tried_again_ever_more_slowly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gateway.server.child_process._FIRST_PAUSE_S", 0.001)
    process = EmbeddedProcess(lambda fd: ["-c", "raise SystemExit(3)"], lambda: None)
    async with running(process):
        await until(lambda: process.restarts >= 3, within_s=30)
    messages = [
        record.getMessage() for record in caplog.records if record.name == "gateway.server.child_process"
    ]
    assert "exit status 3" in messages[0]


async def test_a_child_that_hangs_can_be_killed_and_comes_back() -> None:
    process = EmbeddedProcess(lambda fd: ["-c", CHILD, str(fd)], lambda: None)
    process.kill()
    async with running(process):
        assert await page(process.url) == "ok"
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        process.kill()
        await until(lambda: process.restarts == 1)
        assert await page(process.url) == "ok"


async def test_a_machine_without_processes_or_descriptors_is_no_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gateway.server.child_process._FIRST_PAUSE_S", 0.001)
    start = asyncio.create_subprocess_exec
    refusals = [OSError(errno.EMFILE, "Too many open files"), BlockingIOError(errno.EAGAIN, "no process")]

    async def exec_(*command: Any, **options: Any) -> asyncio.subprocess.Process:
        if refusals:
            raise refusals.pop()
        return await start(*command, **options)

    monkeypatch.setattr("gateway.server.child_process.asyncio.create_subprocess_exec", exec_)
    process = EmbeddedProcess(lambda fd: ["-c", CHILD, str(fd)], lambda: None)
    async with running(process):
        assert await page(process.url) == "ok"
    assert process.restarts == 2
    assert "cannot be started ([Errno 24] Too many open files)" in caplog.text


# Ends its work when it is told to end: here, when its file is there.
WORKING = """
import os, signal, sys, time
def end(*_):
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.01)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
open(sys.argv[1], "w").close()
sys.stdin.buffer.read()
"""


async def test_a_retired_child_ends_its_work_and_no_other_is_started(tmp_path: Path) -> None:
    began, done = tmp_path / "began", tmp_path / "done"
    process = EmbeddedProcess(lambda _: ["-c", WORKING, str(began), str(done)], lambda: None)
    task = asyncio.create_task(process.run())
    await until(began.exists)
    process.retire()
    pid = process.pid
    assert pid is not None
    for _ in range(100):
        await asyncio.sleep(0)
    assert alive(pid)
    done.touch()
    await task
    assert not alive(pid)


async def test_a_retired_child_that_never_ends_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.server.embedded_process._RETIRE_S", 0.05)
    began = tmp_path / "began"
    process = EmbeddedProcess(lambda _: ["-c", WORKING, str(began), str(tmp_path / "none")], lambda: None)
    task = asyncio.create_task(process.run())
    await until(began.exists)
    process.retire()
    await task
    assert process.restarts == 1


async def test_a_child_that_is_retired_between_two_starts_is_not_started_again() -> None:
    process = EmbeddedProcess(lambda _: ["-c", "raise SystemExit(3)"], lambda: None)
    task = asyncio.create_task(process.run())
    await until(lambda: process.restarts == 1)
    process.retire()
    await task
    assert process.restarts == 1


def configured(text: str, **more: str) -> Config:
    return parse(text.replace("model: m", f"model: {more.get('model', 'm')}"), "f", Path(), {})


async def test_an_engine_runs_while_it_is_configured_under_the_name_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names: list[str] = []

    def command(descriptor: int, model: str) -> list[str]:
        names.append(model)
        return ["-c", CHILD, str(descriptor)]

    monkeypatch.setattr("gateway.server.embedded_process.embedded_command", command)
    monkeypatch.setattr("gateway.server.child_process._FIRST_PAUSE_S", 0.001)
    deaths: list[int] = []
    supervisor = EmbeddedSupervisor(lambda: deaths.append(1))
    supervisor.configure(configured(WITHOUT))
    assert supervisor.url is None
    supervisor.kill()
    async with running(supervisor):
        supervisor.configure(configured(WITH))
        url = supervisor.url
        assert url is not None
        assert await page(url) == "ok"
        supervisor.configure(configured(WITH))
        assert (supervisor.url, names) == (url, ["m"])
        supervisor.configure(configured(WITH, model="n"))
        await until(lambda: names == ["m", "n"])
        assert (supervisor.url, await page(url)) == (url, "ok")
        assert deaths == [1]
        supervisor.configure(configured(WITHOUT))
        assert supervisor.url is None
        await until(lambda: not supervisor.pids)
        assert deaths == [1]  # it was to end
        supervisor.configure(configured(WITH))
        supervisor.configure(configured(WITHOUT))  # before it was started
        supervisor.configure(configured(WITH))
        assert supervisor.url is not None
        assert await page(supervisor.url) == "ok"
        (pid,) = supervisor.pids
        supervisor.kill()
        await until(lambda: len(deaths) == 2)
        assert await page(supervisor.url) == "ok"
    assert not alive(pid)
    assert not supervisor.pids
