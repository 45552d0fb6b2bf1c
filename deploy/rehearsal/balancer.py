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
import socket
import sys
import threading
from typing import TYPE_CHECKING, Literal, cast

import httpx
import uvicorn
import uvloop
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse

from deploy.rehearsal.kept_connections import KeptConnections

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from types import TracebackType

    from starlette.types import Receive, Scope, Send

Mode = Literal["connections", "requests"]
MODES: tuple[Mode, ...] = ("connections", "requests")
_HOST = "127.0.0.1"
_BACKLOG = 2048
# nginx's keepalive_timeout of both its sides.
_CLIENT_KEEP_S, _UPSTREAM_KEEP_S = 75, 60
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


class _RequestProxy:
    """Passes requests on, as an ASGI application."""

    def __init__(self, backends: _Backends) -> None:
        self._backends = backends
        self._connections: dict[str, KeptConnections] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        backend = self._backends.choose()
        async with contextlib.AsyncExitStack() as stack:
            try:
                if backend is None:
                    raise httpx.ConnectError("no backend")
                headers = [pair for pair in request.headers.items() if pair[0].lower() not in _HOP]
                body = await request.body()
                passed_on = httpx.Request(
                    request.method, backend + request.url.path, headers=headers, content=body
                )
                kept = self._connections.setdefault(backend, KeptConnections(_UPSTREAM_KEEP_S))
                http = await stack.enter_async_context(kept.client())
                answer = await http.send(passed_on, stream=True)
                stack.push_async_callback(answer.aclose)
            except httpx.HTTPError:
                await PlainTextResponse("no backend, or it failed", 502)(scope, receive, send)
                return
            # What ends early is raised to the server, which then breaks the client's connection.
            reply = StreamingResponse(answer.aiter_raw(), answer.status_code)
            reply.raw_headers = [pair for pair in answer.headers.raw if pair[0].lower().decode() not in _HOP]
            await reply(scope, receive, send)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process, which ends with its standard input."""
        yield


@contextlib.asynccontextmanager
async def _pass_requests(backends: _Backends) -> AsyncIterator[int]:
    config = uvicorn.Config(
        _RequestProxy(backends),
        lifespan="off",
        log_level="critical",
        access_log=False,
        timeout_keep_alive=_CLIENT_KEEP_S,
    )
    server = _Server(config)
    with socket.create_server((_HOST, 0), backlog=_BACKLOG) as listener:
        serving = asyncio.create_task(server.serve([listener]))
        yield int(listener.getsockname()[1])
        server.should_exit = server.force_exit = True
        await serving


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
