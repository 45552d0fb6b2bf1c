"""The way of all requests: each gets an id and has its key checked; those for engines are answered here."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from functools import partial
from typing import TYPE_CHECKING

from gateway.api.auth import refuse
from gateway.api.connection import CYCLE
from gateway.errors import ClientLeft, GatewayError, InternalError, UnsupportedMediaType
from gateway.request.record import IncomingRequest, RequestProgress
from gateway.wire import openai
from gateway.wire.http import trace_context
from gateway.wire.http.messages import body_too_large
from gateway.wire.http.phases import UNANSWERED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from gateway.api.auth import ApiKeyCheck
    from gateway.api.connection import RequestCycle
    from gateway.documents.endpoint import DocumentEndpoint
    from gateway.request.attempt import GatewayResponse
    from gateway.request.dispatch import Dispatcher
    from gateway.state.requests import MemoryClaim
    from gateway.state.store import State

log = logging.getLogger(__name__)

COMPLETIONS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")

_SANE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}")
_LENGTH = re.compile(rb"[0-9]{1,18}")
# What a connection takes without waiting for its client to read.
_BUFFERED_BYTES = 64 * 1024
_STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class Application:
    """The ASGI application: gives a request its id, checks its key, and leads it to its endpoint.

    Every answer carries x-request-id, the client's own if it is a sane one; HEAD is as GET. While the gateway
    stops, answers close their connections, so that clients come back elsewhere.
    """

    def __init__(
        self, api: ASGIApp, inference: Mapping[str, ASGIApp], keys: ApiKeyCheck, state: State
    ) -> None:
        """Lead to the POST endpoints of `inference`, by path, past FastAPI's layers; all else to `api`."""
        self._api = api
        self._inference = inference
        self._keys = keys
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._api(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = given.decode("latin-1")
        if not _SANE_ID.fullmatch(request_id):
            request_id = os.urandom(16).hex()
        known = scope.setdefault("state", {})
        known["request_id"] = request_id
        endpoint = self._inference.get(scope["path"]) if scope["method"] == "POST" else None
        if endpoint and not self._state.fleet.config.auth.keys_file and not known.get("admin"):
            await endpoint(scope, receive, send)  # which is open to all then, and gives its answers the id
            return
        if scope["method"] == "HEAD":  # the server, which keeps the scope as it was, leaves the body away
            scope = {**scope, "method": "GET"}

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [item for item in message.get("headers", ()) if item[0] != b"x-request-id"]
                message["headers"] = [*headers, (b"x-request-id", request_id.encode())]
                if self._state.requests.closing:
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        try:
            self._keys.check(scope)
        except GatewayError as error:
            await refuse(error, send_with_id)
            return
        await (endpoint or self._api)(scope, receive, send_with_id)


class InferenceEndpoint:
    """An endpoint that engines answer, as plain ASGI but for the body and the client's leaving.

    For these see RequestCycle.

    Attributes:
        dispatcher: has requests answered, once the application has been started.
    """

    def __init__(self, path: str, state: State) -> None:
        self.dispatcher: Dispatcher | DocumentEndpoint | None = None
        self._path = path
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; the client's leaving cancels it."""
        headers = dict(reversed(scope["headers"]))  # of two, the first
        cycle: RequestCycle = scope["extensions"][CYCLE]
        exchange = _Exchange(cycle, headers, self._state)
        key = scope["state"].get("key", "")
        route = headers.get(b"x-ocr-route")
        incoming = IncomingRequest(
            path=self._path,
            request_id=scope["state"]["request_id"],
            started=time.perf_counter(),
            read=exchange.read,
            route_header=None if route is None else route.decode("latin-1"),
            content_type=headers.get(b"content-type", b"").decode("latin-1"),
            may_come_late=scope["client"] in self._state.requests.kept,
            context=trace_context.read(scope["headers"]) if b"traceparent" in headers else {},
            key=key,
            client=key or (scope["client"][0] if scope["client"] else ""),
        )
        scope["headers"].clear()  # a request may last for minutes, and its headers be large
        del headers
        progress = RequestProgress(incoming)
        try:
            if self.dispatcher is None:
                raise RuntimeError("the application has not been started: run it with its lifespan")
            await self.dispatcher.dispatch(progress, partial(exchange.answer, progress))
        except GatewayError as error:
            await exchange.refuse(error, progress)
        except ClientLeft:
            pass
        except Exception:
            log.exception("a request failed unexpectedly")
            await exchange.refuse(InternalError(), progress)
        except asyncio.CancelledError:
            if not exchange.client_left:
                raise
        finally:
            cycle.on_left = None


class _Exchange:
    """One request and its answer."""

    def __init__(self, cycle: RequestCycle, headers: Mapping[bytes, bytes], state: State) -> None:
        self._cycle = cycle
        announced = headers.get(b"content-length", b"0")
        self._announced = int(announced) if _LENGTH.fullmatch(announced) else 0
        self._encoding = headers.get(b"content-encoding", b"identity")
        self._state = state
        self.client_left = False

    async def read(self, limit: int, held: MemoryClaim) -> bytes:
        """Return the body, and watch from then on for the client leaving.

        Args:
            limit: the most bytes it may have.
            held: hears of each part that comes; what is only announced takes no memory.

        Raises:
            UnsupportedMediaType: it is compressed.
            BodyTooLarge: more than `limit` bytes are announced or come.
            Unavailable: there is no memory for it.
            ClientLeft: the client left before the end.
        """
        if self._encoding.strip().lower() not in (b"", b"identity"):
            raise UnsupportedMediaType(
                "the body must be sent as it is, without Content-Encoding (or with `identity`)",
                param="content-encoding",
                code="bad_content_encoding",
            )
        if self._announced > limit:
            raise body_too_large(limit)
        if self._announced > self._cycle.waiting_bytes:  # what has come is about to be counted
            held.check_room(self._announced)
        body = await self._cycle.whole(limit, held.add)
        task = asyncio.current_task()

        def leave() -> None:
            if task:
                self.client_left = True
                task.cancel()

        self._cycle.on_left = leave
        return body

    async def answer(self, progress: RequestProgress, response: GatewayResponse) -> None:
        """Send a response as it comes, with headers that tell what is known of the request.

        Raises:
            ClientLeft: the client stopped reading; it must not hold an engine's place for ever.
        """
        cycle, closing = self._cycle, self._state.requests.closing
        headers = {"content-type": response.content_type, **progress.headers()}
        body = response.body
        whole = body if isinstance(body, bytes) else None
        headers |= _STREAM_HEADERS if whole is None else {"content-length": str(len(whole))}
        if whole is not None and len(whole) <= _BUFFERED_BYTES:
            await cycle.answer(response.status, headers, whole, close=closing)
            return
        cycle.start(response.status, headers, close=closing)
        try:
            async with asyncio.timeout_at(response.deadline + 1):
                if isinstance(body, bytes):
                    await cycle.drain()
                    cycle.write(body)
                else:
                    async for chunk in body:
                        if cycle.paused:
                            await cycle.drain()
                        cycle.write(chunk)
                cycle.on_left = None
                await cycle.drain()
                cycle.write(b"", last=True)
        except TimeoutError as error:
            raise ClientLeft from error

    async def refuse(self, error: GatewayError, progress: RequestProgress) -> None:
        """Send an error as the whole answer; nothing where an answer was begun, so that it breaks off."""
        if self._cycle.phase not in UNANSWERED:
            return
        body = openai.error_body(error)
        headers = {**openai.error_headers(error, body), **progress.headers()}
        await self._cycle.answer(error.status, headers, body, close=self._state.requests.closing)
