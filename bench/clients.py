"""Clients in a closed loop: each sends its next request when the last one has ended."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PATH = "/v1/chat/completions"
PROMPTS = {
    "text": "Text Recognition:",
    "key-value": "Output the value of total",
    "table": "Table Recognition:",
}
MAX_TOKENS = 128
POLL_S = 0.1
_TAIL_BYTES = 4096


def http_client() -> httpx.AsyncClient:
    """Return a client that has as many connections as it is asked for and never gives up by itself."""
    return httpx.AsyncClient(limits=httpx.Limits(), timeout=None, trust_env=False)


def blank() -> bytes:
    """Return a small white page as PNG."""
    page = io.BytesIO()
    Image.new("L", (200, 100), 255).save(page, "PNG")
    return page.getvalue()


def request_body(prompt: str, picture: bytes, *, stream: bool) -> bytes:
    """Return a chat request for a document."""
    url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": prompt}]
    messages = [{"role": "user", "content": content}]
    return json.dumps({"messages": messages, "stream": stream, "max_tokens": MAX_TOKENS}).encode()


@dataclass
class Tally:
    """How requests ended.

    Attributes:
        answered: whole answers, and streams that ended with [DONE].
        failed: failures before the first byte of an answer, by status and code.
        error_events: streams that broke off with an error event.
        cut: answers that broke off without one.
        abandoned: requests that their clients broke off.
        failed_stopping: as `failed`, once the gateway had answered that it stops.
        seconds: how long each that was answered took.
    """

    answered: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    error_events: int = 0
    cut: int = 0
    abandoned: int = 0
    failed_stopping: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)


class Clients:
    """Clients in a closed loop; an asynchronous context manager that runs them."""

    def __init__(
        self,
        urls: Sequence[str],
        count: int,
        *,
        abandon: float = 0.0,
        streams: float = 0.5,
        keys: Sequence[str] = (),
        picture: Callable[[int], bytes] = lambda _: blank(),
    ) -> None:
        """Prepare clients.

        Args:
            urls: the gateways, to which they go in turn.
            count: how many there are.
            abandon: share of requests that are broken off after a random time.
            streams: share of clients that stream.
            keys: API keys, which they take in turn.
            picture: the document of a client by its number, as PNG.
        """
        self._urls = urls
        self._count = count
        self._abandon = abandon
        self._streams = streams
        self._keys = keys
        self._picture = picture
        self._rng = random.Random(0)
        self._ending = self._stopping = False
        self.tally = Tally()

    async def __aenter__(self) -> Clients:
        self._http = http_client()
        self._tasks = [asyncio.create_task(self._client(number)) for number in range(self._count)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ending = True
        await asyncio.gather(*self._tasks)
        await self._http.aclose()

    def end(self) -> None:
        """Let every client end with the request it has."""
        self._ending = True

    async def wait_answered(self, more: int) -> None:
        """Wait until so many more requests have been answered."""
        wanted = self.tally.answered + more
        while self.tally.answered < wanted:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)

    def new_tally(self) -> Tally:
        """Count from zero; return the new count."""
        self.tally = Tally()
        return self.tally

    async def _client(self, number: int) -> None:
        stream = number < self._count * self._streams
        prompt = list(PROMPTS.values())[number % len(PROMPTS)]
        body = request_body(prompt, self._picture(number), stream=stream)
        headers = {"content-type": "application/json"}
        if self._keys:
            headers["authorization"] = f"Bearer {self._keys[number % len(self._keys)]}"
        url = self._urls[number % len(self._urls)] + PATH
        while not self._ending:
            limit = self._rng.uniform(0, 2) if self._rng.random() < self._abandon else None
            try:
                async with asyncio.timeout(limit):
                    answered = await self._request(url, body, headers, stream=stream)
            except TimeoutError:
                self.tally.abandoned += 1
                continue
            if not answered:
                await asyncio.sleep(POLL_S)

    async def _request(self, url: str, body: bytes, headers: Mapping[str, str], *, stream: bool) -> bool:
        """Make a request and count how it ended; return whether it was answered."""
        began = time.monotonic()
        tail, status = b"", 0
        failures = self.tally.failed_stopping if self._stopping else self.tally.failed
        try:
            async with self._http.stream("POST", url, content=body, headers=headers) as reply:
                status = reply.status_code
                async for data in reply.aiter_raw():
                    tail = (tail + data)[-_TAIL_BYTES:]
        except httpx.TransportError:
            if status != 200:
                failures["no connection, or cut"] += 1
            elif stream:
                self.tally.cut += 1
            return False
        if status != 200:
            code = json.loads(tail)["error"]["code"]
            if code == "shutting_down" and "retry-after" in reply.headers:
                self._stopping, failures = True, self.tally.failed_stopping
            failures[f"{status} {code}"] += 1
            return False
        if stream and not tail.rstrip().endswith(b"data: [DONE]"):
            last = tail.rstrip().rpartition(b"data: ")[2]
            if b'"error"' in last:
                self.tally.error_events += 1
            else:
                self.tally.cut += 1
            return False
        self.tally.answered += 1
        self.tally.seconds.append(time.monotonic() - began)
        return True
