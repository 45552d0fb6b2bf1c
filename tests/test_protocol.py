"""What comes over a connection, byte by byte: what is a request, how long it may take, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gateway.app import Gateway
from gateway.config import parse
from gateway.server import Server
from tests.support import FakeEngine, chat, served, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CHAT = "/v1/chat/completions"
CONFIG = """
model: glm-ocr
pools: {p: {engines: [ENGINE]}}
routes: {text: {}}
polling: {scrape_s: 0.05}
server: {linger_s: 0, drain_s: 5}
limits: {LIMITS}
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
    server: Server
    engine: FakeEngine
    port: int
    clock: Clock = field(default_factory=Clock)

    def later(self, seconds: float) -> None:
        self.clock.now += seconds
        self.server.server_state.look()

    async def connect(self) -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", self.port, limit=2**20))


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
        first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
        headers = dict(line.lower().split(": ", 1) for line in lines)
        return int(first.split()[1]), headers

    async def error(self) -> tuple[int, str]:
        """An answer that is an error of OpenAI's form, and the last one of this connection."""
        status, headers, body = await self.answer()
        assert headers["connection"] == "close"
        assert await self.reader.read() == b""
        self.writer.close()
        return status, json.loads(body)["error"]["code"]


@contextlib.asynccontextmanager
async def listening(limits: str = "", config: str = CONFIG) -> AsyncIterator[Listening]:
    """Serve a gateway over a scripted engine, all in this process."""
    engine = FakeEngine()
    async with served(engine) as url:
        text = config.replace("ENGINE", url).replace("LIMITS", limits)
        gateway = Gateway(parse(text, "routes.yaml", Path(), {}))
        server = Server(gateway)
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


async def test_first() -> None:
    async with listening() as it:
        one = await it.connect()
        for _ in range(3):
            one.send(request())
            status, headers, body = await one.answer()
            assert (status, "connection" in headers) == (200, False)
        one.send(HEALTH)
        assert (await one.answer())[0] == 200
        one.send(b"\x16\x03\x01 junk\r\n")
        assert await one.error() == (400, "bad_http")
