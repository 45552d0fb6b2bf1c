"""What all requests pass: headers that every answer has, and the way to an endpoint."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from gateway.state.store import State

_SANE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}")


class CommonHeaders:
    """Middleware: every answer carries x-request-id, the client's own if it is a sane one; HEAD is as GET.

    While the gateway stops, answers close their connections, so that clients come back elsewhere.
    """

    def __init__(self, app: ASGIApp, state: State) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = given.decode("latin-1")
        if not _SANE_ID.fullmatch(request_id):
            request_id = os.urandom(16).hex()
        scope.setdefault("state", {})["request_id"] = request_id
        if scope["method"] == "HEAD":  # the server, which keeps the scope as it was, leaves the body away
            scope = {**scope, "method": "GET"}

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [item for item in message.get("headers", ()) if item[0] != b"x-request-id"]
                message["headers"] = [*headers, (b"x-request-id", request_id.encode())]
                if self._state.requests.closing:
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        await self._app(scope, receive, send_with_id)


class EndpointRouter:
    """The way to an endpoint: those that engines answer go past FastAPI's layers, all others through them."""

    def __init__(self, api: ASGIApp, inference: Mapping[str, ASGIApp]) -> None:
        """Route to the POST endpoints of `inference`, by path, and to `api`."""
        self._api = api
        self._inference = inference

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        endpoint = self._inference.get(scope.get("path", "")) if scope.get("method") == "POST" else None
        await (endpoint or self._api)(scope, receive, send)
