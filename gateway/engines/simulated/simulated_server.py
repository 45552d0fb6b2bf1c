"""The simulated engine's HTTP server: a vLLM to whoever asks, with a clock model behind it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import random
import time
from typing import TYPE_CHECKING, Literal

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway import __version__
from gateway.engines.asgi import (
    DRAIN_SECONDS,
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
from gateway.engines.responses_api import ModelResponse
from gateway.engines.simulated.completion_json import SimulatedReply, SimulatedResponse
from gateway.engines.simulated.completion_request import parse, parse_response
from gateway.engines.simulated.faults import NO_FAULT, Fault, parse_fault
from gateway.engines.simulated.runner import Runner
from gateway.engines.vllm_json import error_body, speculative_object
from gateway.engines.vllm_page import metrics_page
from gateway.errors import GatewayError, Unavailable
from gateway.policy.sort.evidence import SortRules
from gateway.wire.vllm.engine import STOPPING, Simulated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from gateway.engines.simulated.completion_request import SimulatedRequest
    from gateway.engines.simulated.runner import SimulatedJob
    from gateway.engines.simulated.step_model import Fit

MAX_BODY_BYTES = 64 * 1024 * 1024
# How an answer's id begins tells which API it is of.
_Kind = Literal["chatcmpl", "cmpl", "resp"]
VERSION = f"{__version__}+simulated"
GARBAGE = b"\x00\xffsimulated garbage }{"


class SimulatedEngine:
    """The engine's endpoints, the runner behind them, and the fault they suffer from.

    Args:
        fit: what is simulated.
        depth: draft tokens of a request and step; 0 is ordinary decoding.
        schedule: vLLM's `num_speculative_tokens_per_batch_size`.
        model: the name it serves.
        time_scale: virtual seconds in a real one.
        seed: makes lengths, acceptance and the choice of faults' victims repeatable.
        per_request: answers tell their own acceptance, as with `--per-request-spec-decode-metrics summary`.
        die: ends the process.

    Raises:
        ValueError: a depth or schedule that `model.Depths` refuses.
    """

    def __init__(
        self,
        fit: Fit,
        *,
        depth: int = 0,
        schedule: Sequence[Sequence[int]] | None = None,
        model: str = "glm-ocr",
        time_scale: float = 1.0,
        seed: int = 0,
        per_request: bool = True,
        die: Callable[[], None] = lambda: os._exit(1),
    ) -> None:
        self._fit = fit
        self._runner = Runner(fit, depth, schedule=schedule, time_scale=time_scale, seed=seed)
        self._model = model
        self._time_scale = time_scale
        self._speculative = depth > 0
        self._per_request = per_request and depth > 0
        self._rules = SortRules(
            tuple(fit.routes), default="text" if "text" in fit.routes else next(iter(fit.routes))
        )
        self._rng = random.Random(seed)
        self._die = die
        self._fault = NO_FAULT
        self._answering = asyncio.Event()
        self._answering.set()
        self._started = int(time.time())
        self._stopping = False
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def drain(self, within_s: float) -> None:
        """Refuse what is new, and return when what is there has been answered.

        What has not been within this time gets nothing any more, be it an end: vLLM kills its engine's
        process, and leaves the clients of its server waiting.
        """
        self._stopping = True
        try:
            async with asyncio.timeout(within_s):
                await self._idle.wait()
        except TimeoutError:
            self._runner.pause()

    def app(self) -> ASGIApp:
        """Build the ASGI application."""
        routes = [
            Route("/v1/chat/completions", Raw(self._chat), methods=["POST"]),
            Route("/v1/completions", Raw(self._completions), methods=["POST"]),
            Route("/v1/responses", Raw(self._responses), methods=["POST"]),
            Route("/v1/models", self._models),
            Route("/health", self._health),
            Route("/version", self._version),
            Route("/metrics", self._metrics),
            Route("/faults", self._faults, methods=["GET", "POST"]),
        ]
        inner = Starlette(
            routes=routes, exception_handlers={404: not_served, 405: not_served}, lifespan=self._lifespan
        )

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await inner(scope, receive, send)
                return
            if not (scope["path"] == "/faults" or (scope["path"] == "/health" and self._fault.health)):
                await self._answering.wait()
            await inner(scope, receive, self._labelled(send))

        return app

    def _labelled(self, send: Send) -> Send:
        label = (b"x-simulated", self._fit.name.encode())

        async def labelled(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], label]
            await send(message)

        return labelled

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        running = asyncio.create_task(self._runner.run())
        yield
        running.cancel()

    async def _models(self, _: Request) -> Response:
        return model_list(self._model, self._started, "simulated")

    async def _health(self, _: Request) -> Response:
        return Response(status_code=503 if self._fault.kind == "not_ready" else 200)

    async def _version(self, _: Request) -> Response:
        return JSONResponse({"version": VERSION})

    async def _metrics(self, _: Request) -> Response:
        counts = self._runner.counts(awake=self._fault.kind != "sleep")
        simulated = Simulated(self._fit.name, self._runner.clock_s, self._time_scale)
        page = metrics_page(counts, self._model, simulated=simulated)
        return Response(page, media_type="text/plain; version=0.0.4")

    async def _faults(self, request: Request) -> Response:
        if request.method == "POST":
            try:
                self._suffer(parse_fault(await request.body()))
            except GatewayError as error:
                return Response(
                    error_body(error.status, error.message), error.status, media_type="application/json"
                )
        return JSONResponse({"simulated": True, "fault": self._fault.kind})

    def _suffer(self, fault: Fault) -> None:
        if fault.kind == "die":
            self._die()
        if fault.kind == "reset_counters":
            self._runner.reset()
            return
        self._fault = fault
        self._runner.slow(fault.factor if fault.kind == "slow" else 1.0)
        if fault.kind in ("hang", "sleep"):
            self._runner.pause()
        else:
            self._runner.resume()
        if fault.kind == "hang":
            self._answering.clear()
        else:
            self._answering.set()

    async def _chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._complete(scope, receive, send, "chatcmpl")

    async def _completions(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._complete(scope, receive, send, "cmpl")

    async def _responses(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._complete(scope, receive, send, "resp")

    async def _complete(self, scope: Scope, receive: Receive, send: Send, kind: _Kind) -> None:
        body = await read_body(receive, MAX_BODY_BYTES)
        if body is not None:
            await answer_while_connected(self._answer(body, request_id(scope), send, kind), receive)

    async def _answer(self, body: bytes | GatewayError, id: str, send: Send, kind: _Kind) -> None:
        luck = self._rng.random()
        try:
            if isinstance(body, GatewayError):
                raise body
            request = self._parsed(body, kind)
            if self._stopping or self._fault.kind == "drain":
                raise GatewayError(STOPPING)
            if self._hits("unavailable", luck):
                raise Unavailable("The simulated engine takes no requests now.")
        except GatewayError as error:
            await send_whole(send, error.status, error_body(error.status, error.message, error.param))
            return
        if self._hits("garbage", luck):
            await send_start(send, 200, b"text/event-stream" if request.stream else b"application/json")
            await send_body(send, GARBAGE)
            return
        job = self._runner.submit(request)
        reply = self._reply(request, id, kind)
        self._open += 1
        self._idle.clear()
        try:
            await (self._stream if request.stream else self._whole)(reply, job, luck, send)
        finally:
            self._runner.leave(job)
            self._open -= 1
            if not self._open:
                self._idle.set()

    def _parsed(self, body: bytes, kind: _Kind) -> SimulatedRequest:
        if kind == "resp":
            return parse_response(body, model=self._model, rules=self._rules, speculative=self._speculative)
        chat = kind == "chatcmpl"
        return parse(body, chat=chat, model=self._model, rules=self._rules, speculative=self._speculative)

    def _reply(self, request: SimulatedRequest, id: str, kind: _Kind) -> SimulatedReply | SimulatedResponse:
        prompt_tokens = self._fit.routes[request.route].prompt_tokens
        if kind == "resp":
            return SimulatedResponse(ModelResponse(self._model, id, prompt_tokens))
        return SimulatedReply(
            self._model, request, f"{kind}-{id}", prompt_tokens, f"simulated-{self._fit.name}"
        )

    async def _stream(
        self, reply: SimulatedReply | SimulatedResponse, job: SimulatedJob, luck: float, send: Send
    ) -> None:
        await send_start(send, 200, b"text/event-stream; charset=utf-8")
        if accepted := reply.accepted():
            await send_body(send, accepted, more=True)
        told, ended = 0, None
        while ended is None:
            await job.more()
            if self._cuts(job, luck):
                return
            opening = b"" if told else reply.opening()
            before, told, ended = told, job.tokens, job.finish_reason
            await send_body(send, opening + reply.piece(before, told, ended), more=True)
        await send_body(send, reply.closing(told, self._speculation(job)))

    async def _whole(
        self, reply: SimulatedReply | SimulatedResponse, job: SimulatedJob, luck: float, send: Send
    ) -> None:
        while job.finish_reason is None:
            await job.more()
            if self._cuts(job, luck):
                await send_start(send, 200, b"application/json", 1 << 20)
                return
        await send_whole(send, 200, reply.whole(job.tokens, job.finish_reason, self._speculation(job)))

    def _speculation(self, job: SimulatedJob) -> dict[str, object] | None:
        return speculative_object(job.histogram, job.draft_tokens) if self._per_request else None

    def _cuts(self, job: SimulatedJob, luck: float) -> bool:
        """Whether the connection breaks now: an answer that is returned from unfinished is cut off."""
        return self._hits("die_mid_stream", luck) and job.tokens >= self._fault.after_tokens

    def _hits(self, kind: str, luck: float) -> bool:
        return self._fault.kind == kind and luck < self._fault.probability


def main(
    fit: Fit,
    *,
    host: str = "127.0.0.1",
    port: int = 8002,
    depth: int = 0,
    schedule: Sequence[Sequence[int]] | None = None,
    model: str = "glm-ocr",
    time_scale: float = 1.0,
    seed: int = 0,
    per_request: bool = True,
    shutdown_timeout: float = DRAIN_SECONDS,
) -> None:
    """Serve until SIGTERM or SIGINT; what is in flight then has `shutdown_timeout` seconds.

    The other arguments are SimulatedEngine's, and where to listen.

    Raises:
        ValueError: a depth or schedule that `model.Depths` refuses.
    """
    logging.basicConfig(level=logging.WARNING, format="simulated engine: %(levelname)s %(name)s: %(message)s")
    engine = SimulatedEngine(
        fit,
        depth=depth,
        schedule=schedule,
        model=model,
        time_scale=time_scale,
        seed=seed,
        per_request=per_request,
    )
    drain = functools.partial(engine.drain, shutdown_timeout)
    make_server(engine.app(), host=host, port=port, drain=drain).run()
