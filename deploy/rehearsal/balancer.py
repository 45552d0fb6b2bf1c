"""A balancer in a process of its own: what stands between clients and gateways in a cluster.

`connections` is what a Service (kube-proxy) and other balancers of TCP do: a connection goes to one backend
and stays there; one that is no endpoint any more gets no new connections and keeps those that it has.
`requests` is what an ingress controller does: each request goes to a backend of its own over connections that
are kept, and one that fails is not sent again (nginx does not repeat a POST either).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import threading
from typing import TYPE_CHECKING, Literal, cast

import aiohttp
import uvloop
from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from types import TracebackType

Mode = Literal["connections", "requests"]
MODES: tuple[Mode, ...] = ("connections", "requests")
_HOST = "127.0.0.1"
_BACKLOG = 2048
_MIB = 1 << 20
# Headers that are about one connection, not about the request.
_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "host"})


class Balancer:
    """Starts the balancer's process and tells it its backends; an asynchronous context manager."""

    def __init__(self, mode: Mode = "connections") -> None:
        """Prepare it."""
        self._mode = mode
        self.url = ""

    async def __aenter__(self) -> Balancer:
        command = [sys.executable, "-m", "deploy.rehearsal.balancer", self._mode]
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        self._input = cast("asyncio.StreamWriter", self._process.stdin)
        output = cast("asyncio.StreamReader", self._process.stdout)
        self.url = f"http://{_HOST}:{int(await output.readline())}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._input.close()
        await self._process.wait()

    def set(self, urls: frozenset[str]) -> None:
        """Have these backends from now on."""
        self._input.write(json.dumps(sorted(urls)).encode() + b"\n")


class _Backends:
    def __init__(self) -> None:
        self.urls: list[str] = []
        self._rng = random.Random(0)

    def choose(self) -> str | None:
        return self._rng.choice(self.urls) if self.urls else None


class _End(asyncio.Protocol):
    """One end of a connection that is passed on; what it reads, its other end writes."""

    transport: asyncio.Transport
    other: _End
    _ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.other.transport.write(data)

    def eof_received(self) -> bool:
        self._ended = True
        if not self.other.transport.is_closing():
            self.other.transport.write_eof()
        return not self.other._ended

    def connection_lost(self, exc: Exception | None) -> None:
        (self.other.transport.abort if exc else self.other.transport.close)()

    def pause_writing(self) -> None:
        self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        self.other.transport.resume_reading()


class _Client(_End):
    """The client's end: finds a backend, which it keeps."""

    _joined = False

    def __init__(self, backends: _Backends) -> None:
        self._backends = backends
        self._joining: asyncio.Task[None] | None = None
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._joining = asyncio.get_running_loop().create_task(self._join())

    def data_received(self, data: bytes) -> None:
        if self._joined:
            super().data_received(data)
        else:
            self._early.append(data)

    def eof_received(self) -> bool:
        return super().eof_received() if self._joined else False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._joined:
            super().connection_lost(exc)

    async def _join(self) -> None:
        backend = self._backends.choose()
        try:
            if backend is None:
                raise ConnectionRefusedError
            host, _, port = backend.rpartition("/")[2].partition(":")
            _, end = await asyncio.get_running_loop().create_connection(_End, host, int(port))
        except OSError:
            self.transport.abort()
            return
        end.other, self.other = self, end
        self._joined = True
        end.transport.writelines(self._early)
        if self.transport.is_closing():
            end.transport.close()


@contextlib.asynccontextmanager
async def _pass_connections(backends: _Backends) -> AsyncIterator[int]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Client(backends), _HOST, 0, backlog=_BACKLOG)
    async with server:
        yield int(server.sockets[0].getsockname()[1])


@contextlib.asynccontextmanager
async def _pass_requests(backends: _Backends) -> AsyncIterator[int]:
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),  # nginx's upstream-keepalive-timeout
        timeout=aiohttp.ClientTimeout(None),
        auto_decompress=False,
    )

    async def handle(request: web.Request) -> web.StreamResponse:
        backend = backends.choose()
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        try:
            if backend is None:
                raise aiohttp.ClientError
            body = await request.read()
            answer = await session.request(request.method, backend + request.path, headers=headers, data=body)
        except aiohttp.ClientError:
            return web.Response(status=502, text="no backend, or it failed")
        async with answer:
            reply = web.StreamResponse(status=answer.status)
            reply.headers.extend(
                {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
            )
            await reply.prepare(request)
            try:
                async for data in answer.content.iter_any():
                    await reply.write(data)
            except aiohttp.ClientError:
                if request.transport:
                    request.transport.abort()
            return reply

    app = web.Application(client_max_size=64 * _MIB)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, _HOST, 0, backlog=_BACKLOG)
    await site.start()
    async with session:
        yield int(runner.addresses[0][1])
    await runner.cleanup()


async def _run(mode: Mode) -> None:
    backends, ended = _Backends(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(setattr, backends, "urls", json.loads(line))
        loop.call_soon_threadsafe(ended.set)

    async with (_pass_connections if mode == "connections" else _pass_requests)(backends) as port:
        print(port, flush=True)
        threading.Thread(target=read, daemon=True).start()
        await ended.wait()


def main(arguments: Sequence[str] | None = None) -> None:
    """Balance until the standard input ends; each line of it lists the backends' URLs, as JSON."""
    parser = argparse.ArgumentParser(prog="python -m deploy.rehearsal.balancer", description=__doc__)
    parser.add_argument("mode", choices=MODES)
    mode: Mode = parser.parse_args(arguments).mode
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_run(mode))


if __name__ == "__main__":
    main()
