"""A connection without sockets: bytes in, bytes out."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

from gateway.api.connection import CYCLE, ClientConnection
from gateway.api.connection_registry import ConnectionRegistry
from gateway.config import parse
from gateway.errors import ClientLeft, GatewayError
from tests.api.listening import CONFIG, Clock

LIMIT = 50_000


class Wire:
    """A transport that takes all that is written to it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.sent = b""
        self.closing = False

    def write(self, data: bytes) -> None:
        self.sent += data

    def close(self) -> None:
        self.closing = True

    abort = write_eof = close

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> socket.socket | None:
        return self.connection if name == "socket" else None

    def pause_reading(self) -> None: ...

    resume_reading = pause_reading


async def reads(scope: Any, receive: Any, send: Any) -> None:
    """An application that reads to the end and answers."""
    try:
        while (await receive()).get("more_body"):
            pass
    except GatewayError:
        await send({"type": "http.response.start", "status": 400, "headers": [(b"content-length", b"0")]})
    else:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})


async def takes(scope: Any, receive: Any, send: Any) -> None:
    """An application that takes a body of at most LIMIT bytes in one piece, and answers with it."""
    try:
        body, status = await scope["extensions"][CYCLE].whole(LIMIT, lambda _: None), 200
    except GatewayError as error:
        body, status = b"", error.status
    except ClientLeft:
        return
    length = b"%d" % len(body)
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": body})


def empty_registry(clock: Clock) -> ConnectionRegistry:
    """The registry of a server with room for 100 connections."""
    limits = parse(CONFIG.replace("ENGINE", "http://x:1").replace("LIMITS", "{}"), "f", Path(), {}).limits
    return ConnectionRegistry(lambda: limits, lambda: 100, clock)


async def fed(pieces: list[bytes], app: Any = reads) -> tuple[bytes, bool]:
    """What a connection answers to pieces, and whether it is over once time has passed."""
    here, there = socket.socketpair()
    with here, there:
        return await _feed(pieces, Wire(here), app)


async def _feed(pieces: list[bytes], wire: Wire, app: Any) -> tuple[bytes, bool]:
    clock = Clock()
    connections = empty_registry(clock)
    protocol = ClientConnection(app, connections)
    protocol.connection_made(wire)  # type: ignore[arg-type]
    for piece in pieces:
        if not wire.closing:
            protocol.data_received(piece)
        for _ in range(4):
            await asyncio.sleep(0)
    for _ in range(3):
        clock.now += 100
        connections.check()
        for _ in range(4):
            await asyncio.sleep(0)
    protocol.connection_lost(None)
    await asyncio.gather(*connections.tasks)
    assert not [*connections.connections, *connections.idle, *connections.heads, *connections.busy]
    assert not connections.leaving
    assert not connections.places.total()
    return wire.sent, wire.closing
