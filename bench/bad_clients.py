"""Clients that send what must be refused, leave, are slow or never read; with secrets that must not show."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
from PIL import Image, PngImagePlugin

from bench.clients import PATH, PROMPTS, http_client, request_body

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_ERROR_MEMBERS = {"message", "type", "param", "code"}

# What must be in no log and on no page: API keys, the engines' key, and words of documents and prompts.
SECRETS = {
    "key": "sk-planted-0123456789abcdef",
    "metered key": "sk-planted-fedcba9876543210",
    "wrong key": "sk-planted-wrong-000000000",
    "engine key": "planted-engine-key-4711",
    "document": "PlantedInTheDocument",
    "prompt": "PlantedInThePrompt",
    "query": "PlantedInTheQuery",
}


@dataclass
class BadTally:
    """Bad clients' requests by kind, and those of them that ended otherwise than they must."""

    sent: Counter[str] = field(default_factory=Counter)
    unexpected: Counter[str] = field(default_factory=Counter)

    def count(self, kind: str, outcome: str, *, expected: bool) -> None:
        """Count one."""
        self.sent[kind] += 1
        if not expected:
            self.unexpected[f"{kind}: {outcome}"] += 1


def picture(number: int) -> bytes:
    """Return a client's document: noise, so that its size is its number's, and a secret in its metadata."""
    side = 64 + 48 * (number % 12)
    pixels = np.random.default_rng(number).integers(0, 256, (side, side), np.uint8)
    notes = PngImagePlugin.PngInfo()
    notes.add_text("Comment", SECRETS["document"])
    page = io.BytesIO()
    Image.fromarray(pixels).save(page, "PNG", pnginfo=notes)
    return page.getvalue()


def _chat(url: str, **members: Any) -> bytes:
    content = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": f"Text Recognition: {SECRETS['prompt']}"},
    ]
    return json.dumps({"messages": [{"role": "user", "content": content}], **members}).encode()


def bad_requests() -> dict[str, tuple[bytes, dict[str, str], frozenset[int]]]:
    """Return requests that must be refused: body, headers that differ, and the statuses that are right."""
    good = f"data:image/png;base64,{base64.b64encode(picture(1)).decode()}"
    secret = base64.b64encode(SECRETS["document"].encode() * 3).decode()
    wrong_key, metered = (
        {"authorization": f"Bearer {SECRETS[name]}"} for name in ("wrong key", "metered key")
    )
    return {
        "broken JSON": (_chat(good)[:-9], {}, frozenset({400})),
        "no JSON": (SECRETS["document"].encode(), {}, frozenset({400})),
        "content type": (_chat(good), {"content-type": "text/plain"}, frozenset({400})),
        "no image": (_chat(f"data:image/png;base64,{secret}"), {}, frozenset({400})),
        "cut base64": (_chat(good[:-3]), {}, frozenset({400})),
        "remote image": (_chat(f"http://127.0.0.1/x?{SECRETS['query']}"), {}, frozenset({400})),
        "file URL": (_chat(f"file:///etc/{SECRETS['query']}"), {}, frozenset({400})),
        "unknown model": (_chat(good, model=f"other-{SECRETS['prompt']}"), {}, frozenset({404})),
        "unknown route": (_chat(good, model=f"glm-ocr:{SECRETS['prompt']}"), {}, frozenset({400})),
        "too large": (b"[" + b" " * (33 << 20) + b"]", {}, frozenset({413})),
        "wrong key": (_chat(good), wrong_key, frozenset({401})),
        "metered key": (_chat(good, max_tokens=2), metered, frozenset({200, 429})),
    }


class BadClients:
    """Clients that send nonsense or behave badly; an asynchronous context manager that runs them."""

    def __init__(self, url: str, count: int) -> None:
        self._url = url
        self._host, _, port = url.removeprefix("http://").partition(":")
        self._port = int(port)
        self._count = count
        self._rng = random.Random(1)
        self._bad = bad_requests()
        self._body = request_body(PROMPTS["text"], picture(5), stream=True)
        self._behaviours = (
            self._leave,
            self._send_half_a_body,
            self._send_slowly,
            self._never_read,
            self._send_garbage,
        )
        self.tally = BadTally()

    async def __aenter__(self) -> BadClients:
        self._http = http_client()
        self._tasks = [asyncio.create_task(self._client(number)) for number in range(self._count)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.aclose()

    async def _client(self, number: int) -> None:
        while True:
            if number % 2:
                await self._send_bad(self._rng.choice(list(self._bad)))
            else:
                with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                    await self._rng.choice(self._behaviours)()
            await asyncio.sleep(self._rng.uniform(0, 0.5))

    async def _send_bad(self, kind: str) -> None:
        body, different, right = self._bad[kind]
        headers = {**self._headers(), **different}
        try:
            reply = await self._http.post(self._url + PATH, content=body, headers=headers)
            answer = reply.json()
            well_formed = reply.status_code == 200 or set(answer["error"]) == _ERROR_MEMBERS
            expected = reply.status_code in right and well_formed
            self.tally.count(kind, f"HTTP {reply.status_code}", expected=expected)
        except httpx.TransportError as error:
            self.tally.count(kind, type(error).__name__, expected=False)

    def _headers(self) -> dict[str, str]:
        return {"content-type": "application/json", "authorization": f"Bearer {SECRETS['key']}"}

    @contextlib.asynccontextmanager
    async def _connected(self, kind: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        self.tally.count(kind, "", expected=True)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    def _head(self, length: int) -> bytes:
        lines = [f"POST {PATH} HTTP/1.1", "host: soak", f"content-length: {length}"]
        lines += [f"{name}: {value}" for name, value in self._headers().items()]
        return "\r\n".join([*lines, "", ""]).encode()

    async def _leave(self) -> None:
        async with self._connected("leaves") as (_, writer):
            writer.write(self._head(len(self._body)) + self._body)
            await asyncio.sleep(self._rng.uniform(0, 1))

    async def _send_half_a_body(self) -> None:
        async with self._connected("half a body") as (_, writer):
            writer.write(self._head(len(self._body)) + self._body[: self._rng.randrange(len(self._body))])
            await asyncio.sleep(self._rng.uniform(0, 1))

    async def _send_slowly(self) -> None:
        async with self._connected("a byte at a time") as (_, writer):
            for byte in self._head(5)[: self._rng.randrange(60)]:
                writer.write(bytes([byte]))
                await asyncio.sleep(0.2)

    async def _never_read(self) -> None:
        async with self._connected("never reads") as (_, writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(self._head(len(self._body)) + self._body)
            await asyncio.sleep(self._rng.uniform(0, 10))

    async def _send_garbage(self) -> None:
        async with self._connected("garbage") as (reader, writer):
            writer.write(self._rng.randbytes(200) + b"\r\n\r\n")
            async with asyncio.timeout(30):
                await reader.read()
