"""Forward: one attempt at one engine, up to the answer's first byte for the client and on to its end."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.errors import EngineFailed, EngineTooSlow, GatewayError, Unavailable
from gateway.policy.fail import retry
from gateway.policy.fail.breaker import Outcome
from gateway.policy.fail.retry import Failure
from gateway.request.stream import ABORTED, BUSY, RETRY_AFTER_S, AnswerStream
from gateway.state.ledger import AnswerKind
from gateway.state.requests import FULL
from gateway.wire import openai
from gateway.wire.http.retry_after import retry_after_s
from gateway.wire.vllm.engine import is_stopping

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from gateway.request.receive import EngineRequest
    from gateway.request.record import AnswerOutcome
    from gateway.state.lease import Lease
    from gateway.upstream.client import EngineClient, EngineResponse

# The longest that an engine may have a client wait.
_LONGEST_S = 60
# What the client module's error codes say of the engine; the status's meaning is policy.fail.retry's.
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
# What is no engine's fault, and what no other engine would mend.
_OURS = ("no_sockets", FULL)
_STOPPING = "the engine shuts down"
_HANGS = "the engine hangs: it does not answer its health check"
# What is read of a refusal, for its message: its status has told the rest.
_REFUSAL_BYTES = 64 * 1024
_REFUSAL_S = 2
_UNTRACED = nullcontext()


@dataclass(frozen=True, slots=True)
class GatewayResponse:
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
    request: EngineRequest,
    lease: Lease,
    outcome: AnswerOutcome,
    deadline: float,
    deliver: Callable[[GatewayResponse], Awaitable[None]],
) -> None:
    """Send a request to a lease's engine; deliver the answer once its first byte for the client is there.

    Args:
        client: sends it.
        request: what is sent.
        lease: the place on the engine; hears of signs of life, and how the work went.
        outcome: of this attempt alone; filled while the answer goes through.
        deadline: when the answer must be complete, on the event loop's clock.
        deliver: passes the answer on; the engine is occupied until it is done.

    Raises:
        AttemptFailed: there is no such byte.
        GatewayError: there is none, and no engine is to blame.
    """
    lease.request_sent(
        AnswerKind.WHOLE if not request.stream else AnswerKind.OPAQUE if request.merged else AnswerKind.STREAM
    )
    before = request.held.size
    answer: EngineResponse | None = None
    with request.trace.attempt(lease.engine, request.path) if request.trace else _UNTRACED as span:
        scope = asyncio.timeout(None)
        lease.on_lost = lambda: scope.reschedule(0)
        try:
            try:
                async with scope:
                    answer = await client.send(
                        lease.engine,
                        request.path,
                        request.body,
                        {
                            "Content-Type": "application/json",
                            "X-Request-Id": request.request_id,
                            **(span.context if span else request.context),
                        },
                        connect_s=request.timeouts.connect_s,
                        first_event_s=request.timeouts.first_event_s if request.stream else None,
                        deadline=deadline,
                    )
                    lease.record_activity()
                    if span:
                        span.answered(answer.status)
                    if answer.status != 200 and (failure := retry.failure_of(answer.status)):
                        refusal = await _refusal(answer)
                        stopping = refusal.code == "engine_stopping"
                        raise AttemptFailed(Failure.STOPPING if stopping else failure, refusal)
                    response = await _begin(request, answer, lease, outcome, deadline)
            except (GatewayError, TimeoutError) as error:
                told = error if isinstance(error, GatewayError) else EngineFailed(_HANGS, code="engine_lost")
                if told.code in _OURS:
                    raise
                request.held.release(request.held.size - before)
                raise AttemptFailed(_FAILURES.get(told.code or "", Failure.GARBAGE), told) from error
            finally:
                lease.on_lost = None
            if isinstance(response.body, bytes):  # a stream is judged at its end
                # A client's own mistake says nothing of the engine.
                # A slow reader keeps no engine's place.
                lease.release(Outcome.SUCCESS if answer.status < 400 else Outcome.NEUTRAL)
                answer.close()
                if span:
                    span.end()
            request.drop_body()
            await deliver(response)
        finally:
            if answer:
                answer.close()


async def _begin(
    request: EngineRequest, answer: EngineResponse, lease: Lease, outcome: AnswerOutcome, deadline: float
) -> GatewayResponse:
    """Read an answer up to the first byte for the client.

    Raises:
        GatewayError: it broke off before, or is no completion.
    """
    body: bytes | AnswerStream
    if request.stream and answer.is_stream:
        body = AnswerStream(answer, lease, outcome, request)
        await body.begin()
    else:
        body = await answer.read(request.answer_bytes, request.held.add_answer)
        if answer.status < 400:
            whole = request.dialect.read_answer(body)
            if whole is None:
                raise EngineFailed("the engine's answer is no completion", code="engine_garbage")
            if whole.is_aborted:
                raise EngineFailed(ABORTED, code="engine_died")
            outcome.usage, outcome.speculation = whole.usage, whole.speculation
            outcome.account(lease)
    retry_after = answer.retry_after or str(RETRY_AFTER_S) if answer.status == 429 else None
    return GatewayResponse(answer.status, answer.content_type, retry_after, body, deadline)


async def _refusal(answer: EngineResponse) -> GatewayError:
    """What an engine's refusal means to the client."""
    told = openai.read_error_message(await answer.read_start(_REFUSAL_BYTES, _REFUSAL_S))
    if is_stopping(told):
        return Unavailable(_STOPPING, code="engine_stopping", retry_after=RETRY_AFTER_S)
    told = f": {told}" if told else ""
    if answer.status == 503:
        seconds = retry_after_s(answer.retry_after)
        wait_s = RETRY_AFTER_S if seconds is None else min(max(seconds, 1), _LONGEST_S)
        return Unavailable(f"{BUSY}{told}", code="engine_busy", retry_after=wait_s)
    if answer.status == 504:
        return EngineTooSlow(f"the engine ran out of time{told}", code="engine_slow")
    if answer.status in (401, 403):
        return EngineFailed("the engine refused the gateway's own key (pools.*.api_key)", code="engine_key")
    return EngineFailed(f"the engine failed with HTTP {answer.status}{told}", code="engine_error")
