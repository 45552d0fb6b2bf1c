"""The sockets: the ports, how many may be connected, signals; all that is outside the application."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import sys
from typing import TYPE_CHECKING, cast

import uvicorn

from gateway.api.connection import ClientConnection
from gateway.api.connection_registry import ConnectionRegistry
from gateway.policy.admit.connection_limits import capacity, files_needed
from gateway.server.app import Gateway
from gateway.server.background import report_failure
from gateway.server.drain import drain
from gateway.server.machine import keep_memory, return_memory

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

    from gateway.config import Config

log = logging.getLogger(__name__)

# What is left of connections once the last request has been answered: the end of its sending.
_LAST_BYTES_S = 5
_OPEN_FILES = 65536
BACKLOG = 2048
_LOOK_TICKS, _RETURN_TICKS = 5, 600  # of uvicorn's, which are 0.1 s


def allow_many_connections() -> None:
    """Raise the limit of open files as far as is allowed: a request holds two, and 1,024 are soon gone."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class GatewayServer(uvicorn.Server):
    """A server that drains the gateway before it stops; a second signal stops it at once.

    The admin port, where there is one, is a second listener of the same application, open until the end.
    """

    server_state: ConnectionRegistry  # type: ignore[assignment]

    def __init__(self, gateway: Gateway, host: str = "127.0.0.1", port: int = 0, *, worker: int = 0) -> None:
        """Make one; `serve` or `run` start it.

        Args:
            gateway: what is served.
            host: on which both ports are.
            port: 0 for a free one.
            worker: its number among several, each of which has an admin port of its own.
        """
        super().__init__(_settings(gateway, host, port, self._accept))
        self._gateway = gateway
        first = gateway.state.fleet.config.server.admin_port
        self._admin_port = None if first is None else first + worker
        self._stopping: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._checked: Config | None = None
        self.server_state = ConnectionRegistry(lambda: gateway.state.fleet.config.limits, self.capacity)

    def capacity(self) -> int:
        """Return how many clients may be connected."""
        connections = self._gateway.state.fleet.config.limits.connections
        return capacity(_open_files(), connections, self._places())

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGHUP, self._gateway.ask_reload)
        await super().startup(sockets)
        if self._admin_port is not None:
            await self._listen_for_admins(self._loop, self._admin_port)
        self._check_open_files()

    async def on_tick(self, counter: int) -> bool:
        """Look after the connections."""
        if counter % _LOOK_TICKS == 0:
            self.server_state.check()
            self._check_open_files()
        if counter % _RETURN_TICKS == 0:
            return_memory()
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, stop at the second."""
        if self._loop is None or self._stopping:
            super().handle_exit(sig, frame)
            return
        self._loop.call_soon_threadsafe(self._stop, sig != signal.SIGINT)

    def _accept(self, **_: object) -> ClientConnection:
        """Return what is to have a new connection; what uvicorn tells is for connections of its own."""
        return ClientConnection(self._gateway.application, self.server_state)

    def _stop(self, linger: bool) -> None:
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._drain(linger))
            self._stopping.add_done_callback(report_failure)

    async def _drain(self, linger: bool) -> None:
        try:
            await drain(self._gateway.state, self.server_state, linger=linger)
        finally:
            self.should_exit = True

    async def _listen_for_admins(self, loop: asyncio.AbstractEventLoop, port: int) -> None:
        def accept() -> ClientConnection:
            return ClientConnection(self._gateway.application, self.server_state, admin=True)

        try:
            self.servers.append(await loop.create_server(accept, self.config.host, port, backlog=BACKLOG))
        except OSError as error:
            log.error("the admin port %d cannot be opened: %s", port, error)
            await self.shutdown()
            sys.exit(1)

    def _places(self) -> int:
        """Requests that the engines may have at once."""
        state = self._gateway.state
        pools = state.fleet.config.pools
        return sum(pools[engine.pool].max_load for engine in state.engines() if engine.pool in pools)

    def _check_open_files(self) -> None:
        """Warn where a configuration may come to need more files than the process may open."""
        config, files = self._gateway.state.fleet.config, _open_files()
        if config is self._checked:
            return
        self._checked = config
        waiting = sum(route.queue.max_waiting for route in config.routes.values())
        needed = files_needed(config.limits.connections, self._places(), waiting)
        if files < needed:
            log.warning(
                "the process may open %d files, and its limits may come to need %d: raise the limit of "
                "open files (ulimit -n, LimitNOFILE of systemd, ulimits of a container), or lower "
                "limits.connections; until then %d clients may be connected at once",
                files,
                needed,
                self.capacity(),
            )


def serve(config: Config, path: Path, host: str, port: int) -> None:
    """Serve until SIGTERM (linger, refuse, drain: `server` in the configuration) or SIGINT (no linger)."""
    prepare()
    GatewayServer(Gateway(config, path), host, port).run()


def prepare() -> None:
    """Set what a process that serves needs of the system."""
    allow_many_connections()
    keep_memory()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core holds keys and documents
    # What has been loaded is no garbage; looking through it again and again took 70 us of each request, and
    # stopped all of them for up to 0.1 s at a time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(5000, 20, 10)


def _settings(
    gateway: Gateway, host: str, port: int, accept: Callable[..., ClientConnection]
) -> uvicorn.Config:
    return uvicorn.Config(
        gateway.application,
        host=host,
        port=port,
        loop="uvloop",
        http=cast("type[asyncio.Protocol]", accept),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # a connection's own client is what tells it from others
        backlog=BACKLOG,
        timeout_graceful_shutdown=_LAST_BYTES_S,
    )


def _open_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _OPEN_FILES if soft == resource.RLIM_INFINITY else soft
