"""The sockets of the public side: what comes over a connection, how long and how much, and how it ends."""

from __future__ import annotations

import asyncio
import json
import resource
from typing import Any

import pytest
import uvicorn

from bench.serving import ROOT
from gateway.app import Gateway
from gateway.config import parse
from gateway.server import Connections, _Server, allow_many_connections
from tests.support import FakeEngine, chat, until

CHAT = "/v1/chat/completions"
ONE = "model: m\npools: {p: {engines: [http://127.0.0.1:9]}}\nroutes: {text: {}}\n"


def raw(**members: Any) -> bytes:
    """A completion as it goes over a connection that is kept."""
    body = json.dumps(chat(**members)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def test_a_connection_is_idle_when_nothing_has_come_for_a_while() -> None:
    server = uvicorn.Server(
        uvicorn.Config(FakeEngine(), port=0, http="httptools", log_config=None, access_log=False)
    )
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    connections = Connections(server.server_state.connections)
    reader, writer = await asyncio.open_connection(*server.servers[0].sockets[0].getsockname())
    ours = frozenset({writer.get_extra_info("sockname")})
    await until(lambda: connections.close_idle(0, 10) == ours)
    writer.write(raw())
    assert b"200 OK" in await reader.readuntil(b"world")
    await until(lambda: connections.close_idle(9, 10) == ours)
    writer.write(raw())
    assert connections.close_idle(30, 10) == ours  # it has been sent, and not been read
    assert b"200 OK" in await reader.readuntil(b"world")
    await until(lambda: not connections.close_idle(30, 10))
    assert b"HTTP" not in await reader.read()
    writer.close()
    server.should_exit = True
    await serving


async def test_a_server_ends_even_if_its_drain_fails() -> None:
    gateway = Gateway(parse(ONE, "f", ROOT, {}))
    server = _Server(uvicorn.Config(gateway.api), gateway)
    server.server_state.connections = None  # type: ignore[assignment]
    with pytest.raises(TypeError):
        await server._drain(linger=False)
    assert server.should_exit


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
