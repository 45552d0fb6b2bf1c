import asyncio
import socket

from gateway.upstream.unread import has_unread


async def test_bytes_and_the_end_are_seen_before_they_are_read() -> None:
    ours, theirs = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=ours)
    transport = writer.transport
    transport.pause_reading()  # type: ignore[attr-defined]
    assert not has_unread(transport)
    theirs.send(b"x")
    assert has_unread(transport)
    ours.recv(1)
    assert not has_unread(transport)
    theirs.close()
    assert has_unread(transport)
    transport.abort()
