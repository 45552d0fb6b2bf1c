"""Documents (POST /v1/ocr): received, opened, and read page by page, each page a request of its own."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, cast

from gateway.documents.open_document import Page, Renderer
from gateway.documents.render_process import Settings
from gateway.errors import (
    BadImage,
    BadRequest,
    ClientLeft,
    EngineTooSlow,
    GatewayError,
    RateLimited,
    Unavailable,
)
from gateway.images.fair_limiter import FairLimiter
from gateway.images.fetch import refused
from gateway.model import Reason, SortDecision, SortFacts
from gateway.policy.sort import evidence
from gateway.policy.sort.prompts import KEY_VALUE
from gateway.request.attempt import Reply
from gateway.request.dispatch import CLIENT_LEFT, Call, alias_of, refuse_draining
from gateway.telemetry.logs import Line
from gateway.wire.image import remote_url
from gateway.wire.image.headers import decoding_bytes
from gateway.wire.mistral import ocr
from gateway.wire.openai.error_shape import error_body

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager
    from typing import Self

    from gateway.images.fetch import ImageFetcher
    from gateway.images.inspector import ImageInspector
    from gateway.request.dispatch import Dispatcher
    from gateway.state.body_memory import MemoryClaim
    from gateway.state.fleet import Fleet
    from gateway.state.store import State
    from gateway.telemetry.metrics import Metrics
    from gateway.wire.mistral.ocr import OcrRequest, PageResult

log = logging.getLogger(__name__)

PATH = "/v1/ocr"
_CHAT = "/v1/chat/completions"
_JSON, _FORM = "application/json", "multipart/form-data"
_EVENTS = "text/event-stream; charset=utf-8"

_LINE = Line(logging.getLogger("gateway.access"), "request")
_DOCUMENT = Line(logging.getLogger("gateway.access"), "document")
# What the parser finds wrong with a form is for its client, who is told.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)

# To read a larger body takes longer than the event loop may be kept.
_INLINE_BYTES = 1024 * 1024
# So does to take tables out of more characters: up to 5 ms for each thousand.
_INLINE_CHARS = 8 * 1024
# How long a document waits for its turn, and when it had better come back then.
_PATIENCE_S = 30.0
_BUSY_RETRY_S = 5
# A page is tried so often where nobody could take it, or an engine failed; a limit of the key's delays only.
_ATTEMPTS = 3
_AGAIN = frozenset((429, 502, 503, 504))
# Memory that is full of others' requests is waited for, this long and so often looked at.
_ROOM_S, _LOOK_S = 30.0, 0.25
# Pages that an annotation is made of, as in Mistral's API.
_ANNOTATED = 8
_ANNOTATE = "Fill in the JSON schema from the document."
# Proxies close what is silent for a minute, some sooner.
_SILENT_S = 10.0
_SILENCE = b": wait\n\n"
# To send what is done.
_SENDING_S = 600.0
_pause = asyncio.sleep
_BROKEN = GatewayError("the gateway failed unexpectedly; its log says how", code="internal_error")


class Documents:
    """Takes documents along their path: its `dispatch` is as Dispatcher's, which each page then takes.

    Attributes:
        state: the engines, and the configuration served.
        dispatcher: takes the pages' requests.
        vision: tells what a page looks like.
    """

    def __init__(
        self,
        state: State,
        dispatcher: Dispatcher,
        metrics: Metrics,
        vision: ImageInspector,
        fetcher: ImageFetcher,
        at_once: int,
    ) -> None:
        """Have none open yet; `at_once` are to be, where the configuration does not say."""
        self.state = state
        self.dispatcher = dispatcher
        self.vision = vision
        self._metrics = metrics
        self._fetcher = fetcher
        # A document may take half an hour, one whose key is over its rate as well: no client has all turns.
        self._at_once = at_once
        self._turns = FairLimiter(at_once, 0, reserved=1)

    async def dispatch(self, call: Call, answer: Callable[[Reply], Awaitable[None]]) -> None:
        """Answer one request.

        Args:
            call: the request; its decision is the route that the client chose, where it chose one.
            answer: sends the answer to the client.

        Raises:
            GatewayError: the document gets no answer: it is refused, or all of its pages failed.
            ClientLeft: there is nobody to answer.
        """
        state = self.state
        state.requests.begin()
        call.held = state.memory.claim(call.client)
        reading: _Reading | None = None
        whole: bytes | None = None
        failed: GatewayError | None = None
        try:
            refuse_draining(state, self._metrics, call)
            fleet = state.fleet
            request = await self._receive(call, fleet)
            call.decision = _chosen_route(call, request, fleet)
            settings = _settings(request, fleet)
            async with self._turn(call.client), Renderer(request.data or b"", settings) as renderer:
                request.data = None  # the renderer has it
                pages = ocr.chosen(request.pages, renderer.pages, fleet.config.documents.max_pages)
                reading = _Reading(self, call, request, pages, renderer, settings.size)
                if request.stream:
                    failed = await _streamed(reading, answer)
                else:
                    whole = await _whole(reading, call.held)
            if whole is not None:
                await answer(Reply(200, _JSON, None, whole, asyncio.get_running_loop().time() + _SENDING_S))
            call.code, call.error = (failed.status, failed.code or "") if failed else (200, "")
        except GatewayError as error:
            call.code, call.error = error.status, error.code or ""
            raise
        except (ClientLeft, asyncio.CancelledError):
            call.code, call.error = CLIENT_LEFT, "client_left"
            raise
        except BaseException:
            call.code, call.error = _BROKEN.status, _BROKEN.code or ""
            raise
        finally:
            state.requests.end()
            call.held.close()
            self._account(call, reading)

    async def _receive(self, call: Call, fleet: Fleet) -> OcrRequest:
        """Return what is asked for, with its document."""
        kind = call.content_type.partition(";")[0].strip().lower()
        if kind not in (_JSON, _FORM):
            raise BadRequest(
                f"the content type must be {_JSON} or {_FORM}", param="content-type", code="bad_content_type"
            )
        body = await call.read(fleet.config.limits.body_bytes, call.held)
        parse = partial(ocr.parse_json, body)
        if kind == _FORM:
            parse = partial(ocr.parse_form, body, call.content_type)
        request = parse() if len(body) <= _INLINE_BYTES else await asyncio.to_thread(parse)
        if request.url is not None:
            request.data = await self._fetched(call, request.url, request.param)
        else:
            call.held.add(len(request.data or b""))
        call.held.release(len(body))
        return request

    async def _fetched(self, call: Call, raw: bytes, param: str) -> bytes:
        try:
            url = remote_url.parse_remote(raw)
            if url is None:
                raise refused("its URL is no plain http(s) URL: ASCII, a host, no credentials")
            self._fetcher.check(url)
            return await self._fetcher.fetch(url, call.client, call.held.add)
        except BadImage as error:
            error.message, error.param = f"`{param}`: {error.message}", param
            raise

    @asynccontextmanager
    async def _turn(self, client: str) -> AsyncIterator[None]:
        at_once = self.state.fleet.config.documents.at_once or self._at_once
        self._turns.resize(at_once)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._turns.enter(client, 0)
        except TimeoutError:
            self._metrics.shed("", "documents_busy")
            raise Unavailable(
                f"{at_once:,} documents are open already, or as many as one client may have: one fewer "
                "(documents.at_once); retry shortly",
                code="documents_busy",
                retry_after=_BUSY_RETRY_S,
            ) from None
        try:
            yield
        finally:
            self._turns.leave(client, 0)

    def _account(self, call: Call, reading: _Reading | None) -> None:
        """Log the document; what none of its pages accounts for counts as a request of its own."""
        seconds = time.perf_counter() - call.started
        fields = {
            "request_id": call.request_id,
            "path": call.path,
            "code": call.code,
            "key": call.key,
            "seconds": round(seconds, 4),
        }
        if reading and reading.asked:
            _DOCUMENT.write({**fields, "pages": len(reading.pages), "failed": len(reading.errors)})
            return
        self._metrics.finished(
            route="", pool="", code=call.code, seconds=seconds, waited_s=None, first_token_s=None, usage=None
        )
        self.state.quotas.count_request(call.key, call.code)
        _LINE.write({**fields, "error": call.error})


class _Reading:
    """One document being read.

    Attributes:
        pages: those to read, by their numbers.
        errors: why pages failed, by page.
        asked: requests sent.
        deadline: when all of it must be done, on the event loop's clock.
    """

    def __init__(
        self,
        documents: Documents,
        call: Call,
        request: OcrRequest,
        pages: Sequence[int],
        renderer: Renderer,
        size: int,
    ) -> None:
        config = documents.state.fleet.config
        self.pages = pages
        self.errors: dict[int, GatewayError] = {}
        self.asked = 0
        self._now = asyncio.get_running_loop().time
        self.deadline = self._now() + config.documents.total_s
        self._documents = documents
        self._state = documents.state
        self._call = call
        self._held = call.held
        self._request = request
        self._renderer = renderer
        self._limits = config.documents
        self._size = size
        # A key that may have fewer requests at once would have the others refused.
        of_key = config.auth.limits.get(call.key) or config.auth.limits.get("*")
        most = (of_key and of_key.concurrent) or config.documents.concurrency
        self._slots = asyncio.Semaphore(min(most, config.documents.concurrency))
        self._rate_limited = asyncio.Lock()
        self._annotation: str | None = None
        self._annotation_error: GatewayError | None = None

    @property
    def model(self) -> str:
        """The model that reads it."""
        return self._state.fleet.config.model

    async def run(self, done: Callable[[int, bytes], Awaitable[None]]) -> None:
        """Read the pages; `done` gets each one's number and object as it is done.

        Raises:
            GatewayError: all failed; the first one's error.
        """
        try:
            async with asyncio.TaskGroup() as group:
                await self._send(group, done)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        if len(self.errors) == len(self.pages):
            raise self.errors[self.pages[0]]

    def told(self) -> dict[str, object]:
        """Return what is told beside the pages, once they are done."""
        return ocr.result(
            self.model,
            pages=len(self.pages) - len(self.errors),
            size=self._size,
            annotation=self._annotation,
            annotation_error=self._annotation_error,
        )

    async def _send(self, group: asyncio.TaskGroup, done: Callable[[int, bytes], Awaitable[None]]) -> None:
        """Render pages, one ahead of those that may be sent, and send them."""
        few = min(_ANNOTATED, self._state.fleet.config.limits.images_per_request, len(self.pages))
        kept: list[Page] = []  # for the annotation
        for place, index in enumerate(self.pages, 1):
            started, told = self._now(), ocr.PageResult(index)
            keep = place <= few and self._request.annotation is not None
            try:
                page = await self._rendered(index, times=2 if keep else 1)
            except GatewayError as error:
                told.error = error
                await self._finish(told, started, done)
            else:
                if keep:
                    kept.append(page)
                await self._slots.acquire()
                group.create_task(self._read(page, told, started, done))
            if place == few and kept:
                group.create_task(self._annotate(kept))

    async def _rendered(self, index: int, times: int) -> Page:
        """Return a page, counted as held so many times.

        Raises:
            GatewayError: it cannot be rendered, or not in time; or there is no room for it.
        """
        self._check_time()
        try:
            async with asyncio.timeout_at(self.deadline):
                page = await self._renderer.page(index)
        except TimeoutError:
            raise self._too_slow() from None
        until = min(self._now() + _ROOM_S, self.deadline)
        while True:
            try:
                self._held.add(_as_text(page) * times)
            except Unavailable:
                if self._now() >= until:
                    raise
                await asyncio.sleep(_LOOK_S)
            else:
                return page

    async def _read(
        self, page: Page, told: PageResult, started: float, done: Callable[[int, bytes], Awaitable[None]]
    ) -> None:
        """Have a page read by an engine."""
        held = _as_text(page)
        calls: list[Call] = []
        try:
            told.size = page.width, page.height, page.dpi
            url = ocr.image_url(page.jpeg)
            told.decision = await self._sorted(url, page)
            del page
            body = ocr.chat_request(self.model, [url], self._prompt(told.decision.route))
            del url
            reply = await self._ask(f"p{told.index}", body, told.decision, calls.append)
            told.text, told.finish_reason = ocr.read_text(reply)
        except GatewayError as error:
            told.error = error
        finally:
            self._held.release(held)
        lease = calls[-1].lease if calls else None
        if lease:
            sample = lease.trusted_sample()
            told.pool, told.depth = lease.engine.pool, lease.depth
            told.acceptance_length = sample.speculation.length if sample else None
        await self._finish(told, started, done)
        self._slots.release()  # not before: what a slow client has not read yet is kept

    async def _finish(
        self, told: PageResult, started: float, done: Callable[[int, bytes], Awaitable[None]]
    ) -> None:
        told.seconds = self._now() - started
        if told.error:
            self.errors[told.index] = told.error
        make = partial(ocr.page_object, told, self._request.table_format)
        beside = self._request.table_format and len(told.text) > _INLINE_CHARS
        await done(told.index, await asyncio.to_thread(make) if beside else make())

    async def _annotate(self, pages: list[Page]) -> None:
        """Have an annotation made of pages, which are given up."""
        held = sum(map(_as_text, pages))
        try:
            urls = [ocr.image_url(page.jpeg) for page in pages]
            pages.clear()
            text = self._request.annotation_prompt or _ANNOTATE
            body = ocr.chat_request(self.model, urls, text, self._request.annotation)
            del urls
            known = KEY_VALUE in self._state.fleet.routes
            decision = SortDecision(KEY_VALUE, Reason.STRUCTURE) if known else None
            self._annotation, _ = ocr.read_text(await self._ask("annotation", body, decision, lambda _: None))
        except GatewayError as error:
            self._annotation_error = error
        finally:
            self._held.release(held)

    async def _sorted(self, url: bytes, page: Page) -> SortDecision:
        """Return the client's route, or the one that a page looks like if there is a prompt for it."""
        if self._call.decision:
            return self._call.decision
        rules, prompts = self._state.fleet.sorting, self._limits.prompts
        if not any(route in prompts for route in rules.routes if route != rules.default):
            return evidence.by_default(rules)
        weight = decoding_bytes("JPEG", page.width * page.height, scans=1)
        guess = await self._documents.vision.guess(url, weight=weight, client=self._call.client)
        decision = evidence.sort_by_layout(guess, rules) if guess else evidence.by_default(rules)
        return decision if decision.route in prompts else evidence.by_default(rules)

    def _prompt(self, route: str) -> str:
        prompts = self._limits.prompts
        default = prompts.get(self._state.fleet.sorting.default) or next(iter(prompts.values()))
        return prompts.get(route, default)

    async def _ask(
        self, suffix: str, body: bytes, decision: SortDecision | None, tried: Callable[[Call], None]
    ) -> bytes:
        """Send a request along the path, again where nobody could take it; return its answer.

        Args:
            suffix: tells it from the document's others.
            body: a chat completion's.
            decision: its route; None where it is sorted as any.
            tried: hears of each attempt.

        Raises:
            GatewayError: there is none.
        """
        failures = 0
        while True:
            self._check_time()
            call = Call(
                path=_CHAT,
                request_id=f"{self._call.request_id}-{suffix}",
                read=partial(_given, body),
                content_type=_JSON,
                kept=True,  # the document was taken before the gateway began to drain
                key=self._call.key,
                client=self._call.client,
                context=self._call.context,
                decision=decision,
            )
            tried(call)
            self.asked += 1
            failed: GatewayError
            line: AbstractAsyncContextManager[None]
            try:
                async with asyncio.timeout_at(self.deadline):
                    return await self._answered(call)
            except TimeoutError:
                raise self._too_slow() from None
            except RateLimited as error:
                failed, line = error, self._rate_limited
            except GatewayError as error:
                failures += 1
                if error.status not in _AGAIN or failures == _ATTEMPTS:
                    raise
                failed, line = error, nullcontext()
            try:
                # One behind the other at a limit of the key's own: all at once would ask for the same place.
                async with asyncio.timeout_at(self.deadline), line:
                    await _pause(failed.retry_after or failures)
            except TimeoutError:
                raise failed from None

    async def _answered(self, call: Call) -> bytes:
        replies: list[Reply] = []

        async def keep(reply: Reply) -> None:
            replies.append(reply)

        if call.decision and call.decision.route not in self._state.fleet.routes:
            raise BadRequest(f"the route {call.decision.route!r} is configured no more", code="unknown_route")
        await self._documents.dispatcher.dispatch(call, keep)
        (reply,) = replies
        body = cast("bytes", reply.body)  # no stream was asked for
        if reply.status >= 400:
            raise ocr.refusal(reply.status, body, reply.retry_after)
        return body

    def _check_time(self) -> None:
        if self._now() >= self.deadline:
            raise self._too_slow()

    def _too_slow(self) -> EngineTooSlow:
        total_s = self._limits.total_s
        words = f"the document took over {total_s:g} s (documents.total_s)"
        return EngineTooSlow(words, code="document_timeout")


class _Feed:
    """A document's events as they come, and a comment where none does for a while."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[bytes | None] = asyncio.Queue(1)

    async def put(self, event: bytes | None) -> None:
        """Hand an event on once the one before is on its way; None ends them."""
        await self._events.put(event)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            async with asyncio.timeout(_SILENT_S):
                event = await self._events.get()
        except TimeoutError:
            return _SILENCE
        if event is None:
            raise StopAsyncIteration
        return event


async def _whole(reading: _Reading, held: MemoryClaim) -> bytes:
    """Return all pages and what is told beside them.

    Raises:
        GatewayError: all failed, or there is no memory for what came of them.
    """
    kept: dict[int, bytes] = {}

    async def keep(index: int, page: bytes) -> None:
        held.add_answer(len(page))
        kept[index] = page

    await reading.run(keep)
    return ocr.whole((kept[index] for index in reading.pages), reading.told())


async def _streamed(reading: _Reading, answer: Callable[[Reply], Awaitable[None]]) -> GatewayError | None:
    """Tell of each page as it is done; return the error that it ended with, if it did."""
    feed = _Feed()
    work = asyncio.create_task(_fill(feed, reading))
    try:
        await answer(Reply(200, _EVENTS, None, feed, reading.deadline + _SENDING_S))
        return await work
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def _fill(feed: _Feed, reading: _Reading) -> GatewayError | None:
    async def tell(index: int, page: bytes) -> None:
        await feed.put(ocr.event("ocr.page", page))

    failed: GatewayError | None = None
    try:
        await feed.put(ocr.opened_event(reading.model, reading.pages))
        await reading.run(tell)
    except GatewayError as error:
        failed = error
    except Exception:
        log.exception("a document failed unexpectedly")
        failed = _BROKEN
    await feed.put(ocr.event("error", error_body(failed)) if failed else ocr.done_event(reading.told()))
    await feed.put(None)
    return failed


async def _given(body: bytes, limit: int, held: MemoryClaim) -> bytes:
    """A page's request is there, and counted with its document."""
    return body


def _as_text(page: Page) -> int:
    """The bytes of a page in a request."""
    return len(page.jpeg) * 4 // 3


def _chosen_route(call: Call, request: OcrRequest, fleet: Fleet) -> SortDecision | None:
    """The route that the client chose for all pages.

    Raises:
        UnknownModel: neither the model nor an alias is named.
        BadRequest: there is no such route.
    """
    alias = alias_of(request.model, fleet.config.model)
    if alias is None and call.route_header is None:
        return None
    return evidence.sort(SortFacts(header=call.route_header, alias=alias), fleet.sorting)


def _settings(request: OcrRequest, fleet: Fleet) -> Settings:
    data, limits = request.data or b"", fleet.config.documents
    return Settings(
        kind=ocr.kind_of(data, request.param),
        size=len(data),
        dpi=limits.dpi,
        max_side=limits.max_side,
        max_pixels=fleet.config.limits.image_pixels,
    )
