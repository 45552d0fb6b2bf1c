from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING

import pytest

from gateway.engines.embedded.reader_threads import ReaderThreads, Stopped
from gateway.errors import Unavailable
from tests.support import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator


@contextlib.asynccontextmanager
async def working(*, count: int = 1, max_waiting: int = 4) -> AsyncIterator[ReaderThreads[str]]:
    names = iter("abcdef")
    workers = ReaderThreads(lambda: next(names), count=count, max_waiting=max_waiting)
    await workers.start()
    try:
        yield workers
    finally:
        await workers.close()


async def collected(workers: ReaderThreads[str], job: Callable[[str, Stopped], Iterator[str]]) -> list[str]:
    return [piece async for piece in workers.run(job)]


def endless(reader: str, stopped: Stopped) -> Iterator[str]:
    while not stopped():
        yield reader
        time.sleep(0.005)


async def test_pieces_come_in_order_from_a_reader() -> None:
    async with working() as workers:
        assert workers.ready
        assert await collected(workers, lambda reader, _: iter((reader, "x"))) == ["a", "x"]
        await until(lambda: workers.running == 0)


async def test_jobs_run_side_by_side_with_a_reader_each() -> None:
    meet = threading.Barrier(2)

    def job(reader: str, _: Stopped) -> Iterator[str]:
        meet.wait(10)
        yield reader

    async with working(count=2) as workers:
        found = await asyncio.gather(collected(workers, job), collected(workers, job))
        assert sorted(found) == [["a"], ["b"]]


async def test_jobs_wait_until_the_readers_are_loaded() -> None:
    workers = ReaderThreads(lambda: "a", count=1, max_waiting=4)
    early = asyncio.create_task(collected(workers, lambda reader, _: iter(reader)))
    await until(lambda: workers.waiting == 1)
    assert not workers.ready
    await workers.start()
    assert await early == ["a"]
    await workers.close()


async def test_one_too_many_is_refused() -> None:
    async with working(max_waiting=1) as workers:
        held = [asyncio.create_task(collected(workers, endless)) for _ in range(2)]
        await until(lambda: (workers.running, workers.waiting) == (1, 1))
        with pytest.raises(Unavailable) as caught:
            await collected(workers, endless)
        assert caught.value.retry_after
        for task in held:
            task.cancel()
        await until(lambda: (workers.running, workers.waiting) == (0, 0))


async def test_a_failure_is_the_callers_and_frees_the_reader() -> None:
    def job(reader: str, _: Stopped) -> Iterator[str]:
        yield reader
        raise ValueError("broken")

    async with working() as workers:
        with pytest.raises(ValueError, match="broken"):
            await collected(workers, job)
        assert await collected(workers, lambda reader, _: iter(reader)) == ["a"]


async def test_closing_the_pieces_breaks_the_job_off() -> None:
    async with working() as workers:
        async with contextlib.aclosing(workers.run(endless)) as pieces:
            assert await anext(pieces) == "a"
            assert workers.running == 1
        await until(lambda: workers.running == 0)


@pytest.mark.parametrize("begun", [True, False])
async def test_close_breaks_off_what_runs(begun: bool) -> None:
    workers = ReaderThreads(lambda: "a", count=1, max_waiting=4)
    await workers.start()
    block = threading.Event()
    if not begun:  # the thread is busy, so the job has its reader and not begun
        workers._threads.submit(block.wait)
    found: list[str] = []

    async def collect() -> None:
        found.extend(await collected(workers, endless))

    task = asyncio.create_task(collect())
    await until(lambda: workers.running == 1)
    closing = asyncio.create_task(workers.close())
    async with asyncio.timeout(5):
        if not begun:
            await until(lambda: workers.running == 0)
            block.set()
        await asyncio.gather(task, closing)
    assert set(found) <= {"a"}
