"""The embedded engine's process: started where the configuration has it, restarted when it dies, stopped."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
from typing import TYPE_CHECKING, Protocol

from gateway import child
from gateway.config import EMBEDDED
from gateway.errors import ConfigError
from gateway.server import child_process

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.config import Config

_STOP_S = 5.0
# The engine's own limit for what is in flight when it is told to end (engines.asgi.DRAIN_SECONDS), and more.
_RETIRE_S = 65.0


class EmbeddedKeeper(Protocol):
    """Who keeps the embedded engine running, in this process or in another."""

    @property
    def url(self) -> str | None:
        """The engine's base URL; None where the configuration does not have it."""

    def configure(self, config: Config) -> None:
        """Take a configuration over."""

    def kill(self) -> None:
        """Kill the engine, which hangs, so that another is started."""

    async def run(self) -> None:
        """Keep the engine running until cancelled."""


class EmbeddedProcess:
    """One child process behind a listening socket that outlives it.

    The socket is opened here and inherited, so that the port stays the same over restarts and is known before
    the first start. The child watches its standard input and ends with this process, however that ends.

    Attributes:
        restarts: how often it has ended.
    """

    def __init__(self, command: Callable[[int], Sequence[str]], on_death: Callable[[], None]) -> None:
        """Open the socket.

        Args:
            command: returns the arguments behind the Python interpreter for a listening file descriptor.
            on_death: called at once when the process has died.
        """
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._command = command
        self._on_death = on_death
        self._process: asyncio.subprocess.Process | None = None
        self._retired = asyncio.Event()
        self.restarts = 0

    @property
    def url(self) -> str:
        """The child's base URL."""
        host, port = self._socket.getsockname()[:2]
        return f"http://{host}:{port}"

    @property
    def pid(self) -> int | None:
        """The child's process id, once it has been started."""
        return self._process.pid if self._process else None

    def kill(self) -> None:
        """Kill the child, which hangs; `run` then starts another."""
        if self._process and self._process.returncode is None:
            self._process.kill()

    def restart(self) -> None:
        """Let the child finish its work and end; `run` then starts another."""
        if self._process and self._process.returncode is None:
            self._process.terminate()

    def retire(self) -> None:
        """Let the child finish its work and end; `run` then returns."""
        self._retired.set()
        self.restart()
        asyncio.get_running_loop().call_later(_RETIRE_S, self.kill)

    async def run(self) -> None:
        """Keep the child running until cancelled, or retired; then stop it."""
        try:
            if not self._retired.is_set():
                await child_process.keep_running(
                    "the embedded engine", self._run_once, self._retired, self._count_restart
                )
        finally:
            await self._stop()

    async def _run_once(self) -> int:
        descriptor = self._socket.fileno()
        process = self._process = await child_process.start(
            *self._command(descriptor), descriptor=descriptor, environment=child.environment()
        )
        if self._retired.is_set():
            self.restart()
        status = await process.wait()
        self._on_death()
        return status

    def _count_restart(self, _: int) -> bool:
        self.restarts += 1
        return True

    async def _stop(self) -> None:
        self._socket.close()
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


class EmbeddedSupervisor:
    """Has the embedded engine's process run for as long as the configuration has the engine."""

    def __init__(self, on_death: Callable[[], None] = lambda: None) -> None:
        """Have none; `on_death` is called when the engine's process has died."""
        self._on_death = on_death
        self._model = ""
        self._current: EmbeddedProcess | None = None
        self._unstarted: list[EmbeddedProcess] = []
        self._running: set[EmbeddedProcess] = set()
        self._changed = asyncio.Event()

    @property
    def url(self) -> str | None:
        """The engine's base URL; None where the configuration does not have it."""
        return self._current.url if self._current else None

    @property
    def pids(self) -> frozenset[int]:
        """The processes that run, be it to finish their work."""
        return frozenset(process.pid for process in self._running if process.pid)

    def configure(self, config: Config) -> None:
        """Take a configuration over: open the engine's socket, have it end, or serve under another name."""
        renamed, self._model = config.model != self._model, config.model
        if not wants_embedded(config):
            if self._current:
                self._current.retire()
                self._current = None
        elif self._current is None:
            self._current = process = EmbeddedProcess(
                lambda descriptor: embedded_command(descriptor, self._model), lambda: self._died(process)
            )
            self._unstarted.append(process)
            self._changed.set()
        elif renamed:
            self._current.restart()

    def kill(self) -> None:
        """Kill the engine, which hangs, so that another is started."""
        if self._current:
            self._current.kill()

    async def run(self) -> None:
        """Run the processes there are to be, until cancelled; then stop them."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                while self._unstarted:
                    tasks.create_task(self._run(self._unstarted.pop()))
                self._changed.clear()
                await self._changed.wait()

    async def _run(self, process: EmbeddedProcess) -> None:
        self._running.add(process)
        try:
            await process.run()
        finally:
            self._running.discard(process)

    def _died(self, process: EmbeddedProcess) -> None:
        if process is self._current:
            self._on_death()


def wants_embedded(config: Config) -> bool:
    """Whether a configuration has the embedded engine."""
    return any(EMBEDDED in pool.engines for pool in config.pools.values())


def require_embedded(config: Config) -> None:
    """Check that the embedded engine can run here where a configuration wants it.

    Raises:
        ConfigError: its packages are missing.
    """
    if wants_embedded(config) and importlib.util.find_spec("rapidocr") is None:
        raise ConfigError(["the embedded engine needs: pip install 'ocr-gateway[embedded]'"])


def embedded_command(descriptor: int, model: str) -> list[str]:
    """Return what follows the Python interpreter for the embedded engine, on a socket that listens."""
    options = ["--fd", str(descriptor), "--model", model, "--exit-with-stdin"]
    return ["-m", "gateway.engines.embedded", *options]
