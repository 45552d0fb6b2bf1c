"""Several workers on one host: processes that serve, and a parent that hands them connections.

A worker is a replica: it has its own event loop, queues, limits, poller and admin port, and shares nothing
with the others. The parent opens the port, accepts, and passes each connection to the worker with the fewest;
the kernel's own ways spread few long-lived connections badly (docs/capacity.md has figures), and lose those
that wait for a worker that dies. It serves nothing itself: it starts workers anew when they die, passes
signals on, and keeps the one embedded engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.api.connection import ClientConnection
from gateway.engines.supervisor import Supervisor
from gateway.errors import ConfigError
from gateway.server import app
from gateway.server.listen import BACKLOG, GatewayServer, allow_many_connections, prepare
from gateway.server.reload import Reloader
from gateway.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from gateway.config import Config
    from gateway.engines.supervisor import Keeper
    from gateway.telemetry.logs import LogFormat

log = logging.getLogger(__name__)

# What a worker tells its parent.
_READY, _CLOSED, _HUNG = b"r", b"c", b"h"
# What the parent tells a worker goes with a connection.
_CONNECTION = b"+"
# The second signal: what is in flight gets no time any more.
_AT_ONCE = signal.SIGQUIT
_STOP_S = 10.0
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0
# A worker that lived this long was well: the next death starts counting anew.
_WELL_S = 30.0
# Connections that are taken before others get their turn.
_TURN = 64
# While no worker can take a connection, or none can be accepted.
_FULL_S = 0.05
# An embedded engine that loads its models is silent, too; each worker says that it hangs.
_LOADS_S = 30.0


@dataclass(eq=False)
class _Worker:
    """A worker, as its parent has it.

    Attributes:
        number: from 0 on.
        channel: of the process there is now.
        process: the process there is now.
        ready: it takes connections.
        served: it has been ready, in this process or one before.
        connections: that it has.
        given: the number of the last one that it got.
        killed: by its parent.
    """

    number: int
    channel: socket.socket | None = None
    process: asyncio.subprocess.Process | None = None
    ready: bool = False
    served: bool = False
    connections: int = 0
    given: int = 0
    killed: bool = False

    def signal(self, number: int) -> None:
        """Pass a signal on; to a process that is not ready yet, and has nothing to lose, its end."""
        if self.process and self.process.returncode is None:
            self.killed = number == signal.SIGKILL or not self.ready
            self.process.send_signal(signal.SIGKILL if self.killed else number)


class Crew:
    """The parent of some workers."""

    def __init__(
        self, config: Config, path: Path, host: str, port: int, log_as: tuple[LogFormat, str]
    ) -> None:
        """Open the embedded engine's socket.

        Args:
            config: valid for `config.workers` workers.
            path: the file it came from.
            host: on which all ports are.
            port: 0 for a free one.
            log_as: the workers' format and level.
        """
        self._config = config
        self._path = path
        self._host, self._port = host, port
        self._log = log_as
        self._workers = [_Worker(number) for number in range(config.workers)]
        self._supervisor = Supervisor(lambda fd: app.embedded_command(fd, self._config), lambda: None)
        self._supervising: asyncio.Task[None] | None = None
        self._reloader = Reloader(path, config, self._reload, lambda _: None)
        self._listeners: list[socket.socket] = []
        self._held: socket.socket | None = None  # accepted, and taken by no worker yet
        self._given = 0
        self._loads_until = 0.0
        self._stopping = asyncio.Event()
        self._news = asyncio.Event()  # a worker is ready, or all are to stop
        self.status = 0
        self.signals: list[int] = []

    async def run(self) -> None:
        """Serve until all workers have ended; `status` is the first exit status that was not 0."""
        loop = asyncio.get_running_loop()
        try:
            bound = await loop.create_server(asyncio.Protocol, self._host, self._port, start_serving=False)
        except OSError as error:
            log.error("%s", error)
            self.status = 1
            return
        self._listeners = [socket.socket(fileno=os.dup(one.fileno())) for one in bound.sockets]
        bound.close()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._ask_reload)
        if os.getpid() == 1:
            loop.add_signal_handler(signal.SIGCHLD, self._reap)
        try:
            async with app.background(self._reloader.run()), asyncio.TaskGroup() as tasks:
                self._supervise()
                await self._start(tasks)
        finally:
            for listener in self._listeners:
                loop.remove_reader(listener)
                listener.close()
            if self._supervising:  # until now: work was in flight there
                self._supervising.cancel()
                await asyncio.gather(self._supervising, return_exceptions=True)

    async def _start(self, tasks: asyncio.TaskGroup) -> None:
        """Start the first worker, then the others: what keeps all from starting is told once."""
        for some in (self._workers[:1], self._workers[1:]):
            for worker in some:
                tasks.create_task(self._keep(worker))
            while not all(worker.served for worker in some):
                if self._stopping.is_set():
                    return
                self._news.clear()
                await self._news.wait()
        for listener in self._listeners:
            listener.setblocking(False)
            listener.listen(BACKLOG)
        host, port = self._listeners[0].getsockname()[:2]
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        log.info("%d workers serve on http://%s", len(self._workers), where)
        self._listen()

    async def _keep(self, worker: _Worker) -> None:
        """Keep a worker running until all are to stop."""
        loop = asyncio.get_running_loop()
        pause = _FIRST_PAUSE_S
        while True:
            began = loop.time()
            try:
                status = await self._run(worker)
                trouble = f"signal {-status}" if status < 0 else f"exit status {status}"
            except OSError as error:  # no descriptors or processes left: they may be freed
                status, trouble = 1, str(error)
            if self._stopping.is_set():
                self.status = self.status or (0 if worker.killed else abs(status))
                return
            if not worker.served:  # it has said why
                self.status = abs(status) or 1
                self._kill()
                return
            pause = _FIRST_PAUSE_S if loop.time() - began > _WELL_S else min(2 * pause, _LONGEST_PAUSE_S)
            log.error("worker %d has ended (%s); restart in %.1f s", worker.number, trouble, pause)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
                return

    async def _run(self, worker: _Worker) -> int:
        """Run a worker's process; return its exit status."""
        loop = asyncio.get_running_loop()
        channel, far = socket.socketpair()
        with channel:
            with far:
                # A session of its own: Ctrl-C is for the parent, which passes it on.
                worker.process = process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *("-m", "gateway.server.workers", str(worker.number)),
                    stdin=asyncio.subprocess.PIPE,
                    pass_fds=(far.fileno(),),
                    start_new_session=True,
                )
                channel.setblocking(False)
                worker.channel, worker.connections = channel, 0
                if self._stopping.is_set():
                    worker.signal(signal.SIGKILL)
                begin = (self._config, self._path, self._host, self._log, worker.number, far.fileno())
            loop.add_reader(channel, self._hear, worker)
            try:
                if process.stdin:  # which stays open: its end would be the worker's
                    process.stdin.write(pickle.dumps((*begin, self._supervisor.url)))
                return await process.wait()
            finally:
                worker.ready = False
                loop.remove_reader(channel)

    def _hear(self, worker: _Worker) -> None:
        """Take what a worker tells."""
        loop = asyncio.get_running_loop()
        if worker.channel is None:
            return
        try:
            told = worker.channel.recv(4096)
        except OSError:
            told = b""
        if not told:
            worker.ready = False
            loop.remove_reader(worker.channel)
            return
        worker.connections -= told.count(_CLOSED)
        if _READY in told:
            worker.ready = worker.served = True
            self._news.set()
        if _HUNG in told and loop.time() > self._loads_until:
            self._loads_until = loop.time() + _LOADS_S
            log.error("the embedded engine hangs; it is killed and started again")
            self._supervisor.kill()

    def _listen(self) -> None:
        """Accept connections."""
        for listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        """Accept some connections and hand them over; pause where that cannot be."""
        loop = asyncio.get_running_loop()
        for _ in range(_TURN):
            try:
                self._held = self._held or listener.accept()[0]
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptors left: they may be freed
                log.warning("no connection can be accepted: %s", error)
                break
            if not self._give(self._held):
                break
            self._held.close()
            self._held = None
        else:
            return
        for one in self._listeners:
            loop.remove_reader(one)
        loop.call_later(_FULL_S, self._listen)

    def _give(self, connection: socket.socket) -> bool:
        """Hand a connection to the worker that has the fewest; of several, to who has waited longest."""
        for worker in sorted(self._workers, key=lambda one: (one.connections, one.given)):
            if worker.ready and worker.channel:
                try:
                    socket.send_fds(worker.channel, [_CONNECTION], [connection.fileno()])
                except OSError:  # it has more to take than the channel holds, or is gone
                    continue
                self._given += 1
                worker.connections += 1
                worker.given = self._given
                return True
        return False

    def _stop(self, number: int) -> None:
        """Have the workers drain; at the second signal, stop."""
        first = not self.signals
        self.signals.append(number)
        self._stopping.set()
        self._news.set()
        for worker in self._workers:
            worker.signal(number if first else _AT_ONCE)
        if not first:
            asyncio.get_running_loop().call_later(_STOP_S, self._kill)

    def _kill(self) -> None:
        self._stopping.set()
        self._news.set()
        for worker in self._workers:
            worker.signal(signal.SIGKILL)

    def _ask_reload(self) -> None:
        self._reloader.ask()
        for worker in self._workers:
            if worker.ready:
                worker.signal(signal.SIGHUP)

    async def _reload(self, config: Config) -> None:
        """Start workers with a changed configuration from now on; those that run take it over themselves."""
        app.check_change(self._config, config)
        renamed = config.model != self._config.model
        self._config = config
        self._supervise()
        if renamed:
            self._supervisor.terminate()  # it ends its work, and starts again under the new name

    def _supervise(self) -> None:
        if self._supervising is None and app.wants_embedded(self._config):
            self._supervising = asyncio.create_task(self._supervisor.run())
            self._supervising.add_done_callback(app.report_failure)

    def _reap(self) -> None:
        """Free what is left of processes whose parents died: a container's first process is their heir."""
        own = {worker.process.pid for worker in self._workers if worker.process} | {self._supervisor.pid}
        for child in map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()):
            if child not in own:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child, os.WNOHANG)


def serve(config: Config, path: Path, host: str, port: int, log_as: tuple[LogFormat, str]) -> int:
    """Serve with `config.workers` workers until SIGTERM or SIGINT, as `gateway.server.listen.serve`.

    Args:
        config: valid for so many.
        path: the file it came from.
        host: on which all ports are.
        port: 0 for a free one.
        log_as: format and level.

    Returns:
        The exit status.
    """
    allow_many_connections()
    crew = Crew(config, path, host, port, log_as)
    asyncio.run(crew.run())
    if len(crew.signals) > 1:  # the end of a process that is not let drain
        signal.raise_signal(crew.signals[1])
    return crew.status


class _Handed(ClientConnection):
    """A connection that the parent accepted, and hears the end of."""

    def __init__(self, *arguments: Any, on_closed: Callable[[], None], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._on_closed = on_closed

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._on_closed()


class Worker(GatewayServer):
    """A server whose connections come from its parent."""

    def __init__(self, gateway: app.Gateway, host: str, number: int, channel: socket.socket) -> None:
        """Make one; `run` starts it.

        Args:
            gateway: what is served.
            host: where the admin port is.
            number: from 0 on.
            channel: to the parent, which sends a byte with each connection, and hears bytes.
        """
        super().__init__(gateway, host, worker=number)
        self._channel = channel
        self._closed = 0  # connections, that the parent does not know yet to be
        self._beginning: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Take connections."""
        await super().startup(sockets or [])
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(_AT_ONCE, super().handle_exit, signal.SIGTERM, None)
        self._channel.setblocking(False)
        loop.add_reader(self._channel, self._take)
        self._channel.send(_READY)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more, and end."""
        asyncio.get_running_loop().remove_reader(self._channel)
        self._channel.shutdown(socket.SHUT_RD)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain: once, though both the parent and who signals all processes of a service may say so."""
        if self._stopping is None:
            super().handle_exit(sig, frame)

    def _take(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(_TURN):
            try:
                told, descriptors, _, _ = socket.recv_fds(self._channel, 1, 1)
            except BlockingIOError:
                return
            if not told:
                loop.remove_reader(self._channel)  # the parent's end is this process's, too: _end_with
                return
            if not descriptors:  # there is none left for it
                self._count_closed()
                continue
            task = loop.create_task(self._begin(socket.socket(fileno=descriptors[0])))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)

    async def _begin(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                lambda: _Handed(self._gateway.application, self.server_state, on_closed=self._count_closed),
                connection,
            )
        except OSError:  # its client has gone; the loop has closed the socket
            connection.detach()
            self._count_closed()

    def _count_closed(self) -> None:
        self._closed += 1
        with contextlib.suppress(OSError):  # full, until the next; or the parent is gone
            self._closed -= self._channel.send(_CLOSED * self._closed)


@dataclass(frozen=True)
class _FarKeeper:
    """The embedded engine's, which is the parent's."""

    url: str
    channel: socket.socket

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self.channel.send(_HUNG)

    def terminate(self) -> None:
        """The parent has seen itself that the configuration has changed."""

    async def run(self) -> None:
        await asyncio.Event().wait()


def main() -> None:
    """Be a worker, as the parent has it."""
    config, path, host, (log_format, log_level), number, descriptor, url = pickle.load(sys.stdin.buffer)  # noqa: S301
    logs.configure(log_format, log_level)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_named(number))
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    prepare()
    channel = socket.socket(fileno=descriptor)
    keeper: Keeper = _FarKeeper(url, channel)
    try:
        gateway = app.Gateway(config, path, keeper)
    except ConfigError as error:
        sys.exit("\n".join(error.problems))
    Worker(gateway, host, number, channel).run()


def _named(number: int) -> Callable[[logging.LogRecord], bool]:
    """Return what puts a worker's number into each line."""

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
