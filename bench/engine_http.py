"""`python -m bench.engine_http`: what the engines' client costs, against aiohttp and the ways it spares.

CPU time of the thread that asks; the engines are stubs in another, on loopback. Each pair is measured turn by
turn, and the median of the turns counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING

import aiohttp
import uvloop

from bench.stubs import Engines
from gateway.model import Engine
from gateway.server.machine import keep_memory
from gateway.upstream.client import EngineClient
from gateway.wire import openai, sse
from gateway.wire.openai.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Iterator

TURNS, AT_ONCE, EVENTS = 5, 32, 64
PATH = "/v1/chat/completions"
HEADERS = {"Content-Type": "application/json", "X-Request-Id": "r"}

Ask = Callable[[bytes], Awaitable[None]]


@contextmanager
def engine(events: int) -> Iterator[str]:
    """Serve a stub engine from a thread of its own; yield its URL."""
    ready, url = threading.Event(), ""

    async def serve() -> None:
        nonlocal url
        stub = Engines()
        stub.events = events
        async with stub.listening(1) as (found,):
            url = found
            ready.set()
            await asyncio.to_thread(over.wait)

    over = threading.Event()
    thread = threading.Thread(target=uvloop.run, args=(serve(),))
    thread.start()
    ready.wait()
    yield url
    over.set()
    thread.join()


async def cost(ask: Ask, body: bytes, count: int) -> float:
    """Return microseconds of CPU a request, so many at once."""

    async def work(times: int) -> None:
        for _ in range(times):
            await ask(body)

    await asyncio.gather(*[work(2) for _ in range(AT_ONCE)])
    before = time.thread_time()
    await asyncio.gather(*[work(count // AT_ONCE) for _ in range(AT_ONCE)])
    return (time.thread_time() - before) / count * 1e6


async def compared(url: str, size: int, count: int) -> tuple[float, float]:
    """Return what aiohttp costs, and ours."""
    body, target = b"x" * size, Engine("e", url, "p", 0)
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        EngineClient() as client,
    ):

        async def theirs(body: bytes) -> None:
            async with session.post(url + PATH, data=body, headers=HEADERS) as answer:
                async for _ in answer.content.iter_any():
                    pass

        async def ours(body: bytes) -> None:
            deadline = asyncio.get_running_loop().time() + 60
            limits = {"connect_s": 2.0, "first_event_s": None, "deadline": deadline}
            sent = client.send(target, PATH, (body,), HEADERS, **limits)  # type: ignore[arg-type]
            with contextlib.closing(await sent) as answer:
                while await answer.more(deadline):
                    pass

        turns = [(await cost(theirs, body, count), await cost(ours, body, count)) for _ in range(TURNS)]
    return statistics.median(turn[0] for turn in turns), statistics.median(turn[1] for turn in turns)


def timed(work: Callable[[], object], times: int = 20_000) -> float:
    """Return microseconds of CPU a call: the median of some turns."""
    turns = []
    for _ in range(TURNS):
        before = time.thread_time()
        for _ in range(times):
            work()
        turns.append((time.thread_time() - before) / times * 1e6)
    return statistics.median(turns)


async def waits() -> tuple[float, float]:
    """Return what asyncio's timeout costs a wait, and a look at the clock instead."""
    now = asyncio.get_running_loop().time
    turns = []
    for _ in range(TURNS):
        before = time.thread_time()
        for _ in range(5000):
            async with asyncio.timeout_at(now() + 30):  # noqa: ASYNC100 - its cost is asked for
                pass
        turns.append((time.thread_time() - before) / 5000 * 1e6)
    return statistics.median(turns), timed(now)


def main() -> None:
    """Print the table."""
    keep_memory()
    rows = []
    for name, size, count, events in (
        ("a request of 1 kB", 1000, 960, 0),
        ("a request of 200 kB", 200_000, 480, 0),
        (f"a stream of {EVENTS + 3} events", 1000, 128, EVENTS),
    ):
        with engine(events) as url:
            rows.append((name, "aiohttp", "ours", *uvloop.run(compared(url, size, count))))
    event = Engines().piece.split(b"\r\n", 1)[1][:-2]
    steps, splitter = Steps(), sse.EventSplitter()
    steps.learn(event)
    read = timed(lambda: [openai.read_chunk(sse.event_data(one) or b"") for one in splitter.feed(event)])
    rows.append(("an ordinary step", "read", "recognised", read, timed(lambda: steps.count(event))))
    rows.append(("a wait with a limit", "asyncio.timeout", "one timer", *uvloop.run(waits())))
    print("What the engines' client costs (us of CPU)\n")
    for name, one, other, before, after in rows:
        print(f"{name:26} {one:>15} {before:8.1f}   {other:>10} {after:8.1f}   {before / after:5.1f} times")


if __name__ == "__main__":
    main()
