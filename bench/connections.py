"""`python -m bench.connections`: good requests beside 10,000 idle and 1,000 slow connections. Simulated.

`ocr-gateway serve` over simulated engines, whose part in a request is made short. Good clients in a closed
loop are measured in windows, by turns alone and beside the crowd, which processes of its own hold. Half of
the idle have been answered once and keep their connection, half never say a word; the slow send a byte of a
request's headers or body a second. Whom the gateway sends away comes again at once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import platform
import random
import socket
import statistics
import struct
import sys
import tempfile
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from bench.faults import Clients, Tally, engine_processes, serving, write_config
from bench.serving import ROOT
from gateway.server.listen import allow_many_connections

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

GOOD = 4
PROCESSES = 2
TIME_SCALE = 50
_BYTE_S = 1.0
_OPENING = 200  # connections at a time
_SETTLE_S = 2.0
_LONG_S = 120


@dataclass(frozen=True)
class Crowd:
    """How many connections of each kind: silent, kept open behind an answer, slow."""

    silent: int
    kept: int
    slow: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.silent + self.kept + self.slow

    def part(self, number: int) -> Crowd:
        """The share of one of the processes."""
        shares = ((count + number) // PROCESSES for count in (self.silent, self.kept, self.slow))
        return Crowd(*shares)


@dataclass
class Window:
    """What was measured in one window.

    Attributes:
        crowded: whether the crowd was there.
        tally: what became of good requests; its `seconds` are their times.
        rss_mb: the gateway's resident memory at the end, in 10^6 bytes.
        descriptors: its open files then.
    """

    crowded: bool
    tally: Tally
    rss_mb: float
    descriptors: int


@dataclass
class Result:
    """All windows; descriptors and memory before them and after the last crowd has gone; who came again."""

    windows: list[Window] = field(default_factory=list)
    before: tuple[int, float] = (0, 0.0)
    after: tuple[int, float] = (0, 0.0)
    again: int = 0

    def seconds(self, *, crowded: bool) -> list[float]:
        """The times of good requests, of all windows of one kind."""
        return [one for window in self.windows if window.crowded is crowded for one in window.tally.seconds]


class _Held(asyncio.Protocol):
    """One connection of the crowd."""

    transport: asyncio.Transport

    def __init__(self, kind: str, lost: Callable[[_Held], None]) -> None:
        self.kind = kind
        self._lost = lost
        self._sending: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        # Ends by a reset: ports that wait a minute after each window would run out.
        linger = struct.pack("ii", 1, 0)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        if self.kind == "kept":
            transport.write(b"GET /health HTTP/1.1\r\nhost: gateway\r\n\r\n")
        elif self.kind != "silent":
            self._sending = asyncio.get_running_loop().create_task(self._drip(transport))

    def connection_lost(self, error: Exception | None) -> None:
        if self._sending:
            self._sending.cancel()
        self._lost(self)

    async def _drip(self, transport: asyncio.Transport) -> None:
        if self.kind == "slow body":
            transport.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\n"
                b"content-type: application/json\r\ncontent-length: 100000\r\n\r\n{"
            )
        else:
            transport.write(b"POST /v1/chat/completions HTTP/1.1\r\nx-slow: ")
        await asyncio.sleep(random.uniform(0, _BYTE_S))
        while True:
            transport.write(b" ")
            await asyncio.sleep(_BYTE_S)


async def hold(host: str, port: int, crowd: Crowd) -> None:
    """Hold connections until standard input ends; print when all are there, then how many came again."""
    allow_many_connections()
    loop = asyncio.get_running_loop()
    again, ending = 0, False
    tasks: set[asyncio.Task[None]] = set()
    held: set[_Held] = set()
    opening = asyncio.Semaphore(_OPENING)

    async def connect(kind: str) -> None:
        async with opening:
            with contextlib.suppress(OSError):
                _, one = await loop.create_connection(lambda: _Held(kind, lost), host, port)
                held.add(one)

    def lost(one: _Held) -> None:
        nonlocal again
        held.discard(one)
        if not ending:
            again += 1
            task = loop.create_task(connect(one.kind))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    kinds = ["silent"] * crowd.silent + ["kept"] * crowd.kept
    kinds += ["slow body" if number % 2 else "slow head" for number in range(crowd.slow)]
    await asyncio.gather(*map(connect, kinds))
    print("held", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    ending = True
    for one in held:
        one.transport.abort()
    print(again, flush=True)


@contextlib.asynccontextmanager
async def crowded(host: str, port: int, crowd: Crowd, result: Result) -> AsyncIterator[None]:
    """Have other processes hold a crowd."""
    start = partial(
        asyncio.create_subprocess_exec,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    command = [sys.executable, "-m", "bench.connections", "--hold", host, str(port)]
    shares = [crowd.part(number) for number in range(PROCESSES)]
    processes = [
        await start(*command, str(share.silent), str(share.kept), str(share.slow)) for share in shares
    ]
    try:
        for process in processes:
            assert process.stdout
            assert await process.stdout.readline() == b"held\n"
        yield
    finally:
        for process in processes:
            told, _ = await process.communicate(b"")
            result.again += int(told or 0)


def descriptors(pid: int) -> int:
    """Return how many files a process has open (Linux)."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def rss_mb(pid: int) -> float:
    """Return a process' resident memory in 10^6 bytes (Linux)."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def measure(folder: Path, crowd: Crowd, windows: int, answers: int) -> Result:
    """Measure good requests by turns alone and beside a crowd.

    Args:
        folder: for the configuration.
        crowd: who else is there.
        windows: of each kind.
        answers: good ones that a window waits for.
    """
    result = Result()
    with engine_processes((3, 0), TIME_SCALE) as engines:
        write_config(folder / "routes.yaml", engines)
        async with serving(folder / "routes.yaml") as served, Clients([served.url], GOOD) as clients:
            pid, (host, port) = served.process.pid, served.url.removeprefix("http://").split(":")

            async def window(*, there: bool) -> None:
                await asyncio.sleep(_SETTLE_S)
                tally = clients.fresh()
                await clients.answered(answers)
                clients.fresh()
                result.windows.append(Window(there, tally, rss_mb(pid), descriptors(pid)))

            await clients.answered(answers // 4)
            result.before = descriptors(pid), rss_mb(pid)
            for _ in range(windows):
                await window(there=False)
                async with crowded(host, int(port), crowd, result):
                    await window(there=True)
                async with asyncio.timeout(_LONG_S):
                    while descriptors(pid) > result.before[0] + 2 * GOOD:  # noqa: ASYNC110 - another process
                        await asyncio.sleep(0.1)
            result.after = descriptors(pid), rss_mb(pid)
    return result


def report(result: Result, crowd: Crowd) -> Iterator[str]:
    """Return what was measured, as lines."""
    yield "| window | good requests | failed | p50, ms | p99, ms | descriptors | RSS, MB |"
    yield "|---|---|---|---|---|---|---|"
    for window in result.windows:
        tally = window.tally
        failed = sum(tally.lost.values()) + tally.told + tally.silent
        yield (
            f"| {'crowded' if window.crowded else 'calm'} | {len(tally.seconds)} | {failed} | "
            f"{_ms(tally.seconds, 50):.1f} | {_ms(tally.seconds, 99):.1f} | {window.descriptors:,} | "
            f"{window.rss_mb:.0f} |"
        )
    calm, busy = result.seconds(crowded=False), result.seconds(crowded=True)
    yield ""
    for percent in (50, 99):
        before, after = _ms(calm, percent), _ms(busy, percent)
        yield f"p{percent}: {before:.1f} ms calm, {after:.1f} ms crowded, ratio {after / before:.2f}"
    yield f"descriptors: {result.before[0]} before, {result.after[0]} after the last crowd"
    yield f"RSS: {result.before[1]:.0f} MB before, {result.after[1]:.0f} MB after"
    yield f"of the crowd's {crowd.total:,} connections, closed by the gateway and made anew: {result.again:,}"


def _ms(seconds: Sequence[float], percent: int) -> float:
    return statistics.quantiles(seconds, n=100)[percent - 1] * 1000


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.connections", description=__doc__)
    parser.add_argument("--idle", type=int, default=10_000, help="default: 10000")
    parser.add_argument("--slow", type=int, default=1_000, help="default: 1000")
    parser.add_argument("--windows", type=int, default=4, help="of each kind; default: 4")
    parser.add_argument("--answers", type=int, default=1_000, help="in each; default: 1000")
    parser.add_argument("--hold", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if options.hold:
            host, *numbers = options.hold
            port, silent, kept, slow = map(int, numbers)
            runner.run(hold(host, port, Crowd(silent, kept, slow)))
            return
        crowd = Crowd(options.idle // 2, options.idle - options.idle // 2, options.slow)
        print(
            f"Simulated engines, {TIME_SCALE} times as fast; {GOOD} good clients in a closed loop, alone and "
            f"beside {options.idle:,} idle and {options.slow:,} slow connections, by turns\n"
            f"{os.cpu_count()} cores ({platform.machine()}), shared by clients, crowd, gateway and engines; "
            f"Python {platform.python_version()}, uvicorn {version('uvicorn')}, uvloop {version('uvloop')}\n"
        )
        with tempfile.TemporaryDirectory() as folder:
            result = runner.run(measure(Path(folder), crowd, options.windows, options.answers))
        print(*report(result, crowd), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
