"""A document's pages are rendered and read, several at once, each by a request of its own."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from gateway.documents.page_request import PageRequest, PageSender
from gateway.errors import GatewayError, Unavailable
from gateway.model import Reason, SortDecision
from gateway.policy.sort import evidence
from gateway.policy.sort.prompts import KEY_VALUE
from gateway.request.dispatch import sort_by_image
from gateway.wire import mistral
from gateway.wire.image.headers import decoding_bytes
from gateway.wire.mistral import PageResult

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from gateway.documents.open_document import OpenDocument, PageImage
    from gateway.images.inspector import ImageInspector
    from gateway.request.dispatch import Dispatcher
    from gateway.request.record import DocumentProgress, RequestProgress
    from gateway.state.store import State
    from gateway.wire.mistral import DocumentRequest

    # Gets each page's number and object as it is done.
    Deliver = Callable[[int, bytes], Awaitable[None]]

# To take tables out of more characters takes longer than the event loop may be kept: up to 5 ms for each
# thousand.
_INLINE_CHARS = 8 * 1024
# Memory that is full of others' requests is waited for, this long and so often looked at.
_ROOM_S, _LOOK_S = 30.0, 0.25
# Pages that an annotation is made of, as in Mistral's API.
_ANNOTATED = 8
_ANNOTATE = "Fill in the JSON schema from the document."


class PageReader:
    """Reads one document's pages.

    Attributes:
        pages: those to read, by their numbers.
        model: the model that reads them.
        deadline: when all of them must be done, on the event loop's clock.
    """

    def __init__(
        self,
        state: State,
        dispatcher: Dispatcher,
        vision: ImageInspector,
        progress: RequestProgress,
        counts: DocumentProgress,
        request: DocumentRequest,
        document: OpenDocument,
        pages: Sequence[int],
    ) -> None:
        """Read nothing yet.

        Args:
            state: the engines, and the configuration served.
            dispatcher: takes the pages' requests along their path.
            vision: tells what a page looks like.
            progress: the document's; its decision is the route that the client chose, where it chose one.
            counts: counts pages that fail, and requests that are sent.
            request: what is asked for.
            document: renders the pages.
            pages: their numbers.
        """
        config = state.fleet.config
        self.pages = pages
        self.model = config.model
        counts.pages = len(pages)
        self._counts = counts
        self._sender = PageSender(state, dispatcher, progress.incoming, counts)
        self.deadline = self._sender.deadline
        self._now = asyncio.get_running_loop().time
        self._state = state
        self._vision = vision
        self._decision = progress.decision
        self._client = progress.incoming.client
        self._held = progress.held
        self._request = request
        self._document = document
        self._prompts = config.documents.prompts
        # A key that may have fewer requests at once would have the others refused.
        key = progress.incoming.key
        of_key = config.auth.limits.get(key) or config.auth.limits.get("*")
        most = (of_key and of_key.concurrent) or config.documents.concurrency
        self._slots = asyncio.Semaphore(min(most, config.documents.concurrency))
        self._errors: dict[int, GatewayError] = {}
        self._annotation: str | None = None
        self._annotation_error: GatewayError | None = None

    async def run(self, deliver: Deliver) -> None:
        """Read the pages; `deliver` gets each one's number and object as it is done.

        Raises:
            GatewayError: all failed; the first one's error.
        """
        try:
            async with asyncio.TaskGroup() as group:
                await self._send(group, deliver)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        if len(self._errors) == len(self.pages):
            raise self._errors[self.pages[0]]

    def summary(self, size: int) -> dict[str, object]:
        """Return what the client gets beside the pages, once they are done; `size` is the document's."""
        return mistral.summary(
            self.model,
            pages=len(self.pages) - len(self._errors),
            size=size,
            annotation=self._annotation,
            annotation_error=self._annotation_error,
        )

    async def _send(self, group: asyncio.TaskGroup, deliver: Deliver) -> None:
        """Render pages, one ahead of those that may be sent, and send them."""
        few = min(_ANNOTATED, self._state.fleet.config.limits.images_per_request, len(self.pages))
        annotated: list[PageImage] = []
        for place, index in enumerate(self.pages, 1):
            started = self._now()
            keep = place <= few and self._request.annotation is not None
            try:
                image = await self._rendered(index, times=2 if keep else 1)
            except GatewayError as error:
                seconds = self._now() - started
                await self._finish(PageResult(index, seconds=seconds, error=error.untraced()), deliver)
            else:
                if keep:
                    annotated.append(image)
                await self._slots.acquire()
                group.create_task(self._read(index, image, started, deliver))
            if place == few and annotated:
                group.create_task(self._annotate(annotated))

    async def _rendered(self, index: int, times: int) -> PageImage:
        """Return a page, counted as held so many times.

        Raises:
            GatewayError: it cannot be rendered, or not in time; or there is no room for it.
        """
        self._sender.check_time()
        try:
            async with asyncio.timeout_at(self.deadline):
                image = await self._document.page(index)
        except TimeoutError:
            raise self._sender.too_slow() from None
        until = min(self._now() + _ROOM_S, self.deadline)
        while True:
            try:
                self._held.add(_sent_bytes(image) * times)
            except Unavailable:
                if self._now() >= until:
                    raise
                await asyncio.sleep(_LOOK_S)
            else:
                return image

    async def _read(self, index: int, image: PageImage, started: float, deliver: Deliver) -> None:
        """Have a page read by an engine."""
        held = _sent_bytes(image)
        size = image.width, image.height, image.dpi
        text, finish_reason = "", None
        decision: SortDecision | None = None
        request: PageRequest | None = None
        failed: GatewayError | None = None
        try:
            url = mistral.image_url(image.jpeg)
            decision = await self._sort(url, image)
            del image
            body = mistral.chat_request(self.model, [url], self._prompt(decision.route))
            del url
            request = PageRequest(self._sender, f"p{index}", decision)
            text, finish_reason = mistral.read_text(await request.send(body))
        except GatewayError as error:
            failed = error.untraced()
        finally:
            self._held.release(held)
        lease = request.lease if request else None
        sample = lease.trusted_sample() if lease else None
        result = PageResult(
            index,
            text=text,
            finish_reason=finish_reason,
            size=size,
            decision=decision,
            pool=lease.engine.pool if lease else None,
            depth=lease.depth if lease else None,
            acceptance_length=sample.length if sample else None,
            seconds=self._now() - started,
            error=failed,
        )
        await self._finish(result, deliver)
        self._slots.release()  # not before: what a slow client has not read yet is kept

    async def _finish(self, result: PageResult, deliver: Deliver) -> None:
        if result.error:
            self._errors[result.index] = result.error
            self._counts.failed += 1
        make = partial(mistral.page_object, result, self._request.table_format)
        beside = self._request.table_format and len(result.text) > _INLINE_CHARS
        await deliver(result.index, await asyncio.to_thread(make) if beside else make())

    async def _annotate(self, images: list[PageImage]) -> None:
        """Have an annotation made of pages, which are given up."""
        held = sum(map(_sent_bytes, images))
        try:
            urls = [mistral.image_url(image.jpeg) for image in images]
            images.clear()
            prompt = self._request.annotation_prompt or _ANNOTATE
            body = mistral.chat_request(self.model, urls, prompt, self._request.annotation)
            del urls
            known = KEY_VALUE in self._state.fleet.routes
            decision = SortDecision(KEY_VALUE, Reason.STRUCTURE) if known else None
            answer = await PageRequest(self._sender, "annotation", decision).send(body)
            self._annotation, _ = mistral.read_text(answer)
        except GatewayError as error:
            self._annotation_error = error.untraced()
        finally:
            self._held.release(held)

    async def _sort(self, url: bytes, image: PageImage) -> SortDecision:
        """Return the client's route, or the one that a page looks like if there is a prompt for it."""
        if self._decision:
            return self._decision
        rules, prompts = self._state.fleet.sorting, self._prompts
        if not any(route in prompts for route in rules.routes if route != rules.default):
            return evidence.by_default(rules)
        weight = decoding_bytes("JPEG", image.width * image.height, scans=1)
        decision = await sort_by_image(url, weight, rules, self._vision, self._client)
        return decision if decision and decision.route in prompts else evidence.by_default(rules)

    def _prompt(self, route: str) -> str:
        prompts = self._prompts
        default = prompts.get(self._state.fleet.sorting.default) or next(iter(prompts.values()))
        return prompts.get(route, default)


def _sent_bytes(image: PageImage) -> int:
    """The bytes of a page in a request, as base64."""
    return len(image.jpeg) * 4 // 3
