"""Documents as clients send them, engines that read them, and what clients get."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml
from PIL import Image

from tests import pdf
from tests.support import FakeEngine, _Sender, completion, data_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx


OCR = "/v1/ocr"
PAGES = pdf.document([f"page {number}" for number in range(5)], broken={2})
TWO = pdf.document(["one", "two"])
SCHEMA = {"type": "json_schema", "json_schema": {"name": "bill", "schema": {"type": "object"}}}


def asked(data: bytes = TWO, **members: Any) -> dict[str, Any]:
    url = data_url(data, "application/pdf")
    return {"model": "glm-ocr", "document": {"type": "document_url", "document_url": url}, **members}


def settings_of(**sections: Any) -> str:
    documents = {"dpi": 36, **sections.pop("documents", {})}
    return yaml.safe_dump({"documents": documents, **sections})


async def told(
    http: httpx.AsyncClient, body: dict[str, Any], status: int = 200, **headers: str
) -> dict[str, Any]:
    reply = await http.post(
        OCR, json=body, headers={name.replace("_", "-"): v for name, v in headers.items()}
    )
    assert reply.status_code == status, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


async def refused(http: httpx.AsyncClient, body: dict[str, Any], status: int = 400) -> dict[str, Any]:
    error: dict[str, Any] = (await told(http, body, status))["error"]
    return error


@dataclass
class Reader:
    """An engine's behaviour: reads each page by its image's number among those that came, in any order."""

    texts: list[str] = field(default_factory=list)
    most: int = 0
    now: int = 0
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, engine: FakeEngine, request: dict[str, Any], send: _Sender) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await self.go_on.wait()
        self.now -= 1
        await send.json(completion(self.texts.pop(0) if self.texts else "hello world"))


def images_of(engine: FakeEngine) -> list[Image.Image]:
    """The images that an engine got."""
    urls = [
        part["image_url"]["url"]
        for request in engine.requests
        for part in request["messages"][0]["content"]
        if part["type"] == "image_url"
    ]
    return [Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) for url in urls]


def prompts_of(engine: FakeEngine) -> list[str]:
    return [request["messages"][0]["content"][-1]["text"] for request in engine.requests]


def nothing_left(gateway: Any) -> bool:
    state = gateway.state
    held = state.memory.total or state.requests.open
    return not held and not any(route.in_flight for route in state.snapshot().routes.values())


@dataclass
class Event:
    name: str
    data: dict[str, Any]


async def events(http: httpx.AsyncClient, body: dict[str, Any]) -> AsyncIterator[Event]:
    async with http.stream("POST", OCR, json={**body, "stream": True}) as reply:
        assert reply.status_code == 200, await reply.aread()
        assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
        name = ""
        async for line in reply.aiter_lines():
            kind, _, rest = line.partition(": ")
            if kind == "event":
                name = rest
            elif kind == "data":
                yield Event(name, json.loads(rest))
            elif kind == "":
                yield Event(line.strip(": "), {})
