"""Processes that look at images: started when they are needed, and others in place of those that died.

Not threads: whatever they do between two calls into an image library makes the event loop wait for the
interpreter's lock (p99 14 to 18 ms, 5 with processes: bench/results/costs.md), and a library that
crashes would take the gateway with it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import msgspec

from gateway.errors import BadImage
from gateway.images.confined import start
from gateway.images.worker import HEAD, Answer
from gateway.model import LayoutGuess

if TYPE_CHECKING:
    import subprocess
    from asyncio import StreamReader, StreamWriter
    from collections.abc import AsyncIterator

    from gateway.model import Buffer

log = logging.getLogger(__name__)

# Longer than any image takes that the limits let through; a process that is stuck in one is killed.
_LONGEST_S = 60.0
# After one that could not even look at its first image.
_PAUSE_S = 1.0


class Lookers:
    """As many processes as are asked at a time; an image that breaks one costs its own answer."""

    def __init__(self, room: int, longest_s: float = _LONGEST_S) -> None:
        """Start none yet.

        Args:
            room: bytes of memory that each may take for an image.
            longest_s: seconds that each may take for an image.
        """
        self._room = room
        self._longest_s = longest_s
        self._all: set[_Looker] = set()
        self._idle: list[_Looker] = []
        self._not_before = 0.0
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """Ids of the processes there are."""
        return [looker.process.pid for looker in self._all]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Kill the processes, whatever they do: who still waits for one gets None."""
        self._closed = True
        await asyncio.gather(*map(self._end, self._all))

    async def guess(self, url: Buffer) -> LayoutGuess | None:
        """Return the route that the image of a data URL looks like; None where that cannot be told.

        Raises:
            BadImage: its pixels cannot be decoded.
        """
        answer = await self._ask(url, guess=True)
        return LayoutGuess(answer.route, answer.confidence) if answer else None

    async def check(self, data: Buffer) -> None:
        """See whether an image can be decoded, where that can be told.

        Raises:
            BadImage: its pixels cannot be decoded.
        """
        await self._ask(data, guess=False)

    async def _ask(self, data: Buffer, *, guess: bool) -> Answer | None:
        if self._closed or asyncio.get_running_loop().time() < self._not_before:
            return None
        try:
            async with self._one() as looker, asyncio.timeout(self._longest_s):
                answer = await looker.exchange(data, guess=guess)
        except (OSError, ValueError):
            return None
        if answer.failed:
            log.warning("an image %s to be looked at", answer.failed)
            return None
        if answer.refused:
            raise BadImage(answer.refused, code=answer.code)
        return answer

    @asynccontextmanager
    async def _one(self) -> AsyncIterator[_Looker]:
        """Have a process to oneself; one that fails is killed."""
        try:
            looker = self._rested() or await self._start()
        except OSError as error:
            self._pause()
            self._complain(f"cannot be started: {error}")
            raise
        try:
            yield looker
        except BaseException as error:
            if not looker.images:
                self._pause()
            await self._end(looker)
            self._complain(f"failed at one: {type(error).__name__}, exit status {looker.process.returncode}")
            raise
        looker.images += 1
        self._idle.append(looker)

    def _rested(self) -> _Looker | None:
        while self._idle:
            looker = self._idle.pop()
            if looker.process.poll() is None:
                return looker
            self._forget(looker)
        return None

    async def _start(self) -> _Looker:
        ours, theirs = socket.socketpair()
        with theirs:
            told, asked = await asyncio.open_unix_connection(sock=ours)
            try:
                if self._closed:
                    raise ConnectionError
                looker = _Looker(start("gateway.images.worker", theirs, self._room), told, asked)
            except OSError:
                asked.close()
                raise
        self._all.add(looker)
        return looker

    def _complain(self, what: str) -> None:
        if not self._closed:  # those that are killed then are meant to be
            log.error("a process that looks at images %s", what)

    def _pause(self) -> None:
        self._not_before = asyncio.get_running_loop().time() + _PAUSE_S

    async def _end(self, looker: _Looker) -> None:
        looker.process.kill()
        await asyncio.to_thread(looker.process.wait)
        self._forget(looker)

    def _forget(self, looker: _Looker) -> None:
        looker.asked.close()
        self._all.discard(looker)


@dataclass(eq=False, slots=True)
class _Looker:
    """A process, how it is told of images and tells of them, and of how many it has."""

    process: subprocess.Popen[bytes]
    told: StreamReader
    asked: StreamWriter
    images: int = 0

    async def exchange(self, data: Buffer, *, guess: bool) -> Answer:
        self.asked.writelines((HEAD.pack(guess, len(data)), data))
        if not (line := await self.told.readline()):
            raise ConnectionError
        return msgspec.json.decode(line, type=Answer)
