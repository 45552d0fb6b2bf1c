"""Processes that inspect images: started when they are needed, and replaced where they died.

They are not threads: what a thread does between two calls into an image library makes the event loop wait for
the interpreter's lock (14 to 18 ms at the 99th percentile, 5 with processes: bench/results/costs.md), and a
library that crashes would take the gateway with it.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import msgspec

from gateway.errors import BadImage
from gateway.images.confined import start
from gateway.images.worker import REQUEST_HEAD, Inspection
from gateway.model import LayoutGuess

if TYPE_CHECKING:
    import subprocess
    from asyncio import StreamReader, StreamWriter
    from collections.abc import AsyncIterator

    from gateway.model import Buffer

log = logging.getLogger(__name__)

# Longer than any image takes that the limits let through; a process that is stuck in one is killed.
_LONGEST_S = 60.0
# How long no other is started after one that failed at its first image.
_PAUSE_S = 1.0


class WorkerPool:
    """A process for each inspection under way; an image that breaks one costs its own inspection alone."""

    def __init__(self, room: int, longest_s: float = _LONGEST_S) -> None:
        """Start none yet.

        Args:
            room: bytes of memory that each may take for an image.
            longest_s: seconds that each may take for an image.
        """
        self._room = room
        self._longest_s = longest_s
        self._workers: set[_Worker] = set()
        self._idle: list[_Worker] = []
        self._not_before = 0.0
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """Ids of the processes there are."""
        return [worker.process.pid for worker in self._workers]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Kill the processes, whatever they do; inspections under way return None."""
        self._closed = True
        await asyncio.gather(*map(self._end, self._workers))

    async def guess(self, url: Buffer) -> LayoutGuess | None:
        """Return the route that the image of a data URL looks like; None where that cannot be found out.

        Raises:
            BadImage: its pixels cannot be decoded.
        """
        inspection = await self._inspect(url, guess=True)
        return LayoutGuess(inspection.route, inspection.confidence) if inspection else None

    async def check(self, data: Buffer) -> None:
        """Check that an encoded image can be decoded, where that can be found out.

        Raises:
            BadImage: its pixels cannot be decoded.
        """
        await self._inspect(data, guess=False)

    async def _inspect(self, data: Buffer, *, guess: bool) -> Inspection | None:
        if self._closed or asyncio.get_running_loop().time() < self._not_before:
            return None
        try:
            async with self._worker() as worker, asyncio.timeout(self._longest_s):
                inspection = await worker.inspect(data, guess=guess)
        except (OSError, ValueError):
            return None
        if inspection.failed:
            log.warning("an image %s to be inspected", inspection.failed)
            return None
        if inspection.refused:
            raise BadImage(inspection.refused, code=inspection.code)
        return inspection

    @asynccontextmanager
    async def _worker(self) -> AsyncIterator[_Worker]:
        """Have a process to oneself; one that fails is killed."""
        try:
            worker = self._take_idle() or await self._start()
        except OSError as error:
            self._pause()
            self._log_failure(f"cannot be started: {error}")
            raise
        try:
            yield worker
        except BaseException as error:
            if not worker.inspected:
                self._pause()
            await self._end(worker)
            status = worker.process.returncode
            self._log_failure(f"failed at one: {type(error).__name__}, exit status {status}")
            raise
        worker.inspected += 1
        self._idle.append(worker)

    def _take_idle(self) -> _Worker | None:
        while self._idle:
            worker = self._idle.pop()
            if worker.process.poll() is None:
                return worker
            self._forget(worker)
        return None

    async def _start(self) -> _Worker:
        worker = _Worker(*await start("gateway.images.worker", self._room))
        self._workers.add(worker)
        if self._closed:
            await self._end(worker)
            raise ConnectionError("the pool was closed meanwhile")
        return worker

    def _log_failure(self, what: str) -> None:
        if not self._closed:  # those that are killed at the end do not fail
            log.error("a process that inspects images %s", what)

    def _pause(self) -> None:
        self._not_before = asyncio.get_running_loop().time() + _PAUSE_S

    async def _end(self, worker: _Worker) -> None:
        worker.process.kill()
        await asyncio.to_thread(worker.process.wait)
        self._forget(worker)

    def _forget(self, worker: _Worker) -> None:
        worker.requests.close()
        self._workers.discard(worker)


@dataclass(eq=False, slots=True)
class _Worker:
    """A process, the streams to and from it, and how many images it has inspected."""

    process: subprocess.Popen[bytes]
    responses: StreamReader
    requests: StreamWriter
    inspected: int = 0

    async def inspect(self, data: Buffer, *, guess: bool) -> Inspection:
        self.requests.writelines((REQUEST_HEAD.pack(guess, len(data)), data))
        if not (line := await self.responses.readline()):
            raise ConnectionError
        return msgspec.json.decode(line, type=Inspection)
