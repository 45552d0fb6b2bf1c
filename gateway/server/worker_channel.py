"""What a parent process tells its workers at their start; and then both, over a pair of sockets, by bytes."""

from __future__ import annotations

import contextlib
import signal
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path

    from gateway.config import Config
    from gateway.telemetry.logs import LogFormat

# What a worker tells its parent: it takes connections, one has been closed, the embedded engine hangs, the
# worker drains.
READY, CLOSED, HUNG, DRAINING = b"r", b"c", b"h", b"d"
# The second signal: what is in flight gets no time any more.
AT_ONCE = signal.SIGQUIT

# What the parent tells a worker goes with a connection.
_CONNECTION = b"+"


class WorkerSettings(NamedTuple):
    """What a worker is told at its start.

    Attributes:
        config: valid.
        path: the file it came from.
        host: where the admin port is.
        log_format: of its log.
        log_level: likewise.
        number: from 0 on.
        descriptor: of its channel to the parent.
        embedded_url: of the parent's embedded engine; None where there is none.
    """

    config: Config
    path: Path
    host: str
    log_format: LogFormat
    log_level: str
    number: int
    descriptor: int
    embedded_url: str | None


@dataclass(eq=False)
class WorkerHandle:
    """A worker, as its parent has it.

    Attributes:
        number: from 0 on.
        channel: of the process there is now.
        process: the process there is now.
        ready: it takes connections.
        draining: it is about to end, and gets connections only where all others are, too.
        served: it has been ready, in this process or one before.
        connections: that it has.
        given: the number of the last one that it got.
        killed: by its parent.
    """

    number: int
    channel: socket.socket | None = None
    process: asyncio.subprocess.Process | None = None
    ready: bool = False
    draining: bool = False
    served: bool = False
    connections: int = 0
    given: int = 0
    killed: bool = False

    def begin(self, channel: socket.socket, process: asyncio.subprocess.Process) -> None:
        """Take another process over."""
        channel.setblocking(False)
        self.channel, self.process, self.connections, self.draining = channel, process, 0, False

    def receive(self) -> bytes | None:
        """Take over what the worker tells, and return it; None at its end."""
        if self.channel is None:
            return None
        try:
            told = self.channel.recv(4096)
        except OSError:
            told = b""
        if not told:
            self.ready = False
            return None
        self.connections -= told.count(CLOSED)
        self.draining |= DRAINING in told
        if READY in told:
            self.ready = self.served = True
        return told

    def hand_over(self, connection: socket.socket, number: int) -> bool:
        """Give the worker a connection, the `number`th of all; return whether it could be given."""
        if not self.ready or self.channel is None:
            return False
        try:
            socket.send_fds(self.channel, [_CONNECTION], [connection.fileno()])
        except OSError:  # it has more to take than the channel holds, or is gone
            return False
        self.connections += 1
        self.given = number
        return True

    def signal(self, number: int) -> None:
        """Pass a signal on; to a process that is not ready yet, and has nothing to lose, its end."""
        if self.process and self.process.returncode is None:
            self.killed = number == signal.SIGKILL or not self.ready
            self.process.send_signal(signal.SIGKILL if self.killed else number)


class ParentChannel:
    """A worker's end of the channel."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._closed = 0  # connections, that the parent does not know yet to be

    def fileno(self) -> int:
        """The descriptor, for an event loop to watch."""
        return self._channel.fileno()

    def begin(self) -> None:
        """Tell that connections are taken."""
        self._channel.setblocking(False)
        self._channel.send(READY)

    def end(self) -> None:
        """Take no more connections."""
        self._channel.shutdown(socket.SHUT_RD)

    def take(self) -> socket.socket | None:
        """Return the next connection; None for one that got lost, as there was no descriptor left for it.

        Raises:
            BlockingIOError: there is none now.
            EOFError: there will be none any more.
        """
        told, descriptors, _, _ = socket.recv_fds(self._channel, 1, 1)
        if not told:
            raise EOFError
        return socket.socket(fileno=descriptors[0]) if descriptors else None

    def count_closed(self) -> None:
        """Tell that a connection has been closed."""
        self._closed += 1
        with contextlib.suppress(OSError):  # full, until the next; or the parent is gone
            self._closed -= self._channel.send(CLOSED * self._closed)

    def tell_draining(self) -> None:
        """Tell that the worker drains."""
        with contextlib.suppress(OSError):
            self._channel.send(DRAINING)

    def tell_hung(self) -> None:
        """Tell that the embedded engine hangs."""
        with contextlib.suppress(OSError):
            self._channel.send(HUNG)
