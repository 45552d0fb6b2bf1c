"""A few threads that read images, and the bounded queue before them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from gateway.errors import Unavailable

R = TypeVar("R")
P = TypeVar("P")

Stopped = Callable[[], bool]


class ReaderThreads(Generic[R]):
    """`count` threads, each lent one of as many readers; used from one event loop only.

    Attributes:
        running: jobs that hold a reader, those being broken off included.
        waiting: jobs that wait for one.
        ready: every reader is loaded.
    """

    def __init__(self, load: Callable[[], R], *, count: int, max_waiting: int) -> None:
        self._load = load
        self._count = count
        self._max_waiting = max_waiting
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="reader")
        self._idle: asyncio.Queue[R] = asyncio.Queue()
        self._stops: set[threading.Event] = set()
        self.running = 0
        self.waiting = 0
        self.ready = False

    async def start(self) -> None:
        """Load the readers; jobs may be handed in meanwhile and wait."""
        loop = asyncio.get_running_loop()
        loads = [loop.run_in_executor(self._threads, self._load) for _ in range(self._count)]
        for reader in await asyncio.gather(*loads):
            self._idle.put_nowait(reader)
        self.ready = True

    async def run(self, job: Callable[[R, Stopped], Iterator[P]]) -> AsyncGenerator[P]:
        """Run a job in a thread and yield its pieces as they come.

        The job asks its second argument between steps whether to break off; it must when this generator
        is closed or its task cancelled.

        Raises:
            Unavailable: too many jobs wait already.
        """
        if self.waiting >= self._max_waiting:
            raise Unavailable(f"{self.waiting} requests are waiting already", retry_after=5)
        self.waiting += 1
        try:
            reader = await self._idle.get()
        finally:
            self.waiting -= 1
        stop = threading.Event()
        pieces: asyncio.Queue[P | BaseException | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def work() -> None:
            for piece in job(reader, stop.is_set):
                loop.call_soon_threadsafe(pieces.put_nowait, piece)
                if stop.is_set():
                    break

        def ended(future: asyncio.Future[None]) -> None:
            self._stops.discard(stop)
            self._idle.put_nowait(reader)
            self.running -= 1
            pieces.put_nowait(None if future.cancelled() else future.exception())

        self._stops.add(stop)
        self.running += 1
        loop.run_in_executor(self._threads, work).add_done_callback(ended)
        try:
            while (piece := await pieces.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            stop.set()

    async def close(self) -> None:
        """Break off what runs and wait for the threads to end."""
        for stop in self._stops:
            stop.set()
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
