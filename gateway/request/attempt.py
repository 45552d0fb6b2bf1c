"""One attempt at one engine: send, read up to the first byte for the client, then stream the rest."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.errors import EngineFailed, EngineTooSlow, GatewayError, Unavailable
from gateway.policy.fail import retry
from gateway.policy.fail.breaker import Outcome
from gateway.policy.fail.retry import Failure
from gateway.state.body_memory import FULL
from gateway.state.ledger import AnswerKind
from gateway.wire import openai, sse
from gateway.wire.openai.steps import Steps
from gateway.wire.vllm.engine import is_stopping

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
    from typing import Self

    from gateway.config import Timeouts
    from gateway.model import Buffer, ToldSpeculation, Usage
    from gateway.state.body_memory import MemoryClaim
    from gateway.state.lease import Lease
    from gateway.telemetry.tracing import Trace
    from gateway.upstream.client import EngineClient, EngineResponse
    from gateway.wire.openai.completion import Dialect

# What a client should wait where an engine does not say, and the longest that one may say.
RETRY_AFTER_S = 2
_LONGEST_S = 60
_SECONDS = re.compile(r"[0-9]{1,9}")

# What the client module's error codes say of the engine; its statuses are policy.retry's.
_FAILURES = {
    "engine_unreachable": Failure.UNREACHABLE,
    "connect_timeout": Failure.CONNECT_TIMEOUT,
    "engine_died": Failure.DIED,
    "engine_lost": Failure.LOST,
    "engine_garbage": Failure.GARBAGE,
    "answer_too_long": Failure.ERROR,
    "engine_busy": Failure.BUSY,
    "engine_error": Failure.BAD_GATEWAY,
    "engine_slow": Failure.SLOW,
    "engine_idle": Failure.SLOW,
    "total_timeout": Failure.SLOW,
}
# What is no engine's fault, and no other engine's to mend.
_OURS = ("no_sockets", FULL)
_BUSY = "the engine takes no more work now"
_STOPPING = "the engine shuts down"
_ABORTED = "the engine broke the request off"
_HANGS = "the engine hangs: it does not answer its health check"
# What is read of a refusal, for its words: its status has told the rest.
_REFUSAL_BYTES = 64 * 1024
_REFUSAL_S = 2
# A stream is over with its end mark; its connection is kept if the answer ends within so much, too.
_END_BYTES = 4096
_END_S = 1
# What comes of a stream before an event that tells of work is held back until then, so many bytes of it.
_HELD_BYTES = 64 * 1024
_UNTRACED = nullcontext()


@dataclass(slots=True)
class Job:
    """What is sent: a request that has been received and sorted.

    Attributes:
        path: the endpoint, on the gateway as on the engine.
        request_id: goes along to the engine.
        body: as the engine gets it, in pieces; empty once it will not be sent again.
        held: the account of what the request holds in memory.
        answer_bytes: the most bytes of an answer that is not streamed.
        stream: a stream is asked for.
        strip_usage: the usage chunk was the gateway's own wish, and not for the client.
        timeouts: the route's.
        merged: its stream's chunks carry several steps each, as the client wished.
        context: the client's trace context, as headers.
        dialect: how its answers are read.
        trace: the request's spans; None where it is not traced.
    """

    path: str
    request_id: str
    body: tuple[Buffer, ...]
    held: MemoryClaim
    answer_bytes: int
    stream: bool
    strip_usage: bool
    timeouts: Timeouts
    merged: bool = False
    context: Mapping[str, str] = field(default_factory=dict)
    dialect: Dialect = openai.COMPLETIONS
    trace: Trace | None = None

    def spent(self) -> None:
        """Let go of the body: an answer to it has begun, which may take long."""
        self.held.release(sum(map(len, self.body)))
        self.body = ()


@dataclass(slots=True)
class Outturn:
    """What an answer told while it went through.

    Attributes:
        usage: token counts.
        first_token_at: when the first output of a stream came, by time.perf_counter.
        failed: the status of a failure that the stream told; 0 where there was none.
        error: its code.
        ended: all of a stream is in, whether a failure or not.
        speculation: what the engine told of its drafts.
    """

    usage: Usage | None = None
    first_token_at: float | None = None
    failed: int = 0
    error: str = ""
    ended: bool = False
    speculation: ToldSpeculation = None

    def account(self, lease: Lease) -> None:
        """Tell the lease that the answer is complete, and what came of its speculation."""
        if not self.failed:
            lease.answer_complete(self.speculation, self.usage.completion_tokens if self.usage else 0)


@dataclass(frozen=True, slots=True)
class Reply:
    """What the client gets.

    Attributes:
        status: HTTP status.
        content_type: the engine's.
        retry_after: the Retry-After of a 429.
        body: whole, or a stream's as it comes.
        deadline: when the last byte must have gone out, on the event loop's clock.
    """

    status: int
    content_type: str
    retry_after: str | None
    body: bytes | AsyncIterator[bytes]
    deadline: float


class AttemptFailed(Exception):
    """An attempt's failure before anything has gone out: what it was, and what the client is told of it."""

    def __init__(self, failure: Failure, error: GatewayError) -> None:
        super().__init__(failure)
        self.failure = failure
        self.error = error
        self.code = error.code


async def attempt(
    client: EngineClient,
    job: Job,
    lease: Lease,
    outturn: Outturn,
    deadline: float,
    deliver: Callable[[Reply], Awaitable[None]],
) -> None:
    """Send a job to the engine of a lease; deliver the answer once its first byte for the client is there.

    Args:
        client: sends it.
        job: what is sent.
        lease: the place on the engine; hears of signs of life, and how the work went.
        outturn: filled while the answer goes through.
        deadline: when the answer must be complete, on the event loop's clock.
        deliver: passes the answer on; the engine is occupied until it is done.

    Raises:
        AttemptFailed: there is no such byte.
    """
    lease.request_sent(
        AnswerKind.WHOLE if not job.stream else AnswerKind.OPAQUE if job.merged else AnswerKind.STREAM
    )
    before = job.held.size
    answer: EngineResponse | None = None
    with job.trace.attempt(lease.engine, job.path) if job.trace else _UNTRACED as span:
        scope = asyncio.timeout(None)
        lease.on_lost = lambda: scope.reschedule(0)
        try:
            try:
                async with scope:
                    answer = await client.send(
                        lease.engine,
                        job.path,
                        job.body,
                        {
                            "Content-Type": "application/json",
                            "X-Request-Id": job.request_id,
                            **(span.context if span else job.context),
                        },
                        connect_s=job.timeouts.connect_s,
                        first_event_s=job.timeouts.first_event_s if job.stream else None,
                        deadline=deadline,
                    )
                    lease.record_activity()
                    if span:
                        span.answered(answer.status)
                    if failure := retry.failure_of(answer.status):
                        refusal = await _refusal(answer)
                        stopping = refusal.code == "engine_stopping"
                        raise AttemptFailed(Failure.STOPPING if stopping else failure, refusal)
                    reply = await _begin(job, answer, lease, outturn, deadline)
            except (GatewayError, TimeoutError) as error:
                told = error if isinstance(error, GatewayError) else EngineFailed(_HANGS, code="engine_lost")
                if told.code in _OURS:
                    raise
                job.held.release(job.held.size - before)
                raise AttemptFailed(_FAILURES.get(told.code or "", Failure.GARBAGE), told) from error
            finally:
                lease.on_lost = None
            if isinstance(reply.body, bytes):  # a stream is judged at its end
                # A client's own mistake says nothing of the engine.
                lease.record_outcome(Outcome.SUCCESS if answer.status < 400 else Outcome.NEUTRAL)
                lease.release()  # a slow reader keeps no engine's place
                answer.close()
                if span:
                    span.end()
            job.spent()
            await deliver(reply)
        finally:
            if answer:
                answer.close()


async def _begin(job: Job, answer: EngineResponse, lease: Lease, outturn: Outturn, deadline: float) -> Reply:
    """Read an answer up to the first byte for the client.

    Raises:
        GatewayError: it broke off before, or is no completion.
    """
    body: bytes | _Events
    if job.stream and answer.is_stream:
        body = _Events(answer, lease, outturn, job)
        await body.begin()
    else:
        body = await answer.read(job.answer_bytes, job.held.add_answer)
        if answer.status < 400:
            whole = job.dialect.read_answer(body)
            if whole is None:
                raise EngineFailed("the engine's answer is no completion", code="engine_garbage")
            if whole.is_aborted:
                raise EngineFailed(_ABORTED, code="engine_died")
            outturn.usage, outturn.speculation = whole.usage, whole.speculation
            outturn.account(lease)
    retry_after = answer.retry_after or str(RETRY_AFTER_S) if answer.status == 429 else None
    return Reply(answer.status, answer.content_type, retry_after, body, deadline)


class _Events:
    """One stream's events: accounts for each, and takes out the usage chunk the client did not ask for.

    Comments keep a connection alive and are no sign of work, nor is what only says that a request was taken:
    time limits run from event to event.
    """

    def __init__(self, answer: EngineResponse, lease: Lease, outturn: Outturn, job: Job) -> None:
        self._answer = answer
        self._lease = lease
        self._outturn = outturn
        self._job = job
        self._now = asyncio.get_running_loop().time
        self._splitter = sse.EventSplitter()
        self._steps = Steps()
        self._pending = 0
        self._until = answer.first_event_by
        self._opening = b""
        self._over = False
        self._read = job.dialect.read_chunk
        self._place = 0

    async def begin(self) -> None:
        """Read up to the first chunk of an answer that tells of work done, with all that came along with it.

        Raises:
            GatewayError: something else came, or nothing in time.
        """
        held = b""
        while data := await self._answer.more(self._until):
            events = self._split(data)
            told = (sse.event_data(event) for event in events)
            chunks = (self._read(one) for one in told if one is not None)
            chunk = next((chunk for chunk in chunks if not chunk.is_prelude), None)
            if chunk is not None:
                # An error of the request's own is the engine's answer to it.
                if chunk.error_status == 503:  # vLLM's queue was full when it looked again
                    raise Unavailable(_BUSY, code="engine_busy", retry_after=RETRY_AFTER_S)
                if chunk.is_error and not chunk.is_clients_error:
                    raise EngineFailed("the engine failed before it wrote anything", code="engine_error")
                if not (chunk.is_chunk or chunk.is_error):
                    break
                self._opening = held + self._for_client(events)
                return
            held += b"".join(events)
            if len(held) > _HELD_BYTES:
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
            while not self._outturn.ended and (data := await self._answer.more(self._until)):
                if passed := self._taken(data):
                    return passed
            self._over = True
            if last := await self._last():
                return last
        except GatewayError as error:
            self._over = True
            self._outturn.failed, self._outturn.error = error.status, error.code or ""
            # A document longer than the request's time is not the engine's fault, nor is our want of memory.
            if error.code not in ("total_timeout", FULL):
                self._lease.record_outcome(retry.blame(Failure.BROKEN_STREAM))
            return self._job.dialect.error_event(error, self._place + 1)
        raise StopAsyncIteration

    async def _last(self) -> bytes:
        """Return what is for the client of that behind the last whole event.

        Raises:
            EngineFailed: the stream ended without saying so.
        """
        outturn = self._outturn
        if outturn.ended:
            await self._answer.read_start(_END_BYTES, _END_S)
            return b""
        # An event without its blank line is none; but it may tell the usage, or the end.
        rest = self._splitter.rest()
        last = self._for_client([rest])
        if self._outturn.ended:
            return last
        if not outturn.failed:
            end = self._job.dialect.end
            raise EngineFailed(f"the engine's stream ended without {end}", code="engine_died")
        self._end()
        return b""

    def _taken(self, data: bytes) -> bytes:
        """Account for what has come; return what of it is for the client."""
        steps = 0 if self._pending else self._steps.count(data)
        if not steps:
            return self._for_client(self._split(data))
        self._lease.record_activity()
        self._until = self._now() + self._job.timeouts.idle_s
        for _ in range(steps):
            self._lease.count_step()
        return data

    def _split(self, data: bytes) -> list[bytes]:
        """Return the events that are whole now; what waits for its end is counted as held."""
        events = self._splitter.feed(data)
        more = self._splitter.pending - self._pending
        self._pending += more
        if more > 0:
            self._job.held.add_answer(more)
        else:
            self._job.held.release(-more)
        return events

    def _end(self) -> None:
        """Judge the engine, and free its place."""
        if self._outturn.ended:
            return
        self._outturn.ended = True
        if self._outturn.failed >= 500:
            self._lease.record_outcome(retry.blame(Failure.BROKEN_STREAM))
        elif not self._outturn.failed:
            self._lease.record_outcome(Outcome.SUCCESS)
        self._outturn.account(self._lease)
        self._lease.release()

    def _for_client(self, events: Iterable[bytes]) -> bytes:
        return b"".join(event for event in events if self._passes(event))

    def _passes(self, event: bytes) -> bool:
        """Account for one event; tell whether the client gets it."""
        if self._outturn.ended:
            return False
        data = sse.event_data(event)
        if data is None:
            return True
        self._lease.record_activity()
        self._until = self._now() + self._job.timeouts.idle_s
        if data == sse.DONE:
            self._end()  # clients leave once they have it
            return True
        chunk = self._read(data)
        if chunk.is_aborted:
            raise EngineFailed(_ABORTED, code="engine_died")
        if chunk.has_output and self._outturn.first_token_at is None:
            self._outturn.first_token_at = time.perf_counter()
        if chunk.is_step:
            self._lease.count_step()
            self._steps.learn(event)
        if chunk.is_uncountable:
            self._lease.mark_uncountable()
        if chunk.usage:
            self._outturn.usage, self._outturn.speculation = chunk.usage, chunk.speculation
        if chunk.is_error:
            self._outturn.failed = 400 if chunk.is_clients_error else EngineFailed.status
            self._outturn.error = "" if chunk.is_clients_error else "engine_error"
        if chunk.place:
            self._place = chunk.place
        if chunk.is_last:
            self._end()
        return not (self._job.strip_usage and chunk.is_usage_only)


async def _refusal(answer: EngineResponse) -> GatewayError:
    """What an engine's refusal means to the client."""
    told = openai.read_error_message(await answer.read_start(_REFUSAL_BYTES, _REFUSAL_S))
    if is_stopping(told):
        return Unavailable(_STOPPING, code="engine_stopping", retry_after=RETRY_AFTER_S)
    told = f": {told}" if told else ""
    if answer.status == 503:
        told_s = answer.retry_after or ""
        seconds = int(told_s) if _SECONDS.fullmatch(told_s) else RETRY_AFTER_S
        retry_after = min(max(seconds, 1), _LONGEST_S)
        return Unavailable(f"{_BUSY}{told}", code="engine_busy", retry_after=retry_after)
    if answer.status == 504:
        return EngineTooSlow(f"the engine ran out of time{told}", code="engine_slow")
    if answer.status in (401, 403):
        return EngineFailed("the engine refused the gateway's own key (pools.*.api_key)", code="engine_key")
    return EngineFailed(f"the engine failed with HTTP {answer.status}{told}", code="engine_error")
