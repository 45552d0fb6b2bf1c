"""The embedded engine's HTTP server: vLLM's dialect, with OCR on the CPU behind it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import socket
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from gateway import __version__
from gateway.engines.asgi import make_server, request_id, send_body, send_start, send_whole, vllm_app
from gateway.engines.embedded.answers import CalledTool, read_pieces, without_images
from gateway.engines.embedded.ocr_request import parse, parse_response
from gateway.engines.embedded.reader_threads import ReaderThreads
from gateway.engines.embedded.stop_strings import StopStrings
from gateway.engines.embedded.tokens import TokenBudget
from gateway.engines.responses_api import ResponseAnswer
from gateway.engines.vllm_json import CompletionAnswer, error_body
from gateway.engines.vllm_page import EngineCounts, metrics_page
from gateway.errors import BadRequest, GatewayError
from gateway.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from starlette.applications import Starlette
    from starlette.types import Scope, Send

    from gateway.engines.embedded.ocr_request import OcrRequest
    from gateway.engines.embedded.reader import Reader

    _Answer = CompletionAnswer | ResponseAnswer
    _Read = Callable[[bytes, Scope], tuple[OcrRequest, _Answer]]

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
        self._finished: Counter[str] = Counter()
        self._prompt_tokens = 0
        self._generation_tokens = 0

    def app(self) -> Starlette:
        """Build the ASGI application; the models load while it already listens."""
        return vllm_app(
            {
                "/v1/chat/completions": functools.partial(self._answer, self._read_chat),
                "/v1/completions": functools.partial(self._answer, self._read_completion),
                "/v1/responses": functools.partial(self._answer, self._read_response),
            },
            model=self._model,
            version=VERSION,
            owner="ocr-gateway",
            healthy=lambda: self._workers.ready,
            metrics=self._metrics,
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

    def _metrics(self) -> str:
        counts = EngineCounts(
            running=self._workers.running,
            waiting=self._workers.waiting,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            finished=self._finished,
        )
        return metrics_page(counts, self._model)

    def _read_chat(self, body: bytes, scope: Scope) -> tuple[OcrRequest, _Answer]:
        request = parse(body, self._model, _route_of(scope))
        answer = CompletionAnswer(
            f"chatcmpl-{request_id(scope)}",
            self._model,
            request.prompt_tokens,
            include_usage=request.include_usage,
            continuous_usage=request.continuous_usage,
        )
        return request, answer

    def _read_response(self, body: bytes, scope: Scope) -> tuple[OcrRequest, _Answer]:
        request = parse_response(body, self._model, _route_of(scope))
        return request, ResponseAnswer(request_id(scope), self._model, request.prompt_tokens)

    def _read_completion(self, body: bytes, scope: Scope) -> tuple[OcrRequest, _Answer]:
        raise BadRequest(
            "the embedded engine reads images, which a text completion has not: send them to "
            "POST /v1/chat/completions or /v1/responses"
        )

    async def _answer(self, read: _Read, body: bytes | GatewayError, scope: Scope, send: Send) -> None:
        try:
            if isinstance(body, GatewayError):
                raise body
            request, answer = read(body, scope)
            self._prompt_tokens += request.prompt_tokens
            await self._send(request, answer, send)
        except asyncio.CancelledError:
            self._finished["abort"] += 1
            raise
        except Exception as error:
            self._finished["error"] += 1
            status, page = _refusal(error)
            await send_whole(send, status, page)

    async def _send(self, request: OcrRequest, answer: _Answer, send: Send) -> None:
        """Send the answer; whatever is raised is raised before a byte is sent."""
        budget = TokenBudget(request.max_tokens)
        stops = StopStrings(request.stops, keep=request.keep_stop)
        texts: list[str] = []
        streaming = False
        async with contextlib.aclosing(self._pieces(request)) as pieces:
            try:
                async for piece in pieces:
                    if isinstance(piece, CalledTool):
                        answer = answer.calling(piece.name)
                        continue
                    if request.stream and not streaming:
                        streaming = True
                        await send_start(send, 200, b"text/event-stream; charset=utf-8")
                        await send_body(send, answer.accepted() + answer.opening(), more=True)
                    if text := budget.spend(stops.feed(piece)):
                        if streaming:
                            await send_body(send, answer.piece(text, tokens=budget.used), more=True)
                        else:
                            texts.append(text)
                    if budget.exhausted or stops.hit:
                        break
            except Exception as error:
                if not streaming:
                    raise
                self._finished["error"] += 1
                _, page = _refusal(error)
                await send_body(send, answer.broken(page))
                return
        rest = budget.spend(stops.rest())
        self._generation_tokens += budget.used
        # A stop string ends the answer before the limit does.
        cut = budget.exhausted and not stops.hit
        self._finished["length" if cut else "stop"] += 1
        reason = "length" if cut else request.finish_reason
        if streaming:
            end = answer.piece(rest, tokens=budget.used) if rest else b""
            end += answer.piece("", tokens=budget.used, finish_reason=reason, stop_reason=stops.hit)
            end += answer.closing(tokens=budget.used, finish_reason=reason)
            await send_body(send, end)
        else:
            text = "".join((*texts, rest))
            page = answer.whole(text, tokens=budget.used, finish_reason=reason, stop_reason=stops.hit)
            await send_whole(send, 200, page)

    async def _pieces(self, request: OcrRequest) -> AsyncGenerator[str | CalledTool]:
        if not request.images:
            for piece in without_images(request):
                yield piece
            return
        job = self._workers.run(lambda reader, stopped: read_pieces(reader, request, stopped))
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


def _route_of(scope: Scope) -> str | None:
    """Return the route that the gateway names for a request without words."""
    return Headers(scope=scope).get("x-ocr-route")


def _refusal(error: Exception) -> tuple[int, bytes]:
    if isinstance(error, GatewayError):
        return error.status, error_body(error.status, error.message, error.param)
    _log.error("request failed: %s", type(error).__name__, exc_info=error)
    return 500, error_body(500, "the engine failed on this request")
