"""The ports, signals and open files of a served gateway."""

from __future__ import annotations

import ast
import asyncio
import resource
import signal
import socket
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import uvloop

from bench.serving import ROOT, free_port, serve
from gateway.config import parse
from gateway.server.app import Gateway
from gateway.server.listen import GatewayServer, allow_many_connections
from tests.support import FakeEngine, answer, chat, served, serving, until

if TYPE_CHECKING:
    from pathlib import Path

LOOP = uvloop.new_event_loop
CHAT = "/v1/chat/completions"
ONE = "model: m\npools: {p: {engines: [http://127.0.0.1:9]}}\nroutes: {text: {}}\n"


async def test_a_server_ends_even_if_its_drain_fails() -> None:
    gateway = Gateway(parse(ONE, "f", ROOT, {}))
    server = GatewayServer(gateway)
    server.server_state.idle = None  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        await server._drain(linger=False)
    assert server.should_exit


ADMIN = """
model: glm-ocr
pools: {p: {engines: [ENGINE]}}
routes: {text: {}}
polling: {scrape_s: 0.05}
server: {linger_s: 0, drain_s: 30, admin_port: PORT}
limits: {connections: 1}
"""


async def test_the_admin_port_has_the_admin_pages_until_the_end(tmp_path: Path) -> None:
    path, port = tmp_path / "routes.yaml", free_port()
    engine, go_on = FakeEngine(), asyncio.Event()

    async def held(engine: FakeEngine, request: Any, send: Any) -> None:
        await go_on.wait()
        await answer(engine, request, send)

    engine.behave = held
    async with served(engine) as url, httpx.AsyncClient(timeout=30) as http:
        path.write_text(ADMIN.replace("ENGINE", url).replace("PORT", str(port)))
        serving = serve(path)
        running = await asyncio.to_thread(serving.__enter__)
        try:
            admin = f"http://127.0.0.1:{port}"
            begun = asyncio.create_task(http.post(running.url + CHAT, json=chat()))
            await until(lambda: engine.running)
            assert (await http.get(admin + "/metrics")).status_code == 200
            full = await http.get(running.url + "/health")
            assert full.json()["error"]["code"] == "too_many_connections"
            running.process.send_signal(signal.SIGTERM)
            while "requests_total" not in (page := await http.get(admin + "/metrics")).text or (
                page.headers.get("connection") != "close"
            ):
                pass
            assert not begun.done()
            go_on.set()
            assert (await begun).status_code == 200
            assert await asyncio.to_thread(running.process.wait, 30) == 0
        finally:
            go_on.set()
            await asyncio.to_thread(serving.__exit__, None, None, None)


async def test_an_admin_port_that_is_taken_ends_the_start(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        gateway = Gateway(parse(f"{ONE}server: {{admin_port: {port}}}", "f", ROOT, {}))
        with pytest.raises(SystemExit):
            await GatewayServer(gateway)._serve()
    assert f"the admin port {port} cannot be opened" in caplog.text


async def test_another_admin_port_waits_for_a_new_start(caplog: pytest.LogCaptureFixture) -> None:
    gateway = Gateway(parse(ONE, "f", ROOT, {}))
    await gateway.reload(parse(f"{ONE}server: {{admin_port: 9}}", "f", ROOT, {}))
    assert "server.admin_port has changed" in caplog.text


@pytest.mark.parametrize(
    ("limits", "files", "told"), [("", 1200, True), ("", 2000, False), ("{connections: 5000}", 2000, True)]
)
async def test_too_few_open_files_are_told_at_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, limits: str, files: int, told: bool
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    server = GatewayServer(Gateway(parse(f"{ONE}limits: {limits}", "f", ROOT, {})))
    server.should_exit = True
    await server._serve()
    assert ("raise the limit of open files" in caplog.text) is told


async def test_too_few_open_files_are_told_after_a_reload_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2000, 2000))
    gateway = Gateway(parse(ONE, "f", ROOT, {}))
    async with serving(gateway):
        assert "raise the limit of open files" not in caplog.text
        await gateway.reload(parse(f"{ONE}limits: {{connections: 5000}}", "f", ROOT, {}))
        await until(lambda: "raise the limit of open files" in caplog.text)


def test_of_uvicorn_only_public_names_are_used() -> None:
    """Others change with any version of it, and pyproject.toml allows many."""
    names = set()
    for path in (ROOT / "gateway").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("uvicorn"):
                names.add(node.module)
            elif isinstance(node, ast.Import):
                names |= {one.name for one in node.names if one.name.startswith("uvicorn.")}
            elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "uvicorn":
                names.add(node.attr)
    assert names == {"Config", "Server"}


def test_without_a_limit_of_open_files_there_is_one_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda _: (unlimited, unlimited))
    assert 60_000 < GatewayServer(Gateway(parse(ONE, "f", ROOT, {}))).capacity() < 65_536


def test_the_limit_of_open_files_is_raised_to_what_is_allowed() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1000, before[1]))
        allow_many_connections()
        raised = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert (raised[0] > 1000, raised[1]) == (before[1] > 1000 or before[1] < 0, before[1])
        allow_many_connections()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == raised
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
