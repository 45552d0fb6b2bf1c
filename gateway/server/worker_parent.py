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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.server import child_process, worker_channel
from gateway.server.app import check_change
from gateway.server.background import background
from gateway.server.connection_sharing import ConnectionSharing
from gateway.server.embedded_process import EmbeddedSupervisor
from gateway.server.listen import allow_many_connections
from gateway.server.reload import Reloader
from gateway.server.worker_channel import WorkerHandle, WorkerSettings

if TYPE_CHECKING:
    from gateway.config import Config
    from gateway.telemetry.logs import LogFormat

log = logging.getLogger(__name__)

_STOP_S = 10.0
# An embedded engine that loads its models is silent, too; each worker says that it hangs.
_LOADS_S = 30.0


class WorkerParent:
    """The parent of some workers.

    Attributes:
        status: the exit status: the first one of a worker that was not 0.
        signals: those that came to stop it.
    """

    def __init__(
        self, config: Config, path: Path, host: str, port: int, log_as: tuple[LogFormat, str]
    ) -> None:
        """Open the embedded engine's socket, where it is configured.

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
        self._workers = [WorkerHandle(number) for number in range(config.workers)]
        self._sharing = ConnectionSharing(self._workers)
        self._embedded = EmbeddedSupervisor()
        self._embedded.configure(config)
        self._reloader = Reloader(path, config, self._reload, lambda _: None)
        self._loads_until = 0.0
        self._stopping = asyncio.Event()
        self._news = asyncio.Event()  # a worker is ready, or all are to stop
        self.status = 0
        self.signals: list[int] = []

    async def run(self) -> None:
        """Serve until all workers have ended."""
        loop = asyncio.get_running_loop()
        try:
            await self._sharing.bind(self._host, self._port)
        except OSError as error:
            log.error("%s", error)
            self.status = 1
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._ask_reload)
        if os.getpid() == 1:
            loop.add_signal_handler(signal.SIGCHLD, self._reap)
        try:
            # The embedded engine to the end: work is in flight there.
            async with (
                background(self._embedded.run()),
                background(self._reloader.run()),
                asyncio.TaskGroup() as tasks,
            ):
                await self._start(tasks)
        finally:
            self._sharing.close()

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
        log.info("%d workers serve on %s", len(self._workers), self._sharing.listen())

    async def _keep(self, worker: WorkerHandle) -> None:
        """Keep a worker running until all are to stop."""
        await child_process.keep_running(
            f"worker {worker.number}",
            partial(self._run, worker),
            self._stopping,
            partial(self._ended, worker),
        )

    def _ended(self, worker: WorkerHandle, status: int) -> bool:
        """Note that a worker's process has ended; return whether another is to be started."""
        if self._stopping.is_set():
            self.status = self.status or (0 if worker.killed else abs(status))
        elif not worker.served:  # it has said why
            self.status = abs(status) or 1
            self._kill()
        return not self._stopping.is_set()

    async def _run(self, worker: WorkerHandle) -> int:
        """Run a worker's process; return its exit status."""
        loop = asyncio.get_running_loop()
        channel, far = socket.socketpair()
        with channel:
            with far:
                process = await child_process.start(
                    "-m", "gateway.server.worker_process", str(worker.number), descriptor=far.fileno()
                )
                worker.begin(channel, process)
                if self._stopping.is_set():
                    worker.signal(signal.SIGKILL)
                settings = WorkerSettings(
                    self._config,
                    self._path,
                    self._host,
                    *self._log,
                    worker.number,
                    far.fileno(),
                    self._embedded.url,
                )
            loop.add_reader(channel, self._hear, worker)
            try:
                if process.stdin:  # which stays open: its end would be the worker's
                    process.stdin.write(pickle.dumps(settings))
                return await process.wait()
            finally:
                worker.ready = False
                loop.remove_reader(channel)

    def _hear(self, worker: WorkerHandle) -> None:
        """Take what a worker tells."""
        loop = asyncio.get_running_loop()
        told = worker.receive()
        if told is None:
            if worker.channel:
                loop.remove_reader(worker.channel)
            return
        if worker_channel.READY in told:
            self._news.set()
        if worker_channel.HUNG in told and loop.time() > self._loads_until:
            self._loads_until = loop.time() + _LOADS_S
            log.error("the embedded engine hangs; it is killed and started again")
            self._embedded.kill()

    def _stop(self, number: int) -> None:
        """Have the workers drain; at the second signal, stop."""
        first = not self.signals
        self.signals.append(number)
        self._stopping.set()
        self._news.set()
        for worker in self._workers:
            worker.signal(number if first else worker_channel.AT_ONCE)
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
        check_change(self._config, config)
        self._config = config
        self._embedded.configure(config)

    def _reap(self) -> None:
        """Free what is left of processes whose parents died: a container's first process is their heir."""
        own = {worker.process.pid for worker in self._workers if worker.process} | self._embedded.pids
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
    parent = WorkerParent(config, path, host, port, log_as)
    asyncio.run(parent.run())
    if len(parent.signals) > 1:  # the end of a process that is not let drain
        signal.raise_signal(parent.signals[1])
    return parent.status
