"""A gateway on real sockets, whose connections live by a clock of their own; and bare clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.config import parse
from gateway.server.app import Gateway
from gateway.server.listen import GatewayServer
from tests.support import FakeEngine, answer, chat, served, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.api.connection_registry import ConnectionRegistry
    from gateway.config import Config

CHAT = "/v1/chat/completions"
CONFIG = """
model: glm-ocr
pools: {p: {engines: [ENGINE]}}
routes: {text: {}}
polling: {scrape_s: 0.05}
server: {linger_s: 0, drain_s: 5}
limits: LIMITS
"""
SMALL = json.dumps(chat(image=None)).encode()


@dataclass
class Clock:
    """Seconds that pass when told."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Listening:
    """A gateway on real sockets, whose connections live by a clock of their own."""

    gateway: Gateway
    server: GatewayServer
    engine: FakeEngine
    port: int
    clock: Clock = field(default_factory=Clock)

    def later(self, seconds: float) -> None:
        self.clock.now += seconds
        self.server.server_state.check()

    @property
    def connections(self) -> ConnectionRegistry:
        return self.server.server_state

    async def connect(self, receive: int | None = None) -> Client:
        """A connection; `receive` is the size of its buffer for what the gateway sends."""
        connection = socket.socket()
        if receive:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self.port))
        return Client(*await asyncio.open_connection(sock=connection, limit=2**20))

    def received(self) -> int:
        """Bytes of the bodies that are under way."""
        return sum(one.reader.body_bytes for one in self.connections.busy)

    async def gone(self) -> None:
        """Until nothing is left of any connection."""
        held = self.connections
        await until(
            lambda: (
                not (held.connections or held.idle or held.heads or held.busy or held.leaving or held.tasks)
            )
        )

    async def configure(self, limits: str) -> None:
        """Take other limits over."""
        (engine,) = self.gateway.state.engines()
        await self.gateway.reload(configured(engine.url, limits))
        self.later(0)


@dataclass
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """The next answer, which tells its length."""
        status, headers = await self.head()
        return status, headers, await self.reader.readexactly(int(headers["content-length"]))

    async def head(self) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(10):
            top = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = top.decode("latin-1").split("\r\n")[:-2]
        headers = dict(line.lower().split(": ", 1) for line in lines)
        return int(first.split()[1]), headers

    async def ended(self) -> None:
        """The end of what the gateway says, which is no reset."""
        async with asyncio.timeout(10):
            assert await self.reader.read() == b""
        self.writer.close()

    async def error(self) -> tuple[int, str]:
        """An answer that is an error of OpenAI's form, and the last one of this connection."""
        status, headers, body = await self.answer()
        assert headers["connection"] == "close"
        await self.ended()
        return status, json.loads(body)["error"]["code"]


def configured(engine: str, limits: str = "") -> Config:
    return parse(
        CONFIG.replace("ENGINE", engine).replace("LIMITS", limits or "{}"), "routes.yaml", Path(), {}
    )


@contextlib.asynccontextmanager
async def listening(limits: str = "") -> AsyncIterator[Listening]:
    """Serve a gateway over a scripted engine, all in this process."""
    engine = FakeEngine()
    async with served(engine) as url:
        gateway = Gateway(configured(url, limits))
        server = GatewayServer(gateway)
        clock = Clock()
        server.server_state.clock = clock
        serving = asyncio.create_task(server._serve())
        await until(lambda: server.started or serving.done())
        if serving.done():
            serving.result()
        port = server.servers[0].sockets[0].getsockname()[1]
        await until(lambda: all(status.view.up for status in gateway.state.snapshot().engines))
        try:
            yield Listening(gateway, server, engine, port, clock)
        finally:
            server.should_exit = True
            await serving


def request(body: bytes = SMALL, path: str = CHAT, *headers: bytes, length: bool = True) -> bytes:
    lines = [f"POST {path} HTTP/1.1".encode(), b"host: x", b"content-type: application/json", *headers]
    if length:
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join([*lines, b"", body])


HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
BEGUN = HEALTH[:-2]


class Held:
    """An engine that answers when told."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def __call__(self, engine: FakeEngine, request: Any, send: Any) -> None:
        await self.go_on.wait()
        await answer(engine, request, send)
