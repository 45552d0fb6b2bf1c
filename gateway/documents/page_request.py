"""A request about a document's pages: it takes every request's path, again where nobody could take it."""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, cast

from gateway.errors import BadRequest, EngineTooSlow, GatewayError, RateLimited
from gateway.request.record import IncomingRequest, RequestProgress
from gateway.wire import mistral

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from gateway.model import SortDecision
    from gateway.request.attempt import GatewayResponse
    from gateway.request.dispatch import Dispatcher
    from gateway.request.record import DocumentProgress
    from gateway.state.lease import Lease
    from gateway.state.requests import MemoryClaim
    from gateway.state.store import State

_CHAT = "/v1/chat/completions"
# It is tried so often where nobody could take it, or an engine failed; a limit of the key's delays only.
_TRIES = 3
_RETRIED = frozenset((429, 502, 503, 504))
_sleep = asyncio.sleep


class PageSender:
    """What the requests of one document have in common.

    Attributes:
        state: the engines, and the configuration served.
        dispatcher: takes requests along their path.
        document: the request that the document came with.
        counts: counts those that are sent.
        deadline: when all of them must be done, on the event loop's clock.
        rate_limited: held by the one that waits at a limit of the key's own: all at once would ask for the
            same place.
    """

    def __init__(
        self, state: State, dispatcher: Dispatcher, document: IncomingRequest, counts: DocumentProgress
    ) -> None:
        """Send none yet."""
        self.state = state
        self.dispatcher = dispatcher
        self.document = document
        self.counts = counts
        self.rate_limited = asyncio.Lock()
        self._now = asyncio.get_running_loop().time
        self._total_s = state.fleet.config.documents.total_s
        self.deadline = self._now() + self._total_s

    def check_time(self) -> None:
        """Raise EngineTooSlow once the deadline has passed."""
        if self._now() >= self.deadline:
            raise self.too_slow()

    def too_slow(self) -> EngineTooSlow:
        """Return the error of a document that has had its time."""
        words = f"the document took over {self._total_s:g} s (documents.total_s)"
        return EngineTooSlow(words, code="document_timeout")


class PageRequest:
    """One chat completion about pages of a document."""

    def __init__(self, sender: PageSender, suffix: str, decision: SortDecision | None) -> None:
        """Send nothing yet.

        Args:
            sender: the document's.
            suffix: tells its id from the document's others.
            decision: its route; None where it is sorted as any.
        """
        self._sender = sender
        self._suffix = suffix
        self._decision = decision
        self._progress: RequestProgress | None = None

    @property
    def lease(self) -> Lease | None:
        """The place on an engine that it had last."""
        return self._progress.lease if self._progress else None

    async def send(self, body: bytes) -> bytes:
        """Send it, again where nobody could take it; return its answer.

        Raises:
            GatewayError: there is none.
        """
        sender, failures = self._sender, 0
        while True:
            sender.check_time()
            failed: GatewayError
            turn: AbstractAsyncContextManager[None]
            try:
                async with asyncio.timeout_at(sender.deadline):
                    return await self._answer(body)
            except TimeoutError:
                raise sender.too_slow() from None
            except RateLimited as error:
                failed, turn = error.untraced(), sender.rate_limited
            except GatewayError as error:
                failures += 1
                if error.status not in _RETRIED or failures == _TRIES:
                    raise
                failed, turn = error.untraced(), nullcontext()
            try:
                async with asyncio.timeout_at(sender.deadline), turn:
                    await _sleep(failed.retry_after or failures)
            except TimeoutError:
                raise failed from None

    async def _answer(self, body: bytes) -> bytes:
        sender, decision, document = self._sender, self._decision, self._sender.document
        progress = self._progress = RequestProgress(
            IncomingRequest(
                path=_CHAT,
                request_id=f"{document.request_id}-{self._suffix}",
                started=time.perf_counter(),
                read=partial(_read, body),
                content_type="application/json",
                may_come_late=True,  # the document was taken before the gateway began to drain
                key=document.key,
                client=document.client,
                context=document.context,
                decision=decision,
            )
        )
        sender.counts.requests += 1
        if decision and decision.route not in sender.state.fleet.routes:
            raise BadRequest(f"the route {decision.route!r} is configured no more", code="unknown_route")
        responses: list[GatewayResponse] = []

        async def keep(response: GatewayResponse) -> None:
            responses.append(response)

        await sender.dispatcher.dispatch(progress, keep)
        (response,) = responses
        answer = cast("bytes", response.body)  # no stream was asked for
        if response.status >= 400:
            raise mistral.refusal(response.status, answer)
        return answer


async def _read(body: bytes, limit: int, held: MemoryClaim) -> bytes:
    """A page's request is there, and counted with its document."""
    return body
