"""The embedded engine's HTTP server: a vLLM to whoever asks, with OCR on the CPU behind it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway import __version__
from gateway.engines.asgi import (
    Raw,
    answer_while_connected,
    make_server,
    model_list,
    not_served,
    read_body,
    request_id,
    send_body,
    send_start,
    send_whole,
)
from gateway.engines.embedded.answer_json import OcrReply, OcrResponse
from gateway.engines.embedded.answers import GREETING, answer
from gateway.engines.embedded.ocr_request import parse, parse_response
from gateway.engines.embedded.reader_threads import ReaderThreads
from gateway.engines.embedded.tokens import TokenBudget
from gateway.engines.vllm_json import error_body
from gateway.engines.vllm_page import EngineCounts, metrics_page
from gateway.errors import GatewayError
from gateway.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from gateway.engines.embedded.ocr_request import ReadRequest
    from gateway.engines.embedded.reader import Reader

    _Read = Callable[[bytes, str], OcrReply | OcrResponse]

MAX_BODY_BYTES = 64 * 1024 * 1024
VERSION = f"{__version__}+embedded"

_log = logging.getLogger("gateway.engines.embedded")


class EmbeddedEngine:
    """The engine's endpoints and the workers behind them.

    Args:
        model: the name it serves.
        workers: images read at the same time; each has a thread and an OCR session of its own.
        max_waiting: requests that may wait for a worker before more are refused with 503.
        load: makes one worker's reader.
        on_failure: called when the readers cannot be loaded.
    """

    def __init__(
        self,
        *,
        model: str = "glm-ocr",
        workers: int = 2,
        max_waiting: int = 256,
        load: Callable[[], Reader] | None = None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self._model = model
        self._workers = ReaderThreads(load or _load_reader, count=workers, max_waiting=max_waiting)
        self._on_failure = on_failure
        self._started = int(time.time())
        self._finished: Counter[str] = Counter()
        self._prompt_tokens = 0
        self._generation_tokens = 0

    def app(self) -> Starlette:
        """Build the ASGI application; the models load while it already listens."""
        return Starlette(
            routes=[
                Route("/v1/chat/completions", Raw(self._chat), methods=["POST"]),
                Route("/v1/responses", Raw(self._responses), methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/health", self._health),
                Route("/version", self._version),
                Route("/metrics", self._metrics),
            ],
            exception_handlers={404: not_served, 405: not_served},
            lifespan=self._lifespan,
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        loading = asyncio.create_task(self._start())
        yield
        loading.cancel()
        await self._workers.close()

    async def _start(self) -> None:
        try:
            await self._workers.start()
        except Exception:
            _log.exception("the OCR models cannot be loaded")
            self._on_failure()

    async def _models(self, _: Request) -> Response:
        return model_list(self._model, self._started, "ocr-gateway")

    async def _health(self, _: Request) -> Response:
        return Response(status_code=200 if self._workers.ready else 503)

    async def _version(self, _: Request) -> Response:
        return JSONResponse({"version": VERSION})

    async def _metrics(self, _: Request) -> Response:
        counts = EngineCounts(
            running=self._workers.running,
            waiting=self._workers.waiting,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            finished=self._finished,
        )
        return Response(metrics_page(counts, self._model), media_type="text/plain; version=0.0.4")

    async def _chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._asked(scope, receive, send, self._chat_reply)

    async def _responses(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._asked(scope, receive, send, self._response_reply)

    async def _asked(self, scope: Scope, receive: Receive, send: Send, read: _Read) -> None:
        body = await read_body(receive, MAX_BODY_BYTES)
        if body is None:
            return
        await answer_while_connected(self._answer(body, request_id(scope), send, read), receive)

    def _chat_reply(self, body: bytes, request_id: str) -> OcrReply:
        return OcrReply(self._model, parse(body, self._model), f"chatcmpl-{request_id}")

    def _response_reply(self, body: bytes, request_id: str) -> OcrResponse:
        return OcrResponse(self._model, parse_response(body, self._model), request_id)

    async def _answer(self, body: bytes | GatewayError, request_id: str, send: Send, read: _Read) -> None:
        try:
            if isinstance(body, GatewayError):
                raise body
            reply = read(body, request_id)
            self._prompt_tokens += reply.request.prompt_tokens
            await self._reply(reply, send)
        except asyncio.CancelledError:
            self._finished["abort"] += 1
            raise
        except Exception as error:
            self._finished["error"] += 1
            status, page = _refusal(error)
            await send_whole(send, status, page)

    async def _reply(self, reply: OcrReply | OcrResponse, send: Send) -> None:
        """Send the answer; whatever is raised is raised before a byte is sent."""
        budget = TokenBudget(reply.request.max_tokens)
        texts: list[str] = []
        streaming = False
        async with contextlib.aclosing(self._pieces(reply.request)) as pieces:
            try:
                async for piece in pieces:
                    if reply.request.stream and not streaming:
                        streaming = True
                        await send_start(send, 200, b"text/event-stream; charset=utf-8")
                        await send_body(send, reply.opening(), more=True)
                    if taken := budget.take(piece):
                        if streaming:
                            await send_body(send, reply.piece(taken), more=True)
                        else:
                            texts.append(taken)
                    if budget.exhausted:
                        break
            except Exception as error:
                if not streaming:
                    raise
                self._finished["error"] += 1
                _, page = _refusal(error)
                await send_body(send, reply.broken(page))
                return
        self._generation_tokens += budget.used
        self._finished["length" if budget.exhausted else "stop"] += 1
        if streaming:
            await send_body(send, reply.closing(tokens=budget.used, cut=budget.exhausted))
        else:
            page = reply.whole("".join(texts), tokens=budget.used, cut=budget.exhausted)
            await send_whole(send, 200, page)

    async def _pieces(self, request: ReadRequest) -> AsyncGenerator[str]:
        if not request.images:
            yield GREETING
            return
        job = self._workers.run(lambda reader, stopped: answer(reader, request, stopped))
        async with contextlib.aclosing(job) as pieces:
            async for piece in pieces:
                yield piece


def main(
    *,
    host: str = "127.0.0.1",
    port: int = 8001,
    fd: int | None = None,
    model: str = "glm-ocr",
    workers: int = 2,
    exit_with_stdin: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT; what is in flight then has `asgi.DRAIN_SECONDS`.

    Args:
        host: address to listen on.
        port: port to listen on.
        fd: listening socket inherited from the parent, instead of host and port.
        model: name to serve under.
        workers: images read at the same time.
        exit_with_stdin: stop when stdin ends, and so with the parent that holds its other end.
    """
    logs.configure("text")
    logging.getLogger().setLevel(logging.WARNING)
    failed = threading.Event()

    def stop() -> None:
        server.should_exit = True

    def fail() -> None:
        failed.set()
        stop()

    engine = EmbeddedEngine(model=model, workers=workers, on_failure=fail)
    server = make_server(engine.app(), host=host, port=port)
    if exit_with_stdin:
        threading.Thread(target=_at_end_of_stdin, args=(stop,), daemon=True).start()
    server.run(sockets=None if fd is None else [socket.socket(fileno=fd)])
    if failed.is_set():
        sys.exit(1)


def _at_end_of_stdin(stop: Callable[[], None]) -> None:
    # Not through sys.stdin: a thread that holds its lock would crash the interpreter's end.
    while os.read(0, 1):
        pass
    stop()


def _load_reader() -> Reader:
    # onnxruntime and OpenCV take a second to import: not before the port is open.
    from gateway.engines.embedded.reader import Reader

    return Reader()


def _refusal(error: Exception) -> tuple[int, bytes]:
    if isinstance(error, GatewayError):
        return error.status, error_body(error.status, error.message, error.param)
    _log.error("request failed: %s", type(error).__name__, exc_info=error)
    return 500, error_body(500, "the engine failed on this request")
