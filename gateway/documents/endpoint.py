"""Documents (POST /v1/ocr): received, opened, read page by page, answered."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from gateway.documents.answer_document import SENDING_S, stream, whole
from gateway.documents.open_document import OpenDocument
from gateway.documents.read_pages import PageReader
from gateway.documents.receive_document import chosen_route, receive
from gateway.documents.render_process import RenderSettings
from gateway.errors import Unavailable
from gateway.images.fair_limiter import FairLimiter
from gateway.request.admit import refuse_draining
from gateway.request.attempt import GatewayResponse
from gateway.request.record import Accounting, DocumentProgress
from gateway.wire import mistral

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from gateway.config import Config
    from gateway.documents.receive_document import ReceivedDocument
    from gateway.images.fetch import ImageFetcher
    from gateway.images.inspector import ImageInspector
    from gateway.request.dispatch import Dispatcher
    from gateway.request.record import RequestProgress
    from gateway.state.store import State
    from gateway.telemetry.metrics import Metrics

PATH = "/v1/ocr"
# How long a document waits for its turn, and how long its client should wait before it sends it again.
_PATIENCE_S = 30.0
_BUSY_RETRY_S = 5


class DocumentEndpoint:
    """Answers documents: its `dispatch` is as the Dispatcher's, to which each page then goes."""

    def __init__(
        self,
        state: State,
        dispatcher: Dispatcher,
        metrics: Metrics,
        vision: ImageInspector,
        fetcher: ImageFetcher,
        at_once: int,
    ) -> None:
        """Have none open yet.

        Args:
            state: the engines, and the configuration served.
            dispatcher: takes the pages' requests along their path.
            metrics: counts documents that are refused.
            vision: tells what a page looks like.
            fetcher: fetches documents that lie elsewhere.
            at_once: documents that may be open at a time, where the configuration does not say.
        """
        self._state = state
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._vision = vision
        self._fetcher = fetcher
        self._at_once = at_once
        # A document may take half an hour, one whose key is over its rate as well: no client has all turns.
        self._turns = FairLimiter(at_once, 0, reserved=1)

    async def dispatch(
        self, progress: RequestProgress, answer: Callable[[GatewayResponse], Awaitable[None]]
    ) -> None:
        """Answer one request.

        Args:
            progress: the request; what becomes of it is noted there.
            answer: sends the answer to the client.

        Raises:
            GatewayError: the document gets no answer: it is refused, or all of its pages failed.
            ClientLeft: there is nobody to answer.
        """
        state, incoming = self._state, progress.incoming
        counts = progress.document = DocumentProgress()
        with Accounting(state, self._metrics, progress):
            refuse_draining(state, self._metrics, incoming)
            fleet = state.fleet
            config = fleet.config
            received = await receive(progress, config, self._fetcher)
            request, size = received.request, len(received.data)
            progress.decision = chosen_route(incoming, request.model, fleet.sorting, config.model)
            settings = _render_settings(received, config)
            body: bytes | None = None
            async with self._turn(incoming.client), OpenDocument(received.data, settings) as document:
                del received  # the open document has it
                pages = mistral.chosen_pages(request.pages, document.pages, config.documents.max_pages)
                reader = PageReader(
                    state, self._dispatcher, self._vision, progress, counts, request, document, pages
                )
                if request.stream:
                    progress.outcome = await stream(reader, size, answer)
                    progress.status = 200
                else:
                    body = await whole(reader, size, progress.held)
            if body is not None:
                deadline = asyncio.get_running_loop().time() + SENDING_S
                await answer(GatewayResponse(200, "application/json", body, deadline))
                progress.status = 200

    @asynccontextmanager
    async def _turn(self, client: str) -> AsyncIterator[None]:
        at_once = self._state.fleet.config.documents.at_once or self._at_once
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
        began = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self._turns.charge(client, asyncio.get_running_loop().time() - began)
            self._turns.leave(client, 0)


def _render_settings(received: ReceivedDocument, config: Config) -> RenderSettings:
    limits = config.documents
    return RenderSettings(
        kind=mistral.kind_of(received.data, received.request.param),
        size=len(received.data),
        dpi=limits.dpi,
        max_side=limits.max_side,
        max_pixels=config.limits.image_pixels,
    )
