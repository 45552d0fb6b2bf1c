"""Several workers behind one port, as their users see them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench.serving import ROOT, Served, serve
from gateway import cli
from gateway.config import load
from gateway.server import workers
from tests.support import FakeEngine, answer, chat, served, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CHAT = "/v1/chat/completions"
LONG_S = 60
CONFIG = """
model: glm-ocr
pools: {p: {engines: [ENGINE]}}
routes: {text: {timeouts: {connect_s: 30}}}
polling: {scrape_s: 0.2}
server: {linger_s: 0, drain_s: 30, admin_port: PORT, replicas: 2}
"""


def neighbouring_ports() -> int:
    """The first of two ports side by side on which nobody listens, and which the kernel gives to nobody."""
    while True:
        first = random.randrange(10_000, 32_000)
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for port in (first, first + 1):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@dataclass
class Host:
    """Two workers in front of an engine that holds each request back until `go_on`."""

    served: Served
    admin: int
    path: Path
    log: Path
    engine: FakeEngine
    go_on: asyncio.Event
    http: httpx.AsyncClient
    model: str = "glm-ocr"

    @property
    def pid(self) -> int:
        return self.served.process.pid

    def worker(self, number: int) -> int:
        (pid,) = (
            child
            for child in children(self.pid)
            if Path(f"/proc/{child}/cmdline").read_bytes().endswith(b"gateway.server.workers\0%d\0" % number)
        )
        return pid

    async def page(self, number: int, path: str) -> httpx.Response:
        """A page of a worker's admin port."""
        return await self.http.get(f"http://127.0.0.1:{self.admin + number}{path}")

    async def sum_of(self, number: int, name: str) -> float:
        """A metric of a worker, all labels together."""
        families = text_string_to_metric_families((await self.page(number, "/metrics")).text)
        return sum(sample.value for family in families for sample in family.samples if sample.name == name)

    async def becomes(self, number: int, path: str, status: int) -> None:
        """Wait until a page of a worker's has that status."""
        async with asyncio.timeout(LONG_S):
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if (await self.page(number, path)).status_code == status:
                        return
                await asyncio.sleep(0.02)

    async def ask(self) -> int:
        """Send a request over a connection of its own; return the status, 0 where it was cut."""
        try:
            async with httpx.AsyncClient(timeout=LONG_S) as http:
                return (
                    await http.post(self.served.url + CHAT, json=chat() | {"model": self.model})
                ).status_code
        except httpx.TransportError:
            return 0

    async def asked(self, count: int) -> list[asyncio.Task[int]]:
        """Begin requests; return when all are at their engine."""
        before = self.engine.running
        tasks = [asyncio.create_task(self.ask()) for _ in range(count)]
        await until(lambda: self.engine.running == before + count, LONG_S)
        return tasks

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    async def end(self) -> int:
        """Wait for its end; return the exit status."""
        return await asyncio.to_thread(self.served.process.wait, LONG_S)

    async def stop(self, *pids: int) -> None:
        """Have it drain while it has requests: all are answered, and it ends well."""
        self.go_on.clear()
        requests = await self.asked(4)
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        for number in range(2):
            await self.becomes(number, "/ready", 503)
        assert not any(one.done() for one in requests)
        self.go_on.set()
        assert await asyncio.gather(*requests) == [200] * 4
        assert await self.end() == 0


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    engine, go_on, admin = FakeEngine(), asyncio.Event(), neighbouring_ports()

    async def held(engine: FakeEngine, request: Any, send: Any) -> None:
        await go_on.wait()
        await answer(engine, request, send)

    engine.behave = held
    path, log = tmp_path / "routes.yaml", tmp_path / "log"
    async with served(engine) as url, httpx.AsyncClient(timeout=LONG_S) as http:
        path.write_text(CONFIG.replace("ENGINE", url).replace("PORT", str(admin)))
        with log.open("wb") as file:
            serving = serve(path, file.fileno(), ["--workers", "2", "--log-format", "json"])
            running = await asyncio.to_thread(serving.__enter__)
        try:
            yield Host(running, admin, path, log, engine, go_on, http)
        finally:
            go_on.set()
            await asyncio.to_thread(serving.__exit__, None, None, None)


async def test_workers_share_requests_evenly_count_their_own_and_drain(host: Host) -> None:
    host.go_on.set()
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(httpx.AsyncClient(timeout=LONG_S)) for _ in range(8)]
        for _ in range(2):  # each keeps its connection
            for http in clients:
                assert (await http.post(host.served.url + CHAT, json=chat())).status_code == 200
    counts = [await host.sum_of(number, "ocr_gateway_requests_total") for number in range(2)]
    assert sum(counts) == 16
    assert min(counts) >= 6
    told = [line["worker"] for line in host.lines() if line["message"] == "request"]
    assert [told.count(number) for number in range(2)] == counts
    await host.stop(host.pid)


async def test_a_worker_that_is_killed_takes_no_others_requests_along_and_comes_back(host: Host) -> None:
    # It starts anew with what was valid last.
    good = host.path.read_text()
    host.path.write_text(good.replace("model: glm-ocr", "model: another"))
    os.kill(host.pid, signal.SIGHUP)
    async with asyncio.timeout(LONG_S):
        while sum("taken over" in line["message"] for line in host.lines()) < 3:  # noqa: ASYNC110 - processes
            await asyncio.sleep(0.02)
    host.path.write_text("no configuration")
    host.model = "another"
    requests = await host.asked(6)
    kept = await host.sum_of(1, "ocr_gateway_in_flight")
    assert 2 <= kept <= 4
    before = host.worker(0)
    os.kill(before, signal.SIGKILL)
    await until(lambda: host.engine.running == kept, LONG_S)
    more = await host.asked(2)  # while it is away
    host.go_on.set()
    assert sorted(await asyncio.gather(*requests)) == [0] * int(6 - kept) + [200] * int(kept)
    assert await asyncio.gather(*more) == [200, 200]
    await host.becomes(0, "/ready", 200)
    assert host.worker(0) != before
    assert await asyncio.gather(*(host.ask() for _ in range(4))) == [200] * 4
    assert await host.sum_of(0, "ocr_gateway_requests_total") >= 1
    assert any("worker 0 has ended (signal 9); restart in" in line["message"] for line in host.lines())
    await host.stop(host.pid, *children(host.pid))  # as systemd does; each drains once


async def test_a_second_signal_waits_for_nobody(host: Host) -> None:
    requests = await host.asked(2)
    os.kill(host.pid, signal.SIGTERM)
    for number in range(2):
        await host.becomes(number, "/ready", 503)
    os.kill(host.pid, signal.SIGTERM)
    assert await host.end() == -signal.SIGTERM
    assert 200 not in await asyncio.gather(*requests)


async def test_workers_end_with_their_parent(host: Host) -> None:
    both = [host.worker(number) for number in range(2)]
    os.kill(host.pid, signal.SIGKILL)
    await until(lambda: not any(map(alive, both)), LONG_S)
    assert "the parent process has ended, and with it this one" in host.log.read_text()


def test_a_wrong_configuration_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text(CONFIG.replace("ENGINE", "http://e").replace("admin_port: PORT, ", ""))
    for command in (["serve", "--port", "0"], ["check"]):
        assert cli.main([*command, "--config", str(path), "--workers", "2"]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"{path}:6: server.admin_port: is required with 2 workers")


@pytest.mark.parametrize("which", ["port", "admin port"])
def test_a_port_that_is_taken_is_told_once_and_ends_all(tmp_path: Path, which: str) -> None:
    path, admin, port = tmp_path / "routes.yaml", neighbouring_ports(), neighbouring_ports()
    path.write_text(CONFIG.replace("ENGINE", "http://127.0.0.1:9").replace("PORT", str(admin)))
    with socket.create_server(("127.0.0.1", port if which == "port" else admin + 1)) as taken:
        command = [sys.executable, "-m", "gateway.cli", "serve", "--workers=2", f"--config={path}"]
        ended = subprocess.run(
            [*command, f"--port={port}", "--log-format=json"], cwd=ROOT, capture_output=True, timeout=LONG_S
        )
        assert str(taken.getsockname()[1]) in ended.stderr.decode()
    assert ended.returncode == 1
    lines = [json.loads(line) for line in ended.stderr.decode().splitlines()]
    (told,) = (line["message"] for line in lines if line["level"] in ("ERROR", "CRITICAL"))
    assert "address already in use" in told


def crew_of(tmp_path: Path, engine: str = "http://127.0.0.1:9") -> workers.Crew:
    path = tmp_path / "routes.yaml"
    path.write_text(CONFIG.replace("ENGINE", engine).replace("PORT", str(neighbouring_ports())))
    return workers.Crew(load(path, workers=2), path, "127.0.0.1", 0, ("text", "info"))


async def test_connections_go_to_the_worker_with_the_fewest_that_takes_them(tmp_path: Path) -> None:
    crew = crew_of(tmp_path)
    ends = [socket.socketpair() for _ in range(2)]
    with contextlib.ExitStack() as stack:
        for worker, (own, far) in zip(crew._workers, ends, strict=True):
            stack.enter_context(own)
            stack.enter_context(far)
            own.setblocking(False)
            worker.channel, worker.ready = own, True

        def given() -> list[int]:
            assert crew._give(ends[0][0])
            return [worker.connections for worker in crew._workers]

        assert [given() for _ in range(4)] == [[1, 0], [1, 1], [2, 1], [2, 2]]
        ends[0][1].send(workers._CLOSED * 2)
        crew._hear(crew._workers[0])
        assert [given(), given(), given()] == [[1, 2], [2, 2], [2, 3]]
        ends[0][1].close()  # it has died, which nobody has noticed yet
        assert given() == [2, 4]
        crew._hear(crew._workers[0])
        assert not crew._workers[0].ready
        while crew._give(ends[0][0]):  # one that takes none is full at some time
            pass
        assert ends[1][1].recv(1) == workers._CONNECTION
    crew._supervisor._socket.close()


async def test_one_embedded_engine_serves_all_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "gateway.server.app.embedded_command", lambda *_: ["-c", "import sys; sys.stdin.read()"]
    )
    crew = crew_of(tmp_path, "embedded")
    running = asyncio.create_task(crew.run())
    await until(lambda: all(worker.ready for worker in crew._workers), LONG_S)
    serving = [worker.process.pid for worker in crew._workers if worker.process]
    assert sorted(children(os.getpid())) == sorted([crew._supervisor.pid or 0, *serving])
    assert not any(map(children, serving))
    crew._stop(signal.SIGINT)
    await running
    assert (crew.status, children(os.getpid())) == (0, [])


async def test_an_embedded_engine_is_killed_once_though_every_worker_says_that_it_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew = crew_of(tmp_path)
    killed: list[str] = []
    monkeypatch.setattr(crew._supervisor, "kill", lambda: killed.append("killed"))
    for worker in crew._workers:
        near, far = socket.socketpair()
        with near, far:
            worker.channel = near
            workers._FarKeeper(crew._supervisor.url, far).kill()
            crew._hear(worker)
    assert killed == ["killed"]
    crew._supervisor._socket.close()


async def test_what_dead_processes_leave_to_the_first_process_is_freed(tmp_path: Path) -> None:
    crew = crew_of(tmp_path)
    left = os.posix_spawn("/bin/true", ["true"], {})  # noqa: ASYNC221 - nobody waits for it
    own = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    crew._workers[0].process = own
    await until(lambda: not alive(left), LONG_S)
    crew._reap()
    assert left not in children(os.getpid())
    assert await own.wait() == 0
    crew._supervisor._socket.close()


def test_every_line_of_a_workers_log_has_its_number(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("gateway.tests")
    caplog.handler.addFilter(named := workers._named(3))
    try:
        log.warning("one", extra={"fields": {"status": 200}})
        log.warning("two")
    finally:
        caplog.handler.removeFilter(named)
    assert [record.__dict__["fields"] for record in caplog.records] == [
        {"worker": 3, "status": 200},
        {"worker": 3},
    ]
