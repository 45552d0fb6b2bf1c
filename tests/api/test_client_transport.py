"""What waits for a client, and what of it is left unread."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from gateway.api.client_transport import ClientTransport


class Recorder:
    """A transport that notes what it is told."""

    def __init__(self, closing: bool = False, peer: object = ("::1", 7, 0, 0)) -> None:
        self.told: list[str] = []
        self.closing = closing
        self.peer = peer

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.told.append(name)

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return 3

    def get_extra_info(self, _: str) -> object:
        return self.peer


def transport(**more: Any) -> tuple[ClientTransport, Recorder]:
    recorder = Recorder(**more)
    return ClientTransport(recorder), recorder  # type: ignore[arg-type]


def test_what_is_written_is_counted_whether_sent_or_not() -> None:
    client, recorder = transport()
    client.write(b"12345")
    client.write(b"678")
    assert (client.written, client.unsent, recorder.told) == (8, 3, ["write", "write"])


def test_reading_is_paused_and_resumed_once() -> None:
    client, recorder = transport()
    client.resume_reading()
    client.pause_reading()
    client.pause_reading()
    assert client.read_paused
    client.resume_reading()
    client.resume_reading()
    assert recorder.told == ["pause_reading", "resume_reading"]


async def test_who_drains_waits_until_writing_goes_on() -> None:
    client, _ = transport()
    client.pause_writing()
    draining = asyncio.create_task(client.drain())
    await asyncio.sleep(0)
    assert client.write_paused
    assert not draining.done()
    client.resume_writing()
    await draining
    assert not client.write_paused


@pytest.mark.parametrize(
    ("half", "closing", "told"),
    [
        (False, False, ["close"]),
        (True, False, ["resume_reading", "write_eof"]),
        (True, True, ["close"]),  # its end cannot be sent any more
    ],
)
def test_a_half_closed_connection_is_read_on(half: bool, closing: bool, told: list[str]) -> None:
    client, recorder = transport(closing=closing)
    client.read_paused = True
    client.close(half=half)
    assert recorder.told == told


def test_a_client_is_its_host_and_port_where_it_has_them() -> None:
    assert transport()[0].client == ("::1", 7)
    assert transport(peer="")[0].client is None
    assert transport(peer=None)[0].client is None


async def test_an_aborted_connection_is_gone_at_once() -> None:
    near, far = socket.socketpair()
    with far:
        made, _ = await asyncio.get_running_loop().connect_accepted_socket(asyncio.Protocol, near)
        client = ClientTransport(made)
        client.write(b"x")
        client.abort()
        assert client.raw.is_closing()
