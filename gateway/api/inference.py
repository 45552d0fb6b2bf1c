"""The endpoints that engines answer: a request's body is received, and what becomes of it is sent."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING

from gateway.api.request_cycle import CYCLE, too_large
from gateway.errors import ClientLeft, GatewayError, InternalError, UnsupportedMediaType
from gateway.request.progress import IncomingRequest, RequestProgress
from gateway.wire import openai
from gateway.wire.http import trace_context

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import Receive, Scope, Send

    from gateway.api.request_cycle import RequestCycle
    from gateway.documents.endpoint import DocumentEndpoint
    from gateway.request.attempt import GatewayResponse
    from gateway.request.dispatch import Dispatcher
    from gateway.state.requests import MemoryClaim
    from gateway.state.store import State

log = logging.getLogger(__name__)

COMPLETIONS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")

_LENGTH = re.compile(rb"[0-9]{1,18}")
# What a connection takes without waiting for its client to read.
_BUFFERED_BYTES = 64 * 1024
_STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class InferenceEndpoint:
    """An endpoint as plain ASGI, but for the body and the client's leaving: see RequestCycle."""

    def __init__(
        self, path: str, state: State, dispatcher: Callable[[], Dispatcher | DocumentEndpoint]
    ) -> None:
        self._path = path
        self._state = state
        self._dispatcher = dispatcher

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
            await self._dispatcher().dispatch(
                progress, lambda response: exchange.answer(response, progress.headers())
            )
        except GatewayError as error:
            await exchange.refuse(error, progress.headers())
        except ClientLeft:
            pass
        except Exception:
            log.exception("a request failed unexpectedly")
            await exchange.refuse(InternalError(), progress.headers())
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
            raise too_large(limit)
        held.check_room(self._announced)
        body = await self._cycle.whole(limit, held.add)
        task = asyncio.current_task()

        def leave() -> None:
            if task:
                self.client_left = True
                task.cancel()

        self._cycle.on_left = leave
        return body

    async def answer(self, response: GatewayResponse, headers: Mapping[str, str]) -> None:
        """Send a response as it comes.

        Raises:
            ClientLeft: the client stopped reading; it must not hold an engine's place for ever.
        """
        headers = {"content-type": response.content_type, **headers}
        if response.retry_after:
            headers["retry-after"] = response.retry_after
        body = response.body
        whole = body if isinstance(body, bytes) else None
        headers |= _STREAM_HEADERS if whole is None else {"content-length": str(len(whole))}
        self._start(response.status, headers)
        if whole is not None and len(whole) <= _BUFFERED_BYTES:
            await self._end(whole)
            return
        try:
            async with asyncio.timeout_at(response.deadline + 1):
                if isinstance(body, bytes):
                    await self._cycle.write(body)
                else:
                    async for chunk in body:
                        await self._cycle.write(chunk)
                await self._end(b"")
        except TimeoutError as error:
            raise ClientLeft from error

    async def refuse(self, error: GatewayError, headers: Mapping[str, str]) -> None:
        """Send an error as the whole answer; nothing where an answer was begun, so that it breaks off."""
        if self._cycle.answering:
            return
        body = openai.error_body(error)
        self._start(error.status, {**openai.error_headers(error, body), **headers})
        await self._end(body)

    def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self._cycle.start(status, headers, close=self._state.requests.closing)

    async def _end(self, body: bytes) -> None:
        self._cycle.on_left = None
        await self._cycle.write(body, last=True)
