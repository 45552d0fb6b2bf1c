"""A gateway whose POST /v1/ocr does as told, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    Behaviour = Callable[["Stub", web.Request, bytes], Awaitable[web.StreamResponse]]


@dataclass
class Stub:
    """One; each request takes the next behaviour, and `answer` once there is none left."""

    key: str = ""
    url: str = ""
    script: list[Behaviour] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    open: int = 0
    most: int = 0

    async def models(self, request: web.Request) -> web.StreamResponse:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return refusal(401, "there is no API key", "invalid_api_key")
        return web.json_response({"object": "list", "data": [{"id": "glm-ocr", "object": "model"}]})

    async def ocr(self, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        file = form["file"]
        assert isinstance(file, web.FileField)
        with file.file:
            data = file.file.read()
        fields = {name: value for name, value in form.items() if name != "file"}
        self.asked.append({**fields, "file": data, "name": file.filename, "headers": dict(request.headers)})
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            return await (self.script.pop(0) if self.script else answer)(self, request, data)
        finally:
            self.open -= 1


def refusal(status: int, message: str, code: str, **headers: str) -> web.Response:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return web.json_response({"error": error}, status=status, headers=headers)


def refuse(status: int, message: str = "refused", code: str = "", **headers: str) -> Behaviour:
    async def behave(stub: Stub, request: web.Request, data: bytes) -> web.StreamResponse:
        return refusal(status, message, code, **headers)

    return behave


async def answer(stub: Stub, request: web.Request, data: bytes) -> web.StreamResponse:
    """Answer a document that says `pages=N`, and by `broken=I` which of them cannot be read."""
    numbers = dict(re.findall(rb"(pages|broken)=(\d+)", data))
    count = int(numbers.get(b"pages", b"1"))
    wanted = json.loads(stub.asked[-1].get("pages", "null")) or list(range(count))
    broken = int(numbers.get(b"broken", b"-1"))
    reply = await begun(request, wanted)
    for index in reversed(wanted):  # in the order in which they are done
        await send(reply, "ocr.page", page(index, broken=index == broken))
    usage = {"pages_processed": len(wanted) - (broken in wanted), "doc_size_bytes": len(data)}
    annotation = '{"total": 3}' if "document_annotation_format" in stub.asked[-1] else None
    done = {"model": "glm-ocr", "document_annotation": annotation, "usage_info": usage}
    await send(reply, "ocr.done", done)
    await reply.write_eof()
    return reply


async def begun(request: web.Request, pages: list[int]) -> web.StreamResponse:
    reply = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
    await reply.prepare(request)
    await send(reply, "ocr.document", {"model": "glm-ocr", "pages": pages})
    await reply.write(b": wait\n\n")
    return reply


async def send(reply: web.StreamResponse, name: str, value: object) -> None:
    await reply.write(f"event: {name}\ndata: {json.dumps(value)}\n\n".encode())


def page(index: int, *, broken: bool = False) -> dict[str, Any]:
    error = {"message": "the page cannot be rendered", "type": "x", "param": None, "code": "bad_page"}
    return {
        "index": index,
        "markdown": "" if broken else f"# Page {index}\n\n**bold** text",
        "images": [],
        "dimensions": {"dpi": 200, "height": 2200, "width": 1700},
        "ocr": {"route": "text", "reason": "image", "pool": "plain", "depth": 0, "seconds": 0.1},
        **({"error": error} if broken else {}),
    }


async def break_off(stub: Stub, request: web.Request, data: bytes) -> web.StreamResponse:
    """Send a page, then close the connection."""
    reply = await begun(request, [0, 1])
    await send(reply, "ocr.page", page(0))
    assert request.transport
    request.transport.close()
    return reply


def fail(kind: str, message: str = "no engine is up") -> Behaviour:
    """End the stream with an error event."""

    async def behave(stub: Stub, request: web.Request, data: bytes) -> web.StreamResponse:
        reply = await begun(request, [0])
        error = {"message": message, "type": kind, "param": None, "code": "no_engine"}
        await send(reply, "error", {"error": error})
        return reply

    return behave


async def hang(stub: Stub, request: web.Request, data: bytes) -> web.StreamResponse:
    reply = await begun(request, [0, 1])
    await send(reply, "ocr.page", page(0))
    await asyncio.Event().wait()
    return reply


@contextlib.asynccontextmanager
async def serving(key: str = "") -> AsyncIterator[Stub]:
    stub = Stub(key)
    app = web.Application(client_max_size=1 << 26)
    app.router.add_get("/v1/models", stub.models)
    app.router.add_post("/v1/ocr", stub.ocr)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await web.SockSite(runner, listener).start()
        stub.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            yield stub
        finally:
            await runner.cleanup()


def document(folder: Path, name: str, says: str = "pages=1") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(f"%PDF-1.7 {says}".encode())
    return path
