"""What the HTTP servers of the engines that ship along have in common: vLLM's endpoints, ASGI and uvicorn."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.errors import BodyTooLarge, GatewayError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from types import FrameType

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    # Answers a body, or refuses it; the second argument is the request's scope.
    Answer = Callable[[bytes | GatewayError, Scope, Send], Coroutine[Any, Any, None]]

DRAIN_SECONDS = 60
MAX_BODY_BYTES = 64 * 1024 * 1024

_MAX_MODEL_LEN = 131_072
_SANE_ID = re.compile(r"[\w.:-]{1,128}")


def vllm_app(
    answers: Mapping[str, Answer],
    *,
    model: str,
    version: str,
    owner: str,
    healthy: Callable[[], bool],
    metrics: Callable[[], str],
    lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]],
    more: Sequence[Route] = (),
) -> Starlette:
    """Build an ASGI application with vLLM's endpoints.

    Args:
        answers: by path, what answers the POST requests there; it is cancelled when the client leaves.
        model: the name that is served.
        version: what GET /version tells.
        owner: what GET /v1/models calls the model's owner.
        healthy: returns whether GET /health is 200, and not 503.
        metrics: returns GET /metrics.
        lifespan: Starlette's.
        more: further endpoints.
    """
    card = {
        "id": model,
        "object": "model",
        "created": int(time.time()),
        "owned_by": owner,
        "root": model,
        "parent": None,
        "max_model_len": _MAX_MODEL_LEN,
        "permission": [],
    }

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [card]})

    async def health(_: Request) -> Response:
        return Response(status_code=200 if healthy() else 503)

    async def version_page(_: Request) -> Response:
        return JSONResponse({"version": version})

    async def metrics_page(_: Request) -> Response:
        return Response(metrics(), media_type="text/plain; version=0.0.4")

    routes = [
        *(Route(path, _Completions(answer), methods=["POST"]) for path, answer in answers.items()),
        Route("/v1/models", models),
        Route("/health", health),
        Route("/version", version_page),
        Route("/metrics", metrics_page),
        *more,
    ]
    return Starlette(
        routes=routes, exception_handlers={404: _not_served, 405: _not_served}, lifespan=lifespan
    )


class _Completions:
    """An endpoint that reads a body and answers it while its client stays connected.

    An object, to which Starlette passes ASGI's own arguments; a function would get a request, which does not
    tell that the client leaves.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive, MAX_BODY_BYTES)
        if body is not None:
            await answer_while_connected(self._answer(body, scope, send), receive)


def _not_served(_: Request, error: Any) -> Response:
    """Answer an unknown path or method as vLLM does."""
    return JSONResponse({"detail": error.detail}, error.status_code, headers=error.headers)


class _Draining(uvicorn.Server):
    """Goes on listening between the signal and the end, as vLLM does, for as long as `drain` takes.

    A second Ctrl-C ends it at once.
    """

    def __init__(self, config: uvicorn.Config, drain: Callable[[], Coroutine[Any, Any, None]]) -> None:
        super().__init__(config)
        self._drain = drain
        self._ending: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._ending and sig == signal.SIGINT:
            self.should_exit = self.force_exit = True
        else:
            self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self._ending = self._ending or self._loop.create_task(self._end())

    async def _end(self) -> None:
        await self._drain()
        self.should_exit = True


def make_server(
    app: ASGIApp, *, host: str, port: int, drain: Callable[[], Coroutine[Any, Any, None]] | None = None
) -> uvicorn.Server:
    """Make a server that ends on SIGTERM or SIGINT.

    Args:
        app: what it serves.
        host: where it listens.
        port: likewise.
        drain: what it does first, while it still listens; when that has returned it ends as soon as all
            connections have. Without it it listens no more, and what is in flight has DRAIN_SECONDS.
    """
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        loop="uvloop",
        http="httptools",
        ws="none",
        access_log=False,
        log_config=None,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=None if drain else DRAIN_SECONDS,
    )
    if drain:
        return _Draining(config, drain)
    # uvicorn raises the signal again once it has stopped; by then there is nothing left to do.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    return uvicorn.Server(config)


async def answer_while_connected(answer: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Run `answer` to its end, or cancel it when the client leaves."""
    answering = asyncio.create_task(answer)
    leaving = asyncio.create_task(_client_left(receive))
    try:
        await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        answering.cancel()
        leaving.cancel()
        await asyncio.wait((answering, leaving))
    if not answering.cancelled():
        answering.result()


async def read_body(receive: Receive, limit: int) -> bytes | GatewayError | None:
    """Read a body of at most `limit` bytes; None when the client left, the refusal when it is larger."""
    parts: list[bytes] = []
    size = 0
    while True:
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            return BodyTooLarge(f"the body is over {limit} bytes")
        if not message.get("more_body", False):
            return b"".join(parts)


def request_id(scope: Scope) -> str:
    """Return the client's own request id where it sent a sane one, or a new one."""
    sent = Headers(scope=scope).get("x-request-id", "")
    if _SANE_ID.fullmatch(sent):
        return sent
    return uuid.uuid4().hex[:16]


async def send_start(send: Send, status: int, media_type: bytes, length: int | None = None) -> None:
    """Send an answer's status and headers."""
    headers = [(b"content-type", media_type)]
    if length is not None:
        headers.append((b"content-length", b"%d" % length))
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def send_body(send: Send, body: bytes, *, more: bool = False) -> None:
    """Send a part of an answer's body, the last one unless there is `more`."""
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def send_whole(send: Send, status: int, body: bytes) -> None:
    """Send a JSON answer."""
    await send_start(send, status, b"application/json", len(body))
    await send_body(send, body)


async def _client_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
