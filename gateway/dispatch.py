"""The path of one request, top to bottom: receive, sort, choose, forward, account."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gateway.errors import (
    BadImage,
    BadRequest,
    ClientLeft,
    EngineFailed,
    GatewayError,
    Unavailable,
    UnknownModel,
)
from gateway.policy import balance, sorting
from gateway.policy.sorting import SortRules
from gateway.wire import images, openai, sse

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
    from random import Random

    from gateway.client import Answer, EngineClient
    from gateway.config import Config
    from gateway.metrics import Metrics, Stage
    from gateway.model import Engine, SortDecision, SortFacts, Usage
    from gateway.state import Lease, State
    from gateway.vision import Vision

log = logging.getLogger("gateway.access")

CLIENT_LEFT = 499

_REMOTE_URL = re.compile(rb"https?://([A-Za-z0-9.-]+)(?::[0-9]{1,5})?(?:/[!-~]*)?")
_REMOTE_URL_BYTES = 2048
# What a client should wait for an engine that is starting or restarting.
_RETRY_AFTER_S = 2


@dataclass(slots=True)
class Call:
    """One request and what is known of it so far; its headers, log line and metrics are made of this.

    Attributes:
        path: the endpoint, on the gateway as on the engine.
        request_id: the client's own or a new one.
        read: returns the body of at most so many bytes, or raises BodyTooLarge or ClientLeft.
        route_header: the `x-ocr-route` header.
        content_type: the request's content type.
        started: when it arrived, by time.perf_counter.
        code: the status it ended with; 499 where the client left.
    """

    path: str
    request_id: str
    read: Callable[[int], Awaitable[bytes]]
    route_header: str | None = None
    content_type: str = ""
    started: float = field(default_factory=time.perf_counter)
    decision: SortDecision | None = None
    engine: Engine | None = None
    usage: Usage | None = None
    first_token_s: float | None = None
    code: int = 0

    def headers(self) -> dict[str, str]:
        """Return the headers that tell the client what is known by now."""
        known = {"x-request-id": self.request_id}
        if self.decision:
            known |= {"x-ocr-route": self.decision.route, "x-ocr-route-reason": self.decision.reason}
        if self.engine:
            known |= {"x-ocr-pool": self.engine.pool, "x-ocr-depth": str(self.engine.depth)}
        return known


@dataclass(frozen=True, slots=True)
class Reply:
    """What the client gets.

    Attributes:
        status: HTTP status.
        content_type: the engine's.
        length: the body's bytes, None where that is not known beforehand.
        retry_after: the Retry-After of a 429.
        chunks: the body as it comes.
        deadline: when the last byte must have gone out, on the event loop's clock.
    """

    status: int
    content_type: str
    length: int | None
    retry_after: str | None
    chunks: AsyncIterator[bytes]
    deadline: float


def sort_rules(config: Config) -> SortRules:
    """Return the rules of sorting that a configuration makes."""
    patterns = {
        route: tuple(re.compile(pattern) for pattern in prompts)
        for route, prompts in config.sorting.prompts.items()
    }
    return SortRules(tuple(config.routes), config.sorting.default, patterns)


class Dispatcher:
    """Takes requests along the path; holds no state of its own."""

    def __init__(
        self,
        config: Config,
        state: State,
        client: EngineClient,
        metrics: Metrics,
        vision: Vision,
        rng: Random,
    ) -> None:
        self._config = config
        self._rules = sort_rules(config)
        self._state = state
        self._client = client
        self._metrics = metrics
        self._vision = vision
        self._rng = rng

    @asynccontextmanager
    async def dispatch(self, call: Call) -> AsyncIterator[Reply]:
        """Answer one request; the engine is occupied until the block is left.

        Raises:
            GatewayError: the request gets no answer.
            ClientLeft: there is nobody to answer.
        """
        try:
            request, repaired, image = await self._receive(call)
            route = await self._sort(call, request.facts, image)
            del image  # a request holds its body, and nothing beside it while an engine works
            with self._choose(call, route) as lease:
                async with self._forward(call, request, repaired, route, lease.engine) as reply:
                    call.code = reply.status
                    yield reply
        except GatewayError as error:
            call.code = error.status
            raise
        except (ClientLeft, asyncio.CancelledError, GeneratorExit):
            call.code = CLIENT_LEFT
            raise
        except BaseException:
            call.code = 500
            raise
        finally:
            self._account(call)

    async def _receive(self, call: Call) -> tuple[openai.CompletionRequest, dict[bytes, bytes], bytes | None]:
        """Return the request, the image URLs to mend in it (old to new JSON text), and its first image."""
        if call.content_type.partition(";")[0].strip().lower() != "application/json":
            raise BadRequest(
                "the content type must be application/json", param="content-type", code="bad_content_type"
            )
        body = await call.read(self._config.limits.body_bytes)
        with self._timed("receive"):
            request = openai.parse_request(
                body,
                chat=call.path.endswith("/chat/completions"),
                max_images=self._config.limits.images_per_request,
            )
            request = replace(
                request,
                facts=replace(request.facts, header=call.route_header, alias=self._alias(request.model)),
            )
            repaired, image = await self._check_images(request)
            # The parts hold copies of the images' text; from here on the body alone does.
            return replace(request, images=()), repaired, image

    async def _check_images(
        self, request: openai.CompletionRequest
    ) -> tuple[dict[bytes, bytes], bytes | None]:
        repaired: dict[bytes, bytes] = {}
        first: bytes | None = None
        for part in request.images:
            if self._is_remote(part):
                continue
            try:
                url = images.parse_data_url(part.url)
                await self._vision.inspect(
                    url.data,
                    max_pixels=self._config.limits.image_pixels,
                    mended=url.repaired is not None,
                )
            except BadImage as error:
                error.message = f"{part.param}: {error.message}"
                error.param = part.param
                raise
            if url.repaired is not None:
                repaired[part.raw] = b'"%s"' % url.repaired
            first = first or url.data
        return repaired, first

    def _is_remote(self, part: openai.ImagePart) -> bool:
        """Whether an image is for the engine to fetch, which only listed hosts allow."""
        if not part.url[:16].lstrip().lower().startswith((b"http:", b"https:")):
            return False
        # Strict, so that the engine's parser cannot see another host in it than this one does.
        url = _REMOTE_URL.fullmatch(part.url) if len(part.url) <= _REMOTE_URL_BYTES else None
        if url is None or url.group(1).decode().lower() not in self._config.remote_images.allow_hosts:
            raise BadRequest(
                f"{part.param}: images by http(s) URL are accepted from listed hosts only "
                "(remote_images.allow_hosts); send the image as a data URL",
                param=part.param,
                code="remote_image_refused",
            )
        return True

    async def _sort(self, call: Call, facts: SortFacts, image: bytes | None) -> str:
        with self._timed("sort"):
            decision = sorting.sort(facts, self._rules)
            if decision is None and image is not None:
                guess = await self._vision.guess(image)
                decision = sorting.sort_by_layout(guess, self._rules) if guess else None
            call.decision = decision or sorting.by_default(self._rules)
        self._metrics.sorted(call.decision)
        return call.decision.route

    def _choose(self, call: Call, route: str) -> Lease:
        with self._timed("choose"):
            view = balance.least_loaded(self._state.views(self._config.pools_of(route)), self._rng)
        if view is None:
            raise Unavailable(
                f"no engine of route {route!r} is up; retry shortly",
                code="no_engine",
                retry_after=_RETRY_AFTER_S,
            )
        call.engine = view.engine
        return self._state.lease(route, view.engine)

    @asynccontextmanager
    async def _forward(
        self,
        call: Call,
        request: openai.CompletionRequest,
        repaired: dict[bytes, bytes],
        route: str,
        engine: Engine,
    ) -> AsyncIterator[Reply]:
        limits = self._config.routes[route].timeouts
        deadline = asyncio.get_running_loop().time() + limits.total_s
        with self._timed("forward"):
            alias = self._config.model if request.facts.alias is not None else None
            body = openai.rewritten(request, model=alias, repaired=repaired)
        headers = {"Content-Type": "application/json", "X-Request-Id": call.request_id}
        try:
            async with self._client.post(
                engine,
                call.path,
                body,
                headers,
                connect_s=limits.connect_s,
                first_event_s=limits.first_event_s if request.stream else None,
                deadline=deadline,
            ) as answer:
                if answer.status // 100 not in (2, 4) or answer.status in (401, 403):
                    raise await _refused(answer)
                length = None
                if request.stream and answer.is_stream:
                    chunks = self._stream(
                        call, answer, strip_usage=not request.include_usage, idle_s=limits.idle_s
                    )
                else:
                    whole = await answer.read()
                    length, chunks = len(whole), self._whole(call, whole)
                async with aclosing(chunks):
                    retry_after = answer.retry_after or str(_RETRY_AFTER_S) if answer.status == 429 else None
                    yield Reply(answer.status, answer.content_type, length, retry_after, chunks, deadline)
        except GatewayError as error:
            if error.code == "engine_unreachable" and self._state.mark(engine.name, up=False):
                log.warning("engine %s is down: %s", engine.name, error)
            raise

    async def _whole(self, call: Call, body: bytes) -> AsyncGenerator[bytes, None]:
        call.usage = openai.read_usage(body)
        yield body

    async def _stream(
        self, call: Call, answer: Answer, *, strip_usage: bool, idle_s: float
    ) -> AsyncGenerator[bytes, None]:
        splitter = sse.EventSplitter()
        try:
            async for data in answer.chunks(idle_s=idle_s):
                events = [event for event in splitter.feed(data) if self._passes(call, event, strip_usage)]
                if events:
                    yield b"".join(events)
            rest = splitter.rest()
            if rest and self._passes(call, rest, strip_usage):
                yield rest
        except GatewayError as error:
            call.code = error.status
            yield sse.data_event(openai.error_body(error))

    def _passes(self, call: Call, event: bytes, strip_usage: bool) -> bool:
        """Account for one event; tell whether the client gets it."""
        data = sse.event_data(event)
        if data is None or data == sse.DONE:
            return True
        chunk = openai.read_chunk(data)
        if chunk.has_output and call.first_token_s is None:
            call.first_token_s = time.perf_counter() - call.started
        call.usage = chunk.usage or call.usage
        if chunk.is_error:
            call.code = EngineFailed.status
        return not (strip_usage and chunk.is_usage_only)

    def _alias(self, model: str | None) -> str | None:
        """Return the route behind `NAME:route`; a model that is neither NAME nor an alias is unknown."""
        name = self._config.model
        if model is None or model == name:
            return None
        if model.startswith(f"{name}:"):
            return model.removeprefix(f"{name}:")
        raise UnknownModel(
            f"the model {model[:64]!r} does not exist here; use {name!r}, or {name}:ROUTE to choose a route",
            param="model",
            code="model_not_found",
        )

    def _account(self, call: Call) -> None:
        seconds = time.perf_counter() - call.started
        route = call.decision.route if call.decision else ""
        pool = call.engine.pool if call.engine else ""
        self._metrics.finished(
            route=route,
            pool=pool,
            code=call.code,
            seconds=seconds,
            first_token_s=call.first_token_s,
            usage=call.usage,
        )
        fields: dict[str, Any] = {
            "request_id": call.request_id,
            "path": call.path,
            "code": call.code,
            "route": route,
            "reason": call.decision.reason if call.decision else "",
            "engine": call.engine.name if call.engine else "",
            "seconds": round(seconds, 4),
            "completion_tokens": call.usage.completion_tokens if call.usage else None,
        }
        log.info("request", extra={"fields": fields})

    @contextmanager
    def _timed(self, stage: Stage) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._metrics.took(stage, time.perf_counter() - started)


async def _refused(answer: Answer) -> GatewayError:
    """What an engine's refusal means to the client."""
    told = openai.read_error_message(await answer.read())
    told = f": {told}" if told else ""
    if answer.status == 503:
        return Unavailable(
            f"the engine takes no more work now{told}", code="engine_busy", retry_after=_RETRY_AFTER_S
        )
    if answer.status in (401, 403):
        return EngineFailed("the engine refused the gateway's own key (pools.*.api_key)", code="engine_key")
    return EngineFailed(f"the engine failed with HTTP {answer.status}{told}", code="engine_error")
