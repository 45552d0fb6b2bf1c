"""Forward: one attempt at one engine, up to the answer's first byte for the client and on to its end."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.errors import EngineFailed, EngineRefused, EngineTooSlow, GatewayError, Unavailable
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
# What the client module logs itself.
_LOGGED = (Failure.UNREACHABLE, Failure.CONNECT_TIMEOUT)
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
        body: whole, or a stream's as it comes.
        deadline: when the last byte must have gone out, on the event loop's clock.
    """

    status: int
    content_type: str
    body: bytes | AsyncIterator[bytes]
    deadline: float


class AttemptFailed(Exception):
    """An attempt's failure before anything has gone out.

    Attributes:
        failure: what it was.
        error: what the client is told of it.
        response: what the client gets instead: the engine's own words, where they may be its own fault.
        told: what the log is told of it; empty where that has been told.
    """

    def __init__(
        self,
        failure: Failure,
        error: GatewayError,
        response: GatewayResponse | None = None,
        told: str = "",
    ) -> None:
        super().__init__(failure)
        self.failure = failure
        self.error = error
        self.code = error.code
        self.response = response
        self.told = told


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
                        start = await answer.read_start(_REFUSAL_BYTES, _REFUSAL_S)
                        raise _refused(
                            failure, answer.status, answer.retry_after, answer.content_type, start, deadline
                        )
                    response = await _begin(request, answer, lease, outcome, deadline)
            except AttemptFailed:
                request.held.release(request.held.size - before)
                raise
            except (GatewayError, TimeoutError) as error:
                told = error if isinstance(error, GatewayError) else EngineFailed(_HANGS, code="engine_lost")
                if told.code in _OURS:
                    raise
                request.held.release(request.held.size - before)
                failure = _FAILURES.get(told.code or "", Failure.GARBAGE)
                logged = "" if failure in _LOGGED else told.message
                raise AttemptFailed(failure, told, told=logged) from error
            finally:
                lease.on_lost = None
            if isinstance(response.body, bytes):  # a stream is judged at its end
                # A slow reader keeps no engine's place.
                lease.release(Outcome.SUCCESS)
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
        whole = request.dialect.read_answer(body)
        if whole is None:
            raise _no_completion(answer, body, deadline)
        if whole.is_aborted:
            raise EngineFailed(ABORTED, code="engine_died")
        outcome.usage, outcome.speculation = whole.usage, whole.speculation
        outcome.account(lease)
    return GatewayResponse(answer.status, answer.content_type, body, deadline)


def _no_completion(answer: EngineResponse, body: bytes, deadline: float) -> AttemptFailed:
    """Return what a 200 means that is none: some servers and proxies send their errors so."""
    status, content_type = openai.read_error_status(body), answer.content_type
    if failure := retry.failure_of(status) if status else None:
        return _refused(failure, status, None, content_type, body, deadline)
    message = openai.read_error_message(body)
    words = f": {message}" if message else ""
    error = EngineFailed(f"the engine's answer is no completion{words}", code="engine_garbage")
    told = f"no completion, but {openai.sketch(content_type, body)}"
    return AttemptFailed(Failure.GARBAGE, error, told=told)


def _refused(
    failure: Failure,
    status: int,
    retry_after: str | None,
    content_type: str,
    body: bytes,
    deadline: float,
) -> AttemptFailed:
    """Return what an engine's refusal means.

    Args:
        failure: what its status does.
        status: HTTP status.
        retry_after: the header.
        content_type: the header.
        body: its start.
        deadline: of the request.
    """
    message = openai.read_error_message(body)
    words = f": {message}" if message else ""
    told = f"HTTP {status}"  # not the engine's words, which may quote the request or a key
    if is_stopping(message):
        stopping = Unavailable(_STOPPING, code="engine_stopping", retry_after=RETRY_AFTER_S)
        return AttemptFailed(Failure.STOPPING, stopping)
    if failure is Failure.REJECTED:
        refused = EngineRefused(message or f"the engine refused it with HTTP {status}", status=status)
        if not openai.is_error_body(body):
            content_type, body = "application/json", openai.error_body(refused)
        return AttemptFailed(failure, refused, GatewayResponse(status, content_type, body, deadline), told)
    error: GatewayError
    if failure is Failure.BUSY:
        seconds = retry_after_s(retry_after)
        wait_s = RETRY_AFTER_S if seconds is None else min(max(seconds, 1), _LONGEST_S)
        error = Unavailable(f"{BUSY}{words}", code="engine_busy", retry_after=wait_s)
    elif failure is Failure.GATEWAY_TIMEOUT:
        error = EngineTooSlow(f"the engine ran out of time{words}", code="engine_slow")
    elif failure is Failure.KEY:
        error = EngineFailed("the engine refused the gateway's own key (pools.*.api_key)", code="engine_key")
    else:
        error = EngineFailed(f"the engine failed with HTTP {status}{words}", code="engine_error")
    return AttemptFailed(failure, error, told=told)
