"""The simulated engine's HTTP server: vLLM's dialect, with a clock model behind it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import random
from typing import TYPE_CHECKING, Literal

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway import __version__
from gateway.engines.asgi import (
    DRAIN_SECONDS,
    make_server,
    request_id,
    send_body,
    send_start,
    send_whole,
    vllm_app,
)
from gateway.engines.responses_api import ResponseAnswer
from gateway.engines.simulated.completion_request import parse, parse_response
from gateway.engines.simulated.faults import NO_FAULT, Fault, parse_fault
from gateway.engines.simulated.runner import Runner
from gateway.engines.vllm_json import CompletionAnswer, error_body, speculative_object
from gateway.engines.vllm_page import metrics_page
from gateway.errors import GatewayError, Unavailable
from gateway.policy.sort.evidence import SortRules
from gateway.wire.vllm.engine import STOPPING, Simulated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from gateway.engines.simulated.completion_request import SimulatedRequest
    from gateway.engines.simulated.runner import SimulatedJob
    from gateway.engines.simulated.step_model import Fit

    _Answer = CompletionAnswer | ResponseAnswer

# An API, by how the ids of its answers begin.
_Api = Literal["chatcmpl", "cmpl", "resp"]
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
        ValueError: a depth or schedule that `step_model.Depths` refuses.
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
        paths: dict[str, _Api] = {
            "/v1/chat/completions": "chatcmpl",
            "/v1/completions": "cmpl",
            "/v1/responses": "resp",
        }
        inner = vllm_app(
            {path: functools.partial(self._answer, api) for path, api in paths.items()},
            model=self._model,
            version=VERSION,
            owner="simulated",
            healthy=lambda: self._fault.kind != "not_ready",
            metrics=self._metrics,
            lifespan=self._lifespan,
            more=[Route("/faults", self._faults, methods=["GET", "POST"])],
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

    def _metrics(self) -> str:
        counts = self._runner.counts(awake=self._fault.kind != "sleep")
        simulated = Simulated(self._fit.name, self._runner.clock_s, self._time_scale)
        return metrics_page(counts, self._model, simulated=simulated)

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

    async def _answer(self, api: _Api, body: bytes | GatewayError, scope: Scope, send: Send) -> None:
        luck = self._rng.random()
        try:
            if isinstance(body, GatewayError):
                raise body
            request = self._read(api, body)
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
        answer = self._begun(api, request, request_id(scope))
        self._open += 1
        self._idle.clear()
        try:
            await (self._stream if request.stream else self._whole)(answer, job, luck, send)
        finally:
            self._runner.leave(job)
            self._open -= 1
            if not self._open:
                self._idle.set()

    def _read(self, api: _Api, body: bytes) -> SimulatedRequest:
        if api == "resp":
            return parse_response(body, model=self._model, rules=self._rules, speculative=self._speculative)
        chat = api == "chatcmpl"
        return parse(body, chat=chat, model=self._model, rules=self._rules, speculative=self._speculative)

    def _begun(self, api: _Api, request: SimulatedRequest, id: str) -> _Answer:
        prompt_tokens = self._fit.routes[request.route].prompt_tokens
        if api == "resp":
            return ResponseAnswer(id, self._model, prompt_tokens)
        return CompletionAnswer(
            f"{api}-{id}",
            self._model,
            prompt_tokens,
            chat=request.chat,
            include_usage=request.include_usage,
            continuous_usage=request.continuous_usage,
            fingerprint=f"simulated-{self._fit.name}",
        )

    async def _stream(self, answer: _Answer, job: SimulatedJob, luck: float, send: Send) -> None:
        await send_start(send, 200, b"text/event-stream; charset=utf-8")
        if accepted := answer.accepted():
            await send_body(send, accepted, more=True)
        sent, ended = 0, None
        while ended is None:
            await job.more()
            if self._cuts(job, luck):
                return
            opening = b"" if sent else answer.opening()
            text, sent, ended = job.text(sent), job.tokens, job.finish_reason
            piece = answer.piece(text, tokens=sent, finish_reason=ended)
            await send_body(send, opening + piece, more=True)
        speculation = self._speculation(job)
        await send_body(send, answer.closing(tokens=sent, finish_reason=ended, speculation=speculation))

    async def _whole(self, answer: _Answer, job: SimulatedJob, luck: float, send: Send) -> None:
        while job.finish_reason is None:
            await job.more()
            if self._cuts(job, luck):
                await send_start(send, 200, b"application/json", 1 << 20)
                return
        page = answer.whole(
            job.text(),
            tokens=job.tokens,
            finish_reason=job.finish_reason,
            speculation=self._speculation(job),
        )
        await send_whole(send, 200, page)

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
        ValueError: a depth or schedule that `step_model.Depths` refuses.
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
