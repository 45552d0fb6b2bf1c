"""A gateway whose POST /v1/ocr does as told, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.datastructures import UploadFile
from starlette.requests import Request

from tests.support import served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    Behaviour = Callable[["Stub", "Reply", bytes], Awaitable[None]]


class Reply:
    """An answer that is sent piece by piece."""

    def __init__(self, send: Any) -> None:
        self._send = send

    async def start(self, kind: str, status: int = 200, **headers: str) -> None:
        told = {"content-type": kind, **headers}
        pairs = [(name.encode(), value.encode()) for name, value in told.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def event(self, name: str, value: object) -> None:
        await self.write(f"event: {name}\ndata: {json.dumps(value)}\n\n".encode())

    async def json(self, value: object, status: int = 200, **headers: str) -> None:
        await self.start("application/json", status, **headers)
        await self.write(json.dumps(value).encode())

    async def refuse(self, status: int, message: str, code: str, **headers: str) -> None:
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
        await self.json({"error": error}, status, **headers)

    async def begin(self, pages: list[int]) -> None:
        await self.start("text/event-stream; charset=utf-8")
        await self.event("ocr.document", {"model": "glm-ocr", "pages": pages})
        await self.write(b": wait\n\n")


@dataclass
class Stub:
    """One; each request takes the next behaviour, and `answer` once there is none left."""

    key: str = ""
    url: str = ""
    script: list[Behaviour] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    open: int = 0
    most: int = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        request, reply = Request(scope, receive), Reply(send)
        match request.method, request.url.path:
            case "GET", "/v1/models":
                await self._models(request, reply)
            case "POST", "/v1/ocr":
                await self._ocr(request, reply, receive)
            case _:
                await reply.json({"detail": "Not Found"}, 404)
        await send({"type": "http.response.body"})

    async def _models(self, request: Request, reply: Reply) -> None:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            await reply.refuse(401, "there is no API key", "invalid_api_key")
        else:
            await reply.json({"object": "list", "data": [{"id": "glm-ocr", "object": "model"}]})

    async def _ocr(self, request: Request, reply: Reply, receive: Any) -> None:
        async with request.form() as form:
            file = form["file"]
            assert isinstance(file, UploadFile)
            data = await file.read()
            fields = {name: value for name, value in form.items() if name != "file"}
        told = {**fields, "file": data, "name": file.filename, "headers": dict(request.headers)}
        self.asked.append(told)
        self.open += 1
        self.most = max(self.most, self.open)
        work = asyncio.ensure_future((self.script.pop(0) if self.script else answer)(self, reply, data))
        gone = asyncio.ensure_future(receive())
        try:
            await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            self.open -= 1
            work.cancel()
            gone.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)


def refuse(status: int, message: str = "refused", code: str = "", **headers: str) -> Behaviour:
    async def behave(stub: Stub, reply: Reply, data: bytes) -> None:
        await reply.refuse(status, message, code, **headers)

    return behave


async def answer(stub: Stub, reply: Reply, data: bytes) -> None:
    """Answer a document that says `pages=N`, and by `broken=I` which of them cannot be read."""
    numbers = dict(re.findall(rb"(pages|broken)=(\d+)", data))
    count = int(numbers.get(b"pages", b"1"))
    wanted = json.loads(stub.asked[-1].get("pages", "null")) or list(range(count))
    broken = int(numbers.get(b"broken", b"-1"))
    asked = stub.asked[-1]
    await reply.begin(wanted)
    for index in reversed(wanted):  # in the order in which they are done
        await reply.event("ocr.page", page(index, broken=index == broken))
    usage = {"pages_processed": len(wanted) - (broken in wanted), "doc_size_bytes": len(data)}
    annotation = '{"total": 3}' if "document_annotation_format" in asked else None
    done = {"model": "glm-ocr", "document_annotation": annotation, "usage_info": usage}
    await reply.event("ocr.done", done)


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


async def break_off(stub: Stub, reply: Reply, data: bytes) -> None:
    """Send a page, then close the connection."""
    await reply.begin([0, 1])
    await reply.event("ocr.page", page(0))
    raise ConnectionError


def fail(kind: str, message: str = "no engine is up") -> Behaviour:
    """End the stream with an error event."""

    async def behave(stub: Stub, reply: Reply, data: bytes) -> None:
        await reply.begin([0])
        error = {"message": message, "type": kind, "param": None, "code": "no_engine"}
        await reply.event("error", {"error": error})

    return behave


async def hang(stub: Stub, reply: Reply, data: bytes) -> None:
    await reply.begin([0, 1])
    await reply.event("ocr.page", page(0))
    await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def serving(key: str = "") -> AsyncIterator[Stub]:
    stub = Stub(key)
    async with served(stub) as stub.url:
        yield stub


def document(folder: Path, name: str, says: str = "pages=1") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(f"%PDF-1.7 {says}".encode())
    return path
