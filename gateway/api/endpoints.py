"""HTTP endpoints; errors become OpenAI error bodies."""

from __future__ import annotations

import asyncio
import importlib.resources
import logging
import os
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import yaml
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import Route

import gateway
from gateway.api import pages
from gateway.api.auth import unknown_endpoint
from gateway.api.connection import CYCLE, too_large
from gateway.api.status import report
from gateway.errors import ClientLeft, GatewayError, InternalError
from gateway.request.progress import IncomingRequest, RequestProgress
from gateway.wire import openai
from gateway.wire.http import trace_context

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from fastapi.telemetry import TelemetryConfig
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from gateway.api.connection import Cycle
    from gateway.documents.endpoint import DocumentEndpoint
    from gateway.request.attempt import GatewayResponse
    from gateway.request.dispatch import Dispatcher
    from gateway.state.body_memory import Held
    from gateway.state.store import State
    from gateway.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

COMPLETIONS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")

_SANE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}")
_LENGTH = re.compile(rb"[0-9]{1,18}")
# FastAPI's own would trace each request again, and quote the errors of some.
_NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
# What a connection takes without waiting for its client to read.
_BUFFERED_BYTES = 64 * 1024
_STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def create_api(
    state: State,
    metrics: Metrics,
    completions: Mapping[str, Completions],
    running: Callable[[], AbstractAsyncContextManager[None]],
    created: int,
) -> FastAPI:
    """Build the pages, and the whole application's start and stop.

    Args:
        state: the engines, and the configuration served.
        metrics: what /metrics shows.
        completions: the endpoints of completions by path; see Front.
        running: entered while the application runs.
        created: when the model came up, in seconds since 1970, as /v1/models tells it.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with running():
            yield

    api = FastAPI(
        title="ocr-gateway",
        version=gateway.__version__,
        summary=gateway.__doc__,
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,  # pages that load their scripts from elsewhere
        redoc_url=None,
        telemetry=_NO_TELEMETRY,
        exception_handlers={HTTPException: _http_error, Exception: _unexpected},
    )
    for path, endpoint in completions.items():  # for the refusal of other methods
        api.router.routes.append(Route(path, endpoint, methods=["POST"]))

    page = pages.load()

    @api.get("/")
    async def index(request: Request) -> Response:
        """The status page and playground; what it shows it asks for, with the key of who reads it."""
        if page.headers["etag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=page.headers)
        return Response(page.body, headers=page.headers)

    @api.get("/health")
    async def health() -> dict[str, str]:
        """The process is alive."""
        return {"status": "ok"}

    @api.get("/ready")
    async def ready(response: Response) -> dict[str, Any]:
        """200 while a route has an engine that is up and the gateway is not stopping; tells of each one."""
        routes = {route: state.up(route) for route in state.fleet.routes}
        status = "stopping" if state.closing else "ready" if any(routes.values()) else "no engine is up"
        if status != "ready":
            response.status_code = 503
            response.headers["retry-after"] = "2"
        return {"status": status, "routes": routes}

    @api.get("/status")
    async def status() -> dict[str, Any]:
        """Routes, pools and engines, their load, and how each engine stands to be chosen now."""
        return report(state.snapshot(), state.fleet)

    @api.get("/metrics")
    async def metrics_page(request: Request) -> Response:
        """Prometheus metrics."""
        page, content_type = await metrics.page(request.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type})

    @api.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The one configured model."""
        model = {
            "id": state.fleet.config.model,
            "object": "model",
            "created": created,
            "owned_by": "ocr-gateway",
        }
        return {"object": "list", "data": [model]}

    def openapi() -> dict[str, Any]:
        if api.openapi_schema is None:
            api.openapi_schema = _document()
        return api.openapi_schema

    api.openapi = openapi  # type: ignore[method-assign]
    return api


class Headers:
    """Middleware: every answer carries x-request-id, the client's own if it is a sane one; HEAD is as GET.

    While the gateway stops, answers close their connections, so that clients come back elsewhere.
    """

    def __init__(self, app: ASGIApp, state: State) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = _header(scope, b"x-request-id")
        request_id = given if given and _SANE_ID.fullmatch(given) else os.urandom(16).hex()
        scope.setdefault("state", {})["request_id"] = request_id
        if scope["method"] == "HEAD":  # the server, which keeps the scope as it was, leaves the body away
            scope = {**scope, "method": "GET"}

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [item for item in message.get("headers", ()) if item[0] != b"x-request-id"]
                message["headers"] = [*headers, (b"x-request-id", request_id.encode())]
                if self._state.closing:
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        await self._app(scope, receive, send_with_id)


class Front:
    """The application as the server sees it: completions go past FastAPI's layers, all else through them."""

    def __init__(self, api: FastAPI, completions: Mapping[str, Completions]) -> None:
        self._api = api
        self._completions = completions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        endpoint = self._completions.get(scope.get("path", "")) if scope.get("method") == "POST" else None
        await (endpoint or self._api)(scope, receive, send)


class Completions:
    """A completion endpoint as plain ASGI, but for the body and the client's leaving: see protocol.Cycle."""

    def __init__(
        self, path: str, state: State, dispatcher: Callable[[], Dispatcher | DocumentEndpoint]
    ) -> None:
        self._path = path
        self._state = state
        self._dispatcher = dispatcher

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; the client's leaving cancels it."""
        headers = dict(reversed(scope["headers"]))  # of two, the first
        cycle: Cycle = scope["extensions"][CYCLE]
        exchange = _Exchange(cycle, headers.get(b"content-length", b"0"), self._state)
        key = scope["state"].get("key", "")
        route = headers.get(b"x-ocr-route")
        incoming = IncomingRequest(
            path=self._path,
            request_id=scope["state"]["request_id"],
            read=exchange.read,
            route_header=None if route is None else route.decode("latin-1"),
            content_type=headers.get(b"content-type", b"").decode("latin-1"),
            may_come_late=scope["client"] in self._state.kept,
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

    def __init__(self, cycle: Cycle, announced: bytes, state: State) -> None:
        self._cycle = cycle
        self._announced = int(announced) if _LENGTH.fullmatch(announced) else 0
        self._state = state
        self.client_left = False

    async def read(self, limit: int, held: Held) -> bytes:
        """Return the body, and watch from then on for the client leaving.

        Args:
            limit: the most bytes it may have.
            held: hears of each part that comes; what is only announced takes no memory.

        Raises:
            BodyTooLarge: more than `limit` bytes are announced or come.
            Unavailable: there is no memory for it.
            ClientLeft: the client left before the end.
        """
        if self._announced > limit:
            raise too_large(limit)
        held.expect(self._announced)
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
        if self._cycle.response_started:
            return
        body = openai.error_body(error)
        self._start(error.status, {**openai.error_headers(error, body), **headers})
        await self._end(body)

    def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self._cycle.start(status, headers, close=self._state.closing)

    async def _end(self, body: bytes) -> None:
        self._cycle.on_left = None
        await self._cycle.write(body, last=True)


def _header(scope: Scope, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)


def _respond(error: GatewayError, headers: Mapping[str, str] | None = None) -> Response:
    body = openai.error_body(error)
    return Response(body, error.status, {**openai.error_headers(error, body), **(headers or {})})


async def _http_error(request: Request, error: Exception) -> Response:
    """A path or method that does not exist."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    return _respond(
        unknown_endpoint(request.scope, status), error.headers if isinstance(error, HTTPException) else None
    )


async def _unexpected(request: Request, error: Exception) -> Response:
    """A fault of the gateway's own; the log has its trace, the client does not."""
    return _respond(InternalError())


def _document() -> dict[str, Any]:
    """The OpenAPI document: what the handlers really read is not in their signatures."""
    text = importlib.resources.files(__package__).joinpath("openapi.yaml").read_text("utf-8")
    document: dict[str, Any] = yaml.safe_load(text)
    document["info"]["version"] = gateway.__version__
    return document
