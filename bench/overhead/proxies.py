"""Minimal gateways in Python: each reads the model's name and passes the request on.

They run in a virtual environment of their own, with aiohttp (peers.py; `uvicorn proxies:fastapi_httpx`). They
differ by framework and HTTP client only. ENGINE is the engine's URL.
"""

from __future__ import annotations

import json
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

ENGINE = os.environ["ENGINE"]
MODELS = {"ocr-model": f"{ENGINE}/v1/chat/completions"}
PATH = "/v1/chat/completions"
_JSON = {"content-type": "application/json"}
_NOT_FOUND = b'{"error": {"message": "no such model"}}'


@asynccontextmanager
async def _httpx(app: FastAPI) -> AsyncIterator[None]:
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=1024)
    async with httpx.AsyncClient(limits=limits, timeout=300) as app.state.client:
        yield


@asynccontextmanager
async def _aiohttp(app: FastAPI) -> AsyncIterator[None]:
    app.state.client = session = _session()
    async with session:
        yield


def _session() -> Any:
    import aiohttp

    connector = aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=300))


fastapi_httpx = FastAPI(lifespan=_httpx)
fastapi_aiohttp = FastAPI(lifespan=_aiohttp)


@fastapi_httpx.post(PATH)
async def through_httpx(request: Request) -> Response:
    """Pass a request on with httpx."""
    body = await request.body()
    asked = json.loads(body)
    if asked["model"] not in MODELS:
        return Response(_NOT_FOUND, 404, media_type="application/json")
    client = request.app.state.client
    call = client.build_request("POST", MODELS[asked["model"]], content=body, headers=_JSON)
    answer = await client.send(call, stream=True)
    kind = answer.headers["content-type"]
    if not asked.get("stream"):
        return Response(await answer.aread(), answer.status_code, media_type=kind)

    async def pieces() -> AsyncIterator[bytes]:
        async for piece in answer.aiter_raw():
            yield piece
        await answer.aclose()

    return StreamingResponse(pieces(), answer.status_code, media_type=kind)


@fastapi_aiohttp.post(PATH)
async def through_aiohttp(request: Request) -> Response:
    """Pass a request on with aiohttp."""
    body = await request.body()
    asked = json.loads(body)
    if asked["model"] not in MODELS:
        return Response(_NOT_FOUND, 404, media_type="application/json")
    answer = await request.app.state.client.post(MODELS[asked["model"]], data=body, headers=_JSON)
    kind = answer.headers["content-type"]
    if not asked.get("stream"):
        return Response(await answer.read(), answer.status, media_type=kind)

    async def pieces() -> AsyncIterator[bytes]:
        async for piece in answer.content.iter_any():
            yield piece

    return StreamingResponse(pieces(), answer.status, media_type=kind)


class _Asgi:
    """Plain ASGI and aiohttp; of the body only the model's name is parsed."""

    def __init__(self) -> None:
        import msgspec

        asked = msgspec.defstruct("Asked", [("model", str)])
        self._read: Callable[[bytes], Any] = msgspec.json.Decoder(asked).decode
        self._client: Any = None

    async def __call__(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[dict[str, Any]]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        if scope["type"] == "lifespan":
            await receive()
            self._client = _session()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self._client.close()
            await send({"type": "lifespan.shutdown.complete"})
            return
        parts, more = [], True
        while more:
            message = await receive()
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        body = b"".join(parts)
        url = MODELS.get(self._read(body).model)
        if url is None:
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": _NOT_FOUND})
            return
        async with self._client.post(url, data=body, headers=_JSON) as answer:
            headers = [
                (name.lower(), value)
                for name, value in answer.raw_headers
                if name.lower() in (b"content-type", b"content-length")
            ]
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            async for piece in answer.content.iter_any():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


def __getattr__(name: str) -> _Asgi:
    """Return the application that needs msgspec, which is imported only then."""
    if name != "asgi_aiohttp":
        raise AttributeError(name)
    return _Asgi()
