"""A document's answer: whole once all pages are done, or streamed page by page."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from gateway.errors import GatewayError, InternalError
from gateway.request.attempt import GatewayResponse
from gateway.request.record import AnswerOutcome
from gateway.wire import mistral, openai

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Self

    from gateway.documents.read_pages import PageReader
    from gateway.state.requests import MemoryClaim

log = logging.getLogger(__name__)

_EVENTS = "text/event-stream; charset=utf-8"
# Proxies close what is silent for a minute, some sooner.
_SILENT_S = 10.0
_SILENCE = b": wait\n\n"
# To send what is done.
SENDING_S = 600.0


async def whole(reader: PageReader, size: int, held: MemoryClaim) -> bytes:
    """Return all pages and what the client gets beside them.

    Args:
        reader: reads the pages.
        size: the document's, in bytes.
        held: counts what came of them.

    Raises:
        GatewayError: all failed, or there is no memory for what came of them.
    """
    pages: dict[int, bytes] = {}

    async def keep(index: int, page: bytes) -> None:
        held.add_answer(len(page))
        pages[index] = page

    await reader.run(keep)
    return mistral.whole_answer((pages[index] for index in reader.pages), reader.summary(size))


async def stream(
    reader: PageReader, size: int, answer: Callable[[GatewayResponse], Awaitable[None]]
) -> AnswerOutcome:
    """Send each page as it is done; return how the stream ended.

    Args:
        reader: reads the pages.
        size: the document's, in bytes.
        answer: sends the answer to the client.

    Raises:
        ClientLeft: there is nobody to answer.
    """
    feed = EventFeed()
    work = asyncio.create_task(_fill(feed, reader, size))
    try:
        await answer(GatewayResponse(200, _EVENTS, feed, reader.deadline + SENDING_S))
        return await work
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


class EventFeed:
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


async def _fill(feed: EventFeed, reader: PageReader, size: int) -> AnswerOutcome:
    async def send(index: int, page: bytes) -> None:
        await feed.put(mistral.event("ocr.page", page))

    outcome = AnswerOutcome()
    try:
        await feed.put(mistral.opened_event(reader.model, reader.pages))
        await reader.run(send)
        last = mistral.done_event(reader.summary(size))
    except GatewayError as error:
        last = _failed(error, outcome)
    except Exception:
        log.exception("a document failed unexpectedly")
        last = _failed(InternalError(), outcome)
    await feed.put(last)
    await feed.put(None)
    return outcome


def _failed(error: GatewayError, outcome: AnswerOutcome) -> bytes:
    outcome.failed, outcome.error = error.status, error.code or ""
    return mistral.event("error", openai.error_body(error))
