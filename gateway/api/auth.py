"""Who may ask what: API keys on the public port, and which pages are for operators."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from gateway.errors import Forbidden, GatewayError, Unauthorized, UnknownEndpoint
from gateway.model import RequestRecord
from gateway.wire import openai

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.routing import BaseRoute
    from starlette.types import Scope, Send

    from gateway.state.store import State
    from gateway.telemetry.metrics import Metrics

log = logging.getLogger("gateway.access")

# For the probes of balancers and Kubernetes, which have no key; and the page that asks for one.
OPEN = frozenset({"/", "/health", "/ready"})
CLIENTS = "/v1/"


class ApiKeyCheck:
    """Refuses who has no key before anything of the body is read, and names who has one.

    What is not known to be for all needs a key, and what is not known to be for clients is for operators:
    only the admin port has it, where there is one, and without a key; else it needs a key of `auth.admins`.
    """

    def __init__(self, state: State, metrics: Metrics, routes: Sequence[BaseRoute]) -> None:
        self._routes = routes
        self._state = state
        self._metrics = metrics
        # The port is opened at the start only; a reload must not move its pages to where anybody finds them.
        self._admin_port = state.fleet.config.server.admin_port is not None

    def check(self, scope: Scope) -> None:
        """Note as `key` of the scope's state the name of who asks, where there are keys.

        Raises:
            GatewayError: they may not, which has been counted and logged.
            UnknownEndpoint: there is no such path for them.
        """
        started = time.perf_counter()
        try:
            self._check(scope, scope["state"])
        except UnknownEndpoint:
            raise
        except GatewayError as error:
            self._account(scope, error.status, time.perf_counter() - started)
            raise

    def _check(self, scope: Scope, known: dict[str, Any]) -> None:
        path: str = scope["path"]
        if path in OPEN:
            return
        for_clients = path.startswith(CLIENTS)
        if known.get("admin"):
            if for_clients:
                raise unknown_endpoint(scope)
            return
        auth = self._state.fleet.config.auth
        if auth.keys_file:
            known["key"] = self._name(scope)
        if for_clients:
            return
        if self._admin_port:
            raise unknown_endpoint(scope)
        if auth.admins and known.get("key") not in auth.admins:
            raise Forbidden("the key is not for this page (auth.admins)", code="not_an_admin")

    def _name(self, scope: Scope) -> str:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, key = given[0].partition(b" ") if given else (b"", b"", b"")
        name = None
        # Of two, a proxy in front may have read the other one.
        if len(given) == 1 and scheme.lower() == b"bearer":
            name = self._state.quotas.keys.owner(key.strip())
        if name is None:
            wrong = "the API key is not one of this gateway's" if given else "there is no API key"
            raise Unauthorized(
                f"{wrong}; send `Authorization: Bearer KEY`, with a key that its operator gave you",
                code="invalid_api_key",
            )
        return name

    def _account(self, scope: Scope, code: int, seconds: float) -> None:
        known, path = scope["state"], scope["path"]
        record = RequestRecord(
            at=time.time(),
            request_id=known["request_id"],
            # Others are a stranger's words.
            path=path if any(getattr(route, "path", "") == path for route in self._routes) else "",
            code=code,
            seconds=seconds,
            key=known.get("key", ""),
        )
        self._metrics.finished(record)
        self._state.quotas.count_request(record.key, code)
        fields = {"request_id": record.request_id, "path": record.path, "code": code, "key": record.key}
        log.info("request", extra={"fields": fields})


def unknown_endpoint(scope: Scope, status: int = 404) -> UnknownEndpoint:
    """Return the refusal of a path, or of its method, that does not exist."""
    words = f"{scope['method']} {scope['path']}: no such endpoint or method"
    return UnknownEndpoint(words, status=status)


async def refuse(error: GatewayError, send: Send) -> None:
    """Send a refusal as the whole answer."""
    body = openai.error_body(error)
    headers = openai.error_headers(error, body)
    if isinstance(error, Unauthorized):
        headers["www-authenticate"] = "Bearer"
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
