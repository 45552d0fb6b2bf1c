"""Stub engines that answer at once, on the event loop of a benchmark, and what is sent to engines.

Those of `bench.overhead` are programs in C, for gateways that run by themselves.
"""

from __future__ import annotations

import asyncio
import functools
import io
import json
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

from PIL import Image

from gateway.engines.vllm_json import DONE, chunk_choice, event, usage, whole_choice
from gateway.engines.vllm_page import EngineCounts, metrics_page
from gateway.model import Speculation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MODEL = "glm-ocr"
EVENTS, GAP_S = 64, 0.005
# vLLM's page with a speculative config; `gateway.upstream.client` says the same of it.
PAGE_BYTES = 60_000
_HEAD_END = b"\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"


def engine_page() -> bytes:
    """Return a vLLM's /metrics at rest, filled up to the real one's length with series that nobody reads."""
    counts = EngineCounts(speculation=Speculation(0, 0, 0, (0, 0, 0)))
    page = metrics_page(counts, MODEL).rstrip("\n") + "\n"
    line = 'vllm:request_params_max_tokens_bucket{{engine="0",le="{}",model_name="glm-ocr"}} 0.0\n'
    more = (PAGE_BYTES - len(page)) // len(line)
    return (page + "".join(line.format(le) for le in range(more))).encode()


def http(body: bytes, kind: str = "application/json") -> bytes:
    """Return a complete answer."""
    return b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (
        kind.encode(),
        len(body),
        body,
    )


def chunked(data: bytes) -> bytes:
    """Return one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Engines:
    """Stub engines, each on a port of its own; how they answer is set while they run.

    Attributes:
        events: of a stream; 0 answers whole.
        gap_s: seconds between a stream's events.
        hold: keep whole answers back until `release`.
        pages: how many GETs were answered.
    """

    def __init__(self) -> None:
        self.events, self.gap_s, self.hold, self.pages = 0, GAP_S, False, 0
        self.held: list[asyncio.Transport] = []
        self.streams: list[dict[asyncio.Transport, int]] = []
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
        self.opening = (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        ) + chunked(event(head, [chunk_choice({"role": "assistant", "content": ""})]))
        self.piece = chunked(event(head, [chunk_choice({"content": " | 3.50 |"})]))
        closing = event(head, [chunk_choice({"content": "\n"}, "stop")])
        closing += event(head, [], usage=usage(1200, 3 * EVENTS)) + DONE
        self.closing = chunked(closing) + _LAST_CHUNK
        message = {"role": "assistant", "content": " | 3.50 |" * EVENTS}
        choices = [whole_choice(message, "stop")]
        self.whole = http(
            json.dumps(
                {**head, "object": "chat.completion", "choices": choices, "usage": usage(1200, 3 * EVENTS)}
            ).encode()
        )
        self.gets = {
            b"/metrics": http(engine_page(), "text/plain; version=0.0.4; charset=utf-8"),
            b"/version": http(b'{"version":"0.32.0"}'),
            b"/health": http(b""),
        }

    @asynccontextmanager
    async def listening(self, count: int) -> AsyncIterator[list[str]]:
        """Serve so many engines; yield their URLs."""
        loop = asyncio.get_running_loop()
        servers, ticking = [], []
        for _ in range(count):
            streams: dict[asyncio.Transport, int] = {}
            self.streams.append(streams)
            servers.append(
                await loop.create_server(functools.partial(_Connection, self, streams), "127.0.0.1", 0)
            )
            ticking.append(loop.create_task(self._step(streams)))
        try:
            yield [f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers]
        finally:
            for task in ticking:
                task.cancel()
            await asyncio.gather(*ticking, return_exceptions=True)
            for server in servers:
                server.close()
            self.streams.clear()

    def release(self) -> None:
        """Answer what was held."""
        for transport in self.held:
            transport.write(self.whole)
        self.held.clear()

    async def _step(self, streams: dict[asyncio.Transport, int]) -> None:
        """Have an engine write: each of its steps an event of every stream."""
        await asyncio.sleep(random.uniform(0, self.gap_s))
        while True:
            await asyncio.sleep(self.gap_s)
            for transport, left in list(streams.items()):
                if transport.is_closing():
                    del streams[transport]
                elif left > 1:
                    streams[transport] = left - 1
                    transport.write(self.piece)
                else:
                    del streams[transport]
                    transport.write(self.closing)


class _Connection(asyncio.Protocol):
    """A connection of the gateway's to a stub engine."""

    def __init__(self, engines: Engines, streams: dict[asyncio.Transport, int]) -> None:
        self._engines, self._streams = engines, streams
        self._head, self._left = b"", 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._left:
            self._left -= len(data)
        else:
            self._head += data
            head, ended, rest = self._head.partition(_HEAD_END)
            if not ended:
                return
            self._head = b""
            method, path, _ = head.split(b" ", 2)
            if method == b"GET":
                self._engines.pages += 1
                self._transport.write(self._engines.gets[path])
                return
            self._left = content_length(head) - len(rest)
        if self._left == 0:
            self._answer()

    def _answer(self) -> None:
        engines = self._engines
        if engines.hold:
            engines.held.append(self._transport)
        elif engines.events:
            self._transport.write(engines.opening)
            self._streams[self._transport] = engines.events
        else:
            self._transport.write(engines.whole)


def content_length(head: bytes) -> int:
    """Return the length of the body that follows a head."""
    (found,) = (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return int(found.partition(b":")[2])


@functools.cache
def scan(size: int) -> bytes:
    """Return a JPEG of about so many bytes, which are nearly all noise, and whole, as gateways check."""
    pixels = _jpeg_of(1_000_000)
    return _jpeg_of(1_000_000 * size // len(pixels))


def _jpeg_of(pixels: int) -> bytes:
    buffer = io.BytesIO()
    side = round(pixels**0.5)
    Image.effect_noise((side, side), 40).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
