"""Keeps the embedded engine's process running: starts it, restarts it when it dies, stops it."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0
# A process that lived this long was well: the next death starts counting anew.
_WELL_S = 30.0
_STOP_S = 5.0


class Keeper(Protocol):
    """Who keeps the embedded engine running, in this process or in another."""

    @property
    def url(self) -> str:
        """The engine's base URL."""

    def kill(self) -> None:
        """Kill the engine, which hangs, so that another is started."""

    def terminate(self) -> None:
        """Let the engine finish its work and end, so that another is started."""

    async def run(self) -> None:
        """Keep the engine running until cancelled."""


class Supervisor:
    """One child process behind a listening socket that outlives it.

    The socket is opened here and inherited, so that the port stays the same over restarts and is known before
    the first start. The child watches its standard input and ends with this process, however that ends.
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

    def terminate(self) -> None:
        """Let the child finish its work and end; `run` then starts another."""
        if self._process and self._process.returncode is None:
            self._process.terminate()

    async def run(self) -> None:
        """Keep the child running until cancelled, then stop it."""
        loop = asyncio.get_running_loop()
        pause = _FIRST_PAUSE_S
        try:
            while True:
                started = loop.time()
                try:
                    self._process = await self._start()
                    trouble = f"ended (exit status {await self._process.wait()})"
                    self._on_death()
                except OSError as error:  # no descriptors or processes left: they may be freed
                    trouble = f"cannot be started ({error})"
                self.restarts += 1
                pause = (
                    _FIRST_PAUSE_S if loop.time() - started > _WELL_S else min(2 * pause, _LONGEST_PAUSE_S)
                )
                log.error("the embedded engine %s; restart in %.1f s", trouble, pause)
                await asyncio.sleep(pause)
        finally:
            await self._stop()

    async def _start(self) -> asyncio.subprocess.Process:
        fd = self._socket.fileno()
        # A session of its own: Ctrl-C is for this process, which lets the child finish what is in flight.
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *self._command(fd),
            stdin=asyncio.subprocess.PIPE,
            pass_fds=(fd,),
            start_new_session=True,
        )

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
