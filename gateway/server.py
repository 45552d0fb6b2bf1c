"""The sockets: listening, connections and their limits, signals: all that is outside the application."""

from __future__ import annotations

import asyncio
import resource
import select
import signal
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.app import Gateway, report_failure

if TYPE_CHECKING:
    import socket
    from collections.abc import Collection
    from pathlib import Path
    from types import FrameType

    from gateway.config import Config

# What is left of connections once the last request has been answered: the end of its sending.
_LAST_BYTES_S = 5
_OPEN_FILES = 65536


def allow_many_connections() -> None:
    """Raise the limit of open files as far as is allowed: a request holds two, and 1,024 are soon gone."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Connections:
    """A server's connections while it stops: none is closed while its client may be about to use it.

    All answers tell their clients to close, but for those that began before the stop. So a connection that is
    not closed by its answer stays until it has been idle for as long as its client may keep it.
    """

    def __init__(self, connections: Collection[object]) -> None:
        """Watch connections.

        Args:
            connections: uvicorn's set of those that are open.
        """
        self._open = connections
        self._idle_since: dict[HttpToolsProtocol, float] = {}

    def close_idle(self, now: float, patience_s: float) -> frozenset[tuple[str, int]]:
        """Close those that have been idle for so long; return the clients of the others, by host and port.

        One with unread bytes is not idle: they are a request.
        """
        connections = [one for one in self._open if isinstance(one, HttpToolsProtocol)]
        self._idle_since = {
            one: self._idle_since.get(one, now)
            for one in connections
            if one.cycle is None or one.cycle.response_complete
        }
        for one, since in self._idle_since.items():
            if now - since >= patience_s and not _unread(one.transport):
                one.shutdown()
        return frozenset(one.client for one in connections if one.client and not one.transport.is_closing())


def _unread(transport: asyncio.Transport) -> bool:
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(poll.poll(0))


class _Server(uvicorn.Server):
    """A server that drains the gateway before it stops; a second signal stops it at once."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._stopping: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGHUP, self._gateway.ask_reload)
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._loop is None or self._stopping:
            super().handle_exit(sig, frame)
            return
        self._loop.call_soon_threadsafe(self._stop, sig != signal.SIGINT)

    def _stop(self, linger: bool) -> None:
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._drain(linger))
            self._stopping.add_done_callback(report_failure)

    async def _drain(self, linger: bool) -> None:
        try:
            await self._gateway.drain(Connections(self.server_state.connections), linger=linger)
        finally:
            self.should_exit = True


def serve(config: Config, path: Path, host: str, port: int) -> None:
    """Serve until SIGTERM (linger, refuse, drain: `server` in the configuration) or SIGINT (no linger)."""
    allow_many_connections()
    gateway = Gateway(config, path)
    settings = uvicorn.Config(
        gateway.api,
        host=host,
        port=port,
        loop="uvloop",
        http="httptools",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # a connection's own client is what tells it from others
        backlog=2048,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=_LAST_BYTES_S,
    )
    _Server(settings, gateway).run()
