"""The endpoints that the gateway answers itself, over FastAPI; errors become OpenAI error bodies."""

from __future__ import annotations

import importlib.resources
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import yaml
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import Route

import gateway
from gateway.api import pages
from gateway.api.auth import unknown_endpoint
from gateway.api.status import report
from gateway.errors import GatewayError, InternalError, UnknownModel
from gateway.request.receive import alias_of
from gateway.wire import openai

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from fastapi.telemetry import TelemetryConfig
    from starlette.types import ASGIApp

    from gateway.state.fleet import Fleet
    from gateway.state.store import State
    from gateway.telemetry.metrics import Metrics

# FastAPI's own would trace each request again, and quote the errors of some.
_NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}


def create_api(
    state: State,
    metrics: Metrics,
    inference: Mapping[str, ASGIApp],
    running: Callable[[], AbstractAsyncContextManager[None]],
    created: int,
) -> FastAPI:
    """Build the pages, and the whole application's start and stop.

    Args:
        state: the engines, and the configuration served.
        metrics: what /metrics shows.
        inference: the endpoints that engines answer, by path; see gateway.api.application.Application.
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
    for path, endpoint in inference.items():  # for the refusal of other methods
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
        routes = {route: state.is_up(route) for route in state.fleet.routes}
        status = (
            "stopping" if state.requests.closing else "ready" if any(routes.values()) else "no engine is up"
        )
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

    def model_object(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": created, "owned_by": "ocr-gateway"}

    @api.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The one configured model."""
        return {"object": "list", "data": [model_object(state.fleet.config.model)]}

    @api.get("/v1/models/{name:path}")
    async def model(request: Request, name: str) -> Any:
        """The configured model, by its name or with a route behind it."""
        asked = unquote(name)
        try:
            _check_model(asked, state.fleet)
        except UnknownModel as error:
            return _respond(unknown_endpoint(request.scope) if "/" in name else error)
        return model_object(asked)

    def openapi() -> dict[str, Any]:
        if api.openapi_schema is None:
            api.openapi_schema = _document()
        return api.openapi_schema

    api.openapi = openapi  # type: ignore[method-assign]
    return api


def _check_model(name: str, fleet: Fleet) -> None:
    """Check that requests may name a model.

    Raises:
        UnknownModel: there is none of that name, or it has no such route.
    """
    route = alias_of(name, fleet.config.model)
    if route is not None and route not in fleet.routes:
        raise UnknownModel(
            f"the model {name[:64]!r} does not exist here; the routes are {', '.join(fleet.routes)}",
            param="model",
            code="model_not_found",
        )


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
