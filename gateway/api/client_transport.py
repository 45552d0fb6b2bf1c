"""asyncio's transport to a client, with what waits in either direction."""

from __future__ import annotations

import asyncio
from typing import Any


class ClientTransport:
    """Writes to a client, counts that, and pauses.

    Attributes:
        written: bytes, those that wait to be sent included.
        read_paused: nothing is read from the client.
        write_paused: much waits to be sent.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._writable = asyncio.Event()
        self._writable.set()
        self.written = 0
        self.read_paused = self.write_paused = False

    @property
    def unsent(self) -> int:
        """Bytes that wait to be sent."""
        return self._transport.get_write_buffer_size()

    @property
    def raw(self) -> asyncio.Transport:
        """The transport itself."""
        return self._transport

    @property
    def client(self) -> tuple[str, int] | None:
        """The client's host and port, where it has them."""
        name: Any = self._transport.get_extra_info("peername")
        return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None

    def write(self, data: bytes) -> None:
        """Send data, or have it wait."""
        self.written += len(data)
        self._transport.write(data)

    async def drain(self) -> None:
        """Wait until little waits to be sent, or the connection is gone."""
        await self._writable.wait()

    def pause_writing(self) -> None:
        """Have those wait who drain."""
        self.write_paused = True
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let them go on."""
        self.write_paused = False
        self._writable.set()

    def pause_reading(self) -> None:
        """Leave what the client sends unread."""
        if not self.read_paused:
            self.read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        if self.read_paused:
            self.read_paused = False
            self._transport.resume_reading()

    def close(self, *, half: bool = False) -> None:
        """Close it once all has been sent; `half`: what the client sends is still read."""
        if half and not self._transport.is_closing():
            self.resume_reading()
            self._transport.write_eof()
        else:
            self._transport.close()

    def abort(self) -> None:
        """Close it at once, with all that waits to be sent."""
        self._transport.abort()
