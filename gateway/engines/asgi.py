"""What the HTTP servers of the engines that ship along have in common: raw ASGI, and uvicorn."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import uuid
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from gateway.errors import BodyTooLarge, GatewayError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine
    from types import FrameType

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

DRAIN_SECONDS = 60

_MAX_MODEL_LEN = 131_072
_SANE_ID = re.compile(r"[\w.:-]{1,128}")


class Raw:
    """An ASGI call that Starlette's router does not take for a request handler: disconnects need it raw."""

    def __init__(self, call: Callable[[Scope, Receive, Send], Any]) -> None:
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on."""
        await self._call(scope, receive, send)


class _Draining(uvicorn.Server):
    """Between the signal and the end it goes on listening, as vLLM does, for as long as `drain` takes.

    Whoever presses Ctrl-C again does not want to wait for that.
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


def not_served(_: Request, error: Any) -> Response:
    """Answer an unknown path or method as vLLM does."""
    return JSONResponse({"detail": error.detail}, error.status_code, headers=error.headers)


def model_list(model: str, created: int, owned_by: str) -> Response:
    """Answer GET /v1/models as vLLM does; `created` is in seconds since 1970."""
    card = {
        "id": model,
        "object": "model",
        "created": created,
        "owned_by": owned_by,
        "root": model,
        "parent": None,
        "max_model_len": _MAX_MODEL_LEN,
        "permission": [],
    }
    return JSONResponse({"object": "list", "data": [card]})


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
