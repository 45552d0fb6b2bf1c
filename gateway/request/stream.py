"""Forward: a streamed answer on its way to the client, accounted for event by event."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from gateway.errors import EngineFailed, GatewayError, Unavailable
from gateway.policy.fail import retry
from gateway.policy.fail.breaker import Outcome
from gateway.policy.fail.retry import Failure
from gateway.state.requests import FULL
from gateway.wire import sse
from gateway.wire.openai.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

    from gateway.request.receive import EngineRequest
    from gateway.request.record import AnswerOutcome
    from gateway.state.lease import Lease
    from gateway.upstream.client import EngineResponse

# What a client should wait where an engine does not say.
RETRY_AFTER_S = 2
BUSY = "the engine takes no more work now"
ABORTED = "the engine broke the request off"
# A stream is over with its end mark; its connection is kept if the answer ends within so much, too.
_END_BYTES = 4096
_END_S = 1
# What comes of a stream before an event that tells of work is kept back until then, so many bytes of it.
_OPENING_BYTES = 64 * 1024


class AnswerStream:
    """The bytes of one streamed answer, without the usage chunk where the client did not ask for it.

    Comments keep a connection alive and are no sign of work, nor is an event that only says that a request
    was taken: time limits run from event to event.
    """

    def __init__(
        self, answer: EngineResponse, lease: Lease, outcome: AnswerOutcome, request: EngineRequest
    ) -> None:
        self._answer = answer
        self._lease = lease
        self._outcome = outcome
        self._request = request
        self._now = asyncio.get_running_loop().time
        self._splitter = sse.EventSplitter()
        self._steps = Steps()
        self._pending = 0
        self._until = answer.first_event_by
        self._opening = b""
        self._over = False
        self._read = request.dialect.read_chunk
        self._place = 0

    async def begin(self) -> None:
        """Read up to the first chunk of an answer that tells of work done, with all that came along with it.

        Raises:
            GatewayError: something else came, or nothing in time.
        """
        opening = b""
        while data := await self._answer.more(self._until):
            events = self._split(data)
            told = (sse.event_data(event) for event in events)
            chunks = (self._read(one) for one in told if one is not None)
            chunk = next((chunk for chunk in chunks if not chunk.is_prelude), None)
            if chunk is not None:
                # An error of the request's own is the engine's answer to it.
                if chunk.error_status == 503:  # vLLM's queue was full when it looked again
                    raise Unavailable(BUSY, code="engine_busy", retry_after=RETRY_AFTER_S)
                if chunk.is_error and not chunk.is_clients_error:
                    raise EngineFailed("the engine failed before it wrote anything", code="engine_error")
                if not (chunk.is_chunk or chunk.is_error):
                    break
                self._opening = opening + self._for_client(events)
                return
            opening += b"".join(events)
            if len(opening) > _OPENING_BYTES:
                break
        raise EngineFailed("the engine's stream does not begin with a completion", code="engine_garbage")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._opening:
            opening, self._opening = self._opening, b""
            return opening
        if self._over:
            raise StopAsyncIteration
        try:
            while not self._outcome.ended and (data := await self._answer.more(self._until)):
                if passed := self._process(data):
                    return passed
            self._over = True
            if last := await self._last():
                return last
        except GatewayError as error:
            self._over = True
            self._outcome.failed, self._outcome.error = error.status, error.code or ""
            # A document longer than the request's time is not the engine's fault, nor is our want of memory.
            if error.code not in ("total_timeout", FULL):
                self._lease.record_outcome(retry.blame(Failure.BROKEN_STREAM))
            return self._request.dialect.error_event(error, self._place + 1)
        raise StopAsyncIteration

    async def _last(self) -> bytes:
        """Return what is for the client of what came after the last whole event.

        Raises:
            EngineFailed: the stream ended without saying so.
        """
        outcome = self._outcome
        if outcome.ended:
            await self._answer.read_start(_END_BYTES, _END_S)
            return b""
        # An event without its blank line is none; but it may tell the usage, or the end.
        rest = self._splitter.rest()
        last = self._for_client([rest])
        if self._outcome.ended:
            return last
        if not outcome.failed:
            end = self._request.dialect.end
            raise EngineFailed(f"the engine's stream ended without {end}", code="engine_died")
        self._end()
        return b""

    def _process(self, data: bytes) -> bytes:
        """Account for what has come; return what of it is for the client."""
        steps = 0 if self._pending else self._steps.count(data)
        if not steps:
            return self._for_client(self._split(data))
        self._lease.record_activity()
        self._until = self._now() + self._request.timeouts.idle_s
        for _ in range(steps):
            self._lease.count_step()
        return data

    def _split(self, data: bytes) -> list[bytes]:
        """Return the events that are whole now; what waits for its end is counted as held."""
        events = self._splitter.feed(data)
        more = self._splitter.pending - self._pending
        self._pending += more
        if more > 0:
            self._request.held.add_answer(more)
        else:
            self._request.held.release(-more)
        return events

    def _for_client(self, events: Iterable[bytes]) -> bytes:
        return b"".join(event for event in events if self._passes(event))

    def _passes(self, event: bytes) -> bool:
        """Account for one event; tell whether the client gets it."""
        if self._outcome.ended:
            return False
        data = sse.event_data(event)
        if data is None:
            return True
        self._lease.record_activity()
        self._until = self._now() + self._request.timeouts.idle_s
        if data == sse.DONE:
            self._end()  # clients leave once they have it
            return True
        chunk = self._read(data)
        if chunk.is_aborted:
            raise EngineFailed(ABORTED, code="engine_died")
        if chunk.has_output and self._outcome.first_token_at is None:
            self._outcome.first_token_at = time.perf_counter()
        if chunk.is_step:
            self._lease.count_step()
            self._steps.learn(event)
        if chunk.is_uncountable:
            self._lease.mark_uncountable()
        if chunk.usage:
            self._outcome.usage, self._outcome.speculation = chunk.usage, chunk.speculation
        if chunk.is_error:
            self._outcome.failed = 400 if chunk.is_clients_error else EngineFailed.status
            self._outcome.error = "" if chunk.is_clients_error else "engine_error"
        if chunk.place:
            self._place = chunk.place
        if chunk.is_last:
            self._end()
        return not (self._request.strip_usage and chunk.is_usage_only)

    def _end(self) -> None:
        """Judge the engine, and free its place."""
        if self._outcome.ended:
            return
        self._outcome.ended = True
        if self._outcome.failed >= 500:
            self._lease.record_outcome(retry.blame(Failure.BROKEN_STREAM))
        elif not self._outcome.failed:
            self._lease.record_outcome(Outcome.SUCCESS)
        self._outcome.account(self._lease)
        self._lease.release()
