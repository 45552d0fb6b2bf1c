"""A worker: a process that serves connections which its parent accepts (gateway.server.worker_parent)."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.api.connection import ClientConnection
from gateway.errors import ConfigError
from gateway.server import worker_channel
from gateway.server.app import Gateway
from gateway.server.listen import GatewayServer, prepare
from gateway.server.worker_channel import ParentChannel, WorkerSettings
from gateway.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from starlette.types import ASGIApp

    from gateway.api.connection_registry import ConnectionRegistry
    from gateway.config import Config

log = logging.getLogger(__name__)

# Connections that are taken before others get their turn.
_TURN = 64


class WorkerServer(GatewayServer):
    """A server whose connections come from its parent."""

    def __init__(self, gateway: Gateway, host: str, number: int, channel: ParentChannel) -> None:
        """Make one; `run` starts it.

        Args:
            gateway: what is served.
            host: where the admin port is.
            number: from 0 on.
            channel: to the parent.
        """
        super().__init__(gateway, host, worker=number)
        self._channel = channel
        self._beginning: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Take connections."""
        await super().startup(sockets or [])
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(worker_channel.AT_ONCE, super().handle_exit, signal.SIGTERM, None)
        loop.add_reader(self._channel, self._take)
        self._channel.begin()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more, and end."""
        asyncio.get_running_loop().remove_reader(self._channel)
        self._channel.end()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain: once, though both the parent and who signals all processes of a service may say so."""
        if self._stopping is None:
            super().handle_exit(sig, frame)

    def _stop(self, linger: bool) -> None:
        self._channel.tell_draining()
        super()._stop(linger)

    def _take(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(_TURN):
            try:
                connection = self._channel.take()
            except BlockingIOError:
                return
            except EOFError:
                loop.remove_reader(self._channel)  # the parent's end is this process's, too: _end_with_parent
                return
            if connection is None:
                self._channel.count_closed()
                continue
            task = loop.create_task(self._begin(connection))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)

    async def _begin(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._accept_counted, connection)
        except OSError:  # its client has gone; the loop has closed the socket
            connection.detach()
            self._channel.count_closed()

    def _accept_counted(self) -> ClientConnection:
        return _CountedConnection(
            self._gateway.application, self.server_state, on_closed=self._channel.count_closed
        )


class _CountedConnection(ClientConnection):
    """A connection of which the parent hears the end."""

    def __init__(self, app: ASGIApp, registry: ConnectionRegistry, *, on_closed: Callable[[], None]) -> None:
        super().__init__(app, registry)
        self._on_closed = on_closed

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._on_closed()


@dataclass(frozen=True)
class ParentsEngine:
    """The embedded engine, which the parent keeps: it sees itself that the configuration has changed."""

    url: str | None
    channel: ParentChannel

    def configure(self, config: Config) -> None:
        """Nothing is to be done here."""

    def kill(self) -> None:
        """Tell the parent that the engine hangs."""
        self.channel.tell_hung()

    async def run(self) -> None:
        """Wait until cancelled."""
        await asyncio.Event().wait()


def main() -> None:
    """Be a worker, as the parent has it."""
    settings: WorkerSettings = pickle.load(sys.stdin.buffer)  # noqa: S301
    logs.configure(settings.log_format, settings.log_level)
    for handler in logging.getLogger().handlers:
        handler.addFilter(numbered(settings.number))
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    prepare()
    channel = ParentChannel(socket.socket(fileno=settings.descriptor))
    try:
        gateway = Gateway(settings.config, settings.path, ParentsEngine(settings.embedded_url, channel))
    except ConfigError as error:
        sys.exit("\n".join(error.problems))
    WorkerServer(gateway, settings.host, settings.number, channel).run()


def numbered(number: int) -> Callable[[logging.LogRecord], bool]:
    """Return what puts a worker's number into each line of a log."""

    def name(record: logging.LogRecord) -> bool:
        record.fields = {"worker": number, **getattr(record, "fields", {})}
        return True

    return name


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    log.critical("the parent process has ended, and with it this one")
    logging.shutdown()
    os._exit(1)


if __name__ == "__main__":
    main()
