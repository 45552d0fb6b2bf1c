"""Several workers behind one port, as their users see them."""

from __future__ import annotations

import asyncio
import contextlib
import json
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
from gateway.errors import ConfigError
from gateway.server.worker_channel import ParentChannel
from gateway.server.worker_parent import WorkerParent
from gateway.server.worker_process import ParentsEngine
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
            if Path(f"/proc/{child}/cmdline")
            .read_bytes()
            .endswith(b"gateway.server.worker_process\0%d\0" % number)
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


async def test_a_worker_that_drains_gets_no_more_connections_while_another_stays(host: Host) -> None:
    held = await host.asked(2)
    os.kill(host.worker(0), signal.SIGTERM)
    await host.becomes(0, "/ready", 503)
    others = await host.asked(8)
    host.go_on.set()
    assert await asyncio.gather(*held, *others) == [200] * 10


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


def open_sockets() -> set[str]:
    """The sockets of this process."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(link))
    return {name for name in found if name.startswith("socket:")}


def parent_of(tmp_path: Path, engine: str = "http://127.0.0.1:9") -> WorkerParent:
    path = tmp_path / "routes.yaml"
    path.write_text(CONFIG.replace("ENGINE", engine).replace("PORT", str(neighbouring_ports())))
    return WorkerParent(load(path, workers=2), path, "127.0.0.1", 0, ("text", "info"))


async def test_one_embedded_engine_serves_all_workers_until_it_is_configured_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "gateway.server.embedded_process.embedded_command", lambda *_: ["-c", "import sys; sys.stdin.read()"]
    )
    others = children(os.getpid())
    parent = parent_of(tmp_path, "embedded")
    running = asyncio.create_task(parent.run())
    await until(lambda: all(worker.ready for worker in parent._workers), LONG_S)
    serving = [worker.process.pid for worker in parent._workers if worker.process]
    (engine,) = parent._embedded.pids
    assert sorted(set(children(os.getpid())) - set(others)) == sorted([engine, *serving])
    assert not any(map(children, serving))
    text = parent._path.read_text()
    parent._path.write_text(text.replace("embedded", "http://127.0.0.1:9"))
    await until(lambda: not parent._embedded.pids, LONG_S)
    assert not alive(engine)
    parent._stop(signal.SIGINT)
    await running
    assert parent.status == 0
    assert set(children(os.getpid())) <= set(others)


def test_no_port_is_opened_for_an_embedded_engine_that_is_not_configured(tmp_path: Path) -> None:
    before = open_sockets()
    parent = parent_of(tmp_path)
    assert parent._embedded.url is None
    assert open_sockets() == before


async def test_an_embedded_engine_is_added_by_a_restart_only(tmp_path: Path) -> None:
    parent = parent_of(tmp_path)
    text = parent._path.read_text()
    parent._path.write_text(text.replace("http://127.0.0.1:9", "embedded"))
    with pytest.raises(ConfigError, match="embedded is added by a restart only"):
        await parent._reload(load(parent._path, workers=2))
    assert parent._embedded.url is None


async def test_an_embedded_engine_is_killed_once_though_every_worker_says_that_it_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = parent_of(tmp_path)
    killed: list[str] = []
    monkeypatch.setattr(parent._embedded, "kill", lambda: killed.append("killed"))
    for worker in parent._workers:
        near, far = socket.socketpair()
        with near, far:
            worker.channel = near
            ParentsEngine(None, ParentChannel(far)).kill()
            parent._hear(worker)
    assert killed == ["killed"]


async def test_what_dead_processes_leave_to_the_first_process_is_freed(tmp_path: Path) -> None:
    parent = parent_of(tmp_path)
    left = os.posix_spawn("/bin/true", ["true"], {})  # noqa: ASYNC221 - nobody waits for it
    own = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    parent._workers[0].process = own
    await until(lambda: not alive(left), LONG_S)
    parent._reap()
    assert left not in children(os.getpid())
    assert await own.wait() == 0
