"""How evenly the kernel spreads few connections over processes, by SO_REUSEPORT or over one listener."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import statistics
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, cast

import uvloop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

WORKERS = 4
CONNECTIONS = (4, 8, 16, 64)
WAYS = ("SO_REUSEPORT", "one listener for all")


def measure(times: int) -> list[dict[str, Any]]:
    """Open connections so many times, one after the other; tell what the busiest of the processes got.

    Returns:
        of each way and number: the busiest's connections over the mean, on average and one time in 20.
    """
    found = []
    for way in WAYS:
        with _serving(way) as port:
            for count in CONNECTIONS:
                most = sorted(_busiest(port, count) for _ in range(max(10, times // count)))
                even = count / WORKERS
                found.append(
                    {
                        "way": way,
                        "workers": WORKERS,
                        "connections": count,
                        "busiest": round(statistics.mean(most) / even, 2),
                        "busiest_p95": round(most[int(0.95 * len(most))] / even, 2),
                    }
                )
    return found


def _busiest(port: int, count: int) -> int:
    """Open connections; return how many of them the process has that got the most."""
    with ExitStack() as stack:
        own = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port))).recv(1)[0]
            for _ in range(count)
        ]
        return max(map(own.count, set(own)))


@contextmanager
def _serving(way: str) -> Iterator[int]:
    spawn = multiprocessing.get_context("fork")
    first = _listener(0)
    port: int = first.getsockname()[1]
    sockets = [first] + [_listener(port) if way == WAYS[0] else first for _ in range(WORKERS - 1)]
    processes = []
    try:
        for number, listener in enumerate(sockets):
            ready, far = spawn.Pipe()
            processes.append(spawn.Process(target=_serve, args=(listener, number, far), daemon=True))
            processes[-1].start()
            ready.recv()
        for listener in set(sockets):
            listener.close()  # those of the processes are left
        yield port
    finally:
        for process in processes:
            process.kill()
            process.join()


def _listener(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(256)
    return listener


def _serve(listener: socket.socket, number: int, ready: Connection) -> None:
    class Greeter(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            cast("asyncio.Transport", transport).write(bytes([number]))

    async def run() -> None:
        await asyncio.get_running_loop().create_server(Greeter, sock=listener)
        ready.send(None)
        await asyncio.Event().wait()

    sys.exit(uvloop.run(run()))
