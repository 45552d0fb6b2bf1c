"""What tests of more than one module share: a scripted engine, a served application, pictures."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import inspect
import io
import itertools
import json
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import uvicorn
import uvicorn.server
from PIL import Image, ImageDraw, ImageFont
from prometheus_client.parser import text_string_to_metric_families

from gateway.server.listen import GatewayServer

# It looks ten times a second whether it is to stop, and then waits for as long: half a second of each test.
uvicorn.server.asyncio = SimpleNamespace(  # type: ignore[assignment, attr-defined]
    **{**vars(asyncio), "sleep": lambda seconds: asyncio.sleep(seconds / 20)}
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from prometheus_client.samples import Sample

    from gateway.server.app import Gateway

T = TypeVar("T")
# What a busy machine may take over anything that ends at all.
LONG_S = 60
CONFIG = """
model: glm-ocr
pools:
  plain:
    engines: [ENGINE]
  mtp3:
    speculative_config: {method: mtp, num_speculative_tokens: 3}
    engines: [OTHER]
routes:
  text: {pools: [plain], timeouts: {connect_s: 2, first_event_s: 5, idle_s: 5, total_s: 20}}
  key-value: {pools: [mtp3]}
  table: {pools: [mtp3]}
polling: {scrape_s: 0.05}
breaker: {failures: 1000000}
limits: {body_bytes: 1000000, image_pixels: 4000000, images_per_request: 3}
remote_images: {allow_hosts: [images.example]}
"""


def png(text: str = "", size: tuple[int, int] = (200, 100), mode: str = "RGB") -> bytes:
    """A small white picture with black words on it."""
    return encoded(picture(text, size), "PNG", mode)


def picture(text: str, size: tuple[int, int] = (200, 100), points: int = 20) -> Image.Image:
    image = Image.new("RGB", size, "white")
    ImageDraw.Draw(image).multiline_text((10, 10), text, fill="black", font=ImageFont.load_default(points))
    return image


def encoded(image: Image.Image, kind: str, mode: str = "RGB", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


def in_every_format(image: Image.Image) -> list[bytes]:
    """The same picture in each format that is read, and in the forms that formats have."""
    upright = Image.Exif()
    upright[0x0112] = 1
    forms: list[tuple[str, dict[str, Any]]] = [
        *(("PNG", {}), ("JPEG", {}), ("JPEG", {"progressive": True}), ("JPEG", {"exif": upright})),
        *(("WEBP", {}), ("WEBP", {"lossless": True}), ("GIF", {}), ("BMP", {})),
        *(("TIFF", {}), ("TIFF", {"compression": "jpeg"})),
    ]
    return [encoded(image, kind, **options) for kind, options in forms]


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def chat(
    prompt: str | None = "Text Recognition:", image: bytes | str | None = b"", **members: Any
) -> dict[str, Any]:
    """A chat request as OCR clients send it; `image` b"" is a small picture, None is none."""
    parts: list[dict[str, Any]] = []
    if image is not None:
        url = image if isinstance(image, str) else data_url(image or png("hello"))
        parts.append({"type": "image_url", "image_url": {"url": url}})
    if prompt is not None:
        parts.append({"type": "text", "text": prompt})
    return {"model": "glm-ocr", "messages": [{"role": "user", "content": parts}], **members}


async def until(condition: Callable[[], object], within_s: float = LONG_S) -> Any:
    """Wait until a condition holds, which may be asynchronous; return what it returned.

    Raises:
        TimeoutError: it does not hold in time.
    """
    pauses = _pauses()
    async with asyncio.timeout(within_s):
        while True:
            found: Any = condition()
            if found := await found if inspect.isawaitable(found) else found:
                return found
            await asyncio.sleep(next(pauses))


def wait_until(condition: Callable[[], T], within_s: float = LONG_S, what: str = "") -> T:
    """Wait until a condition holds, where no event loop runs; return what it returned.

    Raises:
        TimeoutError: it does not hold in time; it says `what` was waited for.
    """
    pauses, end = _pauses(), time.monotonic() + within_s
    while not (found := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"not within {within_s:.0f} s: {what}")
        time.sleep(next(pauses))
    return found


def _pauses() -> Iterator[float]:
    """None at first, then ever longer ones: what is waited for may need this core."""
    return (min(number / 10_000, 0.05) for number in itertools.count())


@contextlib.contextmanager
def python(*arguments: object, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run Python in a process of its own until the block is left; `options` are Popen's."""
    with subprocess.Popen([sys.executable, *map(str, arguments)], **options) as process:
        try:
            yield process
        finally:
            process.kill()


def listens(port: int) -> bool:
    """Whether somebody listens on a port of this host."""
    with contextlib.suppress(ConnectionRefusedError, ConnectionResetError):  # reset: while it closes
        socket.create_connection(("127.0.0.1", port)).close()
        return True
    return False


@contextlib.asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """Serve an ASGI application on a free loopback port; yield its base URL."""
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="auto")
    async with _started(uvicorn.Server(config)) as url:
        yield url


@contextlib.asynccontextmanager
async def serving(gateway: Gateway) -> AsyncIterator[str]:
    """Serve a gateway with its own server on a free loopback port; yield its base URL."""
    async with _started(GatewayServer(gateway)) as url:
        yield url


@contextlib.asynccontextmanager
async def _started(server: uvicorn.Server) -> AsyncIterator[str]:
    server.config.timeout_graceful_shutdown = 1
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        serving = asyncio.create_task(server.serve([listener]))
        try:
            await until(lambda: server.started or serving.done())
            if serving.done():
                serving.result()
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


Behaviour = "Callable[[FakeEngine, dict[str, Any], Any], Awaitable[None]]"


@dataclass
class FakeEngine:
    """An engine that does as told, as an ASGI application; it remembers what it was asked.

    `behave` gets the engine, the request's JSON and a `send` with the methods of _Sender.
    """

    behave: Any = None
    healthy: bool = True
    metrics: bytes | None = None
    version: str | None = None
    models: tuple[str, ...] = ()
    running: int = 0
    aborted: int = 0
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def requests(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in self.bodies]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await _lifespan(receive, send)
        sender = _Sender(send, scope["path"])
        if scope["path"] == "/health":
            return await sender.json({}, 200 if self.healthy else 503)
        if scope["method"] == "GET":
            return await self._page(scope["path"], sender)
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message.get("more_body"):
                break
        self.bodies.append(body)
        self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        self.running += 1
        work = asyncio.create_task((self.behave or answer)(self, json.loads(body), sender))
        gone = asyncio.create_task(receive())
        try:
            await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self.aborted += 1
        finally:
            self.running -= 1
            for task in (work, gone):
                task.cancel()
            results = await asyncio.gather(work, gone, return_exceptions=True)
        if isinstance(results[0], Exception):
            raise results[0]
        return None

    async def _page(self, path: str, send: _Sender) -> None:
        if path == "/version" and self.version is not None:
            return await send.json({"version": self.version})
        if path == "/v1/models" and self.models:
            return await send.json({"data": [{"id": name} for name in self.models]})
        if path == "/metrics" and self.metrics is not None:
            await send.start(kind="text/plain; version=0.0.4; charset=utf-8")
            return await send.body(self.metrics, more=False)
        return await send.json({"detail": "Not Found"}, 404)


class _Sender:
    def __init__(self, send: Any, path: str = "") -> None:
        self.path = path
        self.send = send

    async def start(self, status: int = 200, kind: str = "application/json") -> None:
        headers = [(b"content-type", kind.encode())]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def body(self, data: bytes, more: bool = True) -> None:
        await self.send({"type": "http.response.body", "body": data, "more_body": more})

    async def json(self, value: Any, status: int = 200) -> None:
        await self.start(status)
        await self.body(json.dumps(value).encode(), more=False)

    async def event(self, value: Any) -> None:
        data = value if isinstance(value, str) else json.dumps(value)
        await self.body(f"data: {data}\n\n".encode())


USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}


def completion(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "glm-ocr",
        "choices": choices,
        "usage": USAGE,
    }


def chunk(content: str | None = None, finish: str | None = None, **members: Any) -> dict[str, Any]:
    delta = {"role": "assistant", "content": ""} if content is None else {"content": content}
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "glm-ocr",
        "choices": choices,
        **members,
    }


RESPONSE_USAGE = {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9}


def response(text: str = "hello world", status: str = "completed", **members: Any) -> dict[str, Any]:
    """A response as vLLM gives it, as far as anybody here reads it."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    item = {"id": "msg_1", "type": "message", "role": "assistant", "content": content, "status": "completed"}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "glm-ocr",
        "output": [item],
        "status": status,
        "usage": RESPONSE_USAGE,
        **members,
    }


def response_events(*texts: str) -> list[dict[str, Any]]:
    """What vLLM streams for a response: what is taken, what is added, and what came of it."""
    begun = response(status="in_progress", output=[], usage=None)
    place = {"item_id": "msg_1", "output_index": 0}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        {"type": "response.output_item.added", "item": {"type": "message", "content": []}, **place},
        *({"type": "response.output_text.delta", "delta": text, **place} for text in texts),
        {"type": "response.output_text.done", "text": "".join(texts), **place},
        {"type": "response.completed", "response": response("".join(texts))},
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def named(event: dict[str, Any]) -> bytes:
    """An event of a response as it goes over the wire."""
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def asked(
    prompt: str | None = "Text Recognition:", image: bytes | str | None = b"", **members: Any
) -> dict[str, Any]:
    """A request in the Responses API; `image` as in `chat`."""
    parts: list[dict[str, Any]] = []
    if image is not None:
        url = image if isinstance(image, str) else data_url(image or png("hello"))
        parts.append({"type": "input_image", "image_url": url, "detail": "auto"})
    if prompt is not None:
        parts.append({"type": "input_text", "text": prompt})
    return {"model": "glm-ocr", "input": [{"role": "user", "content": parts}], **members}


def events_of(stream: bytes | str) -> list[Any]:
    """The JSON of each event that a stream of completions consists of, which must end with `[DONE]`."""
    text = stream if isinstance(stream, str) else stream.decode()
    *blocks, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def samples_of(page: bytes | str) -> list[Sample]:
    """The samples of a page of metrics."""
    text = page if isinstance(page, str) else page.decode()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


async def respond(engine: FakeEngine, request: dict[str, Any], send: _Sender) -> None:
    """Answer in the Responses API at once, as vLLM would."""
    if not request.get("stream"):
        return await send.json(response())
    await send.start(kind="text/event-stream; charset=utf-8")
    for event in response_events("hello", " world"):
        await send.body(named(event))
    return await send.body(b"", more=False)


async def answer(engine: FakeEngine, request: dict[str, Any], send: _Sender) -> None:
    """Answer at once, as vLLM would."""
    if send.path == "/v1/responses":
        return await respond(engine, request, send)
    if not request.get("stream"):
        return await send.json(completion("hello world"))
    await send.start(kind="text/event-stream; charset=utf-8")
    await send.event(chunk())
    await send.event(chunk("hello"))
    await send.event(chunk(" world", "stop"))
    if (request.get("stream_options") or {}).get("include_usage"):
        await send.event({**chunk(), "choices": [], "usage": USAGE})
    await send.event("[DONE]")
    return await send.body(b"", more=False)


def failing(
    status: int = 500, body: bytes = b"{}", kind: str = "application/json", **headers: str
) -> Callable[[FakeEngine, Any, _Sender], Coroutine[Any, Any, None]]:
    """Return the behaviour of an engine that answers everything so."""

    async def behave(engine: FakeEngine, request: Any, send: _Sender) -> None:
        sent = {"content-type": kind, **headers}
        pairs = [(name.encode(), value.encode()) for name, value in sent.items()]
        await send.send({"type": "http.response.start", "status": status, "headers": pairs})
        await send.body(body, more=False)

    return behave


async def breaks_off(engine: FakeEngine, request: Any, send: _Sender) -> None:
    """Begin an ordinary answer and close the connection."""
    await send.start()
    await send.body(b'{"id"')
    raise ConnectionError


async def hang(engine: FakeEngine, request: dict[str, Any], send: _Sender) -> None:
    """Take the request and never answer."""
    await asyncio.Event().wait()


async def _lifespan(receive: Any, send: Any) -> None:
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return
