"""Account: what is known of a request so far, and the record of what became of it at its end."""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from gateway.errors import ClientLeft, GatewayError
from gateway.model import PageCounts, RequestRecord
from gateway.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from contextlib import AbstractContextManager
    from types import TracebackType

    from gateway.model import SortDecision, ToldSpeculation, Usage
    from gateway.policy.fail.retry import Failure
    from gateway.state.lease import Lease
    from gateway.state.quotas import QuotaUse
    from gateway.state.requests import MemoryClaim
    from gateway.state.store import State
    from gateway.telemetry.metrics import Metrics
    from gateway.telemetry.tracing import Trace

_NO_CONTEXT: Mapping[str, str] = MappingProxyType({})


class IncomingRequest(NamedTuple):
    """A request as it arrived.

    Attributes:
        path: the endpoint, on the gateway as on the engine.
        request_id: the client's own or a new one.
        started: when it arrived, by time.perf_counter.
        read: returns the body of at most so many bytes, counted as held in memory while it comes; raises
            BodyTooLarge, Unavailable or ClientLeft.
        route_header: the `x-ocr-route` header.
        content_type: the request's content type.
        may_come_late: it is taken even while the gateway drains.
        key: the name of the client's API key; empty where there are none.
        client: what shares are counted by: the key's name, else the address the request came from.
        context: its W3C trace context, as headers; empty where it has none.
        decision: its route, where that is decided already.
    """

    path: str
    request_id: str
    started: float
    read: Callable[[int, MemoryClaim], Awaitable[bytes]]
    route_header: str | None = None
    content_type: str = ""
    may_come_late: bool = False
    key: str = ""
    client: str = ""
    context: Mapping[str, str] = _NO_CONTEXT
    decision: SortDecision | None = None


@dataclass(slots=True)
class AnswerOutcome:
    """What an answer told while it went through; each attempt has its own.

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


@dataclass(slots=True)
class DocumentProgress:
    """How far a document is: pages to read, pages that failed, and requests sent for them."""

    pages: int = 0
    failed: int = 0
    requests: int = 0


@dataclass(slots=True)
class RequestProgress:
    """What is known of a request so far, which its headers and its record are made of.

    Attributes:
        incoming: the request as it arrived.
        context: the trace context that goes along to the engine.
        decision: its route, and why.
        held: what of it is in memory.
        quota: what books it on the key's limits; None of a document, whose pages are booked.
        image_bytes: of its images, decoded.
        waited_s: seconds in the queue, all attempts together.
        lease: the place on an engine of its last attempt.
        outcome: what the answer of that told.
        depths: at which each attempt's engine ran under the load that the attempt made.
        retried: how the attempts before the last failed.
        overhead: seconds that stages of the path took: `receive`, `fetch`, `sort`, `choose`, `forward`.
        status: of the answer that the client gets; 0 before there is one.
        trace: its spans; None where it is not traced.
        stage: returns a block to run a stage of that name in, which has a span where the request is traced.
        document: where it is one.
    """

    incoming: IncomingRequest
    context: Mapping[str, str] = field(init=False)
    decision: SortDecision | None = field(init=False)
    held: MemoryClaim = field(init=False)
    quota: QuotaUse | None = None
    image_bytes: int = 0
    waited_s: float = 0.0
    lease: Lease | None = None
    outcome: AnswerOutcome | None = None
    depths: tuple[int, ...] = ()
    retried: tuple[Failure, ...] = ()
    overhead: dict[str, float] = field(default_factory=dict)
    status: int = 0
    trace: Trace | None = None
    stage: Callable[[str], AbstractContextManager[object]] = nullcontext
    document: DocumentProgress | None = None

    def __post_init__(self) -> None:
        self.context = self.incoming.context
        self.decision = self.incoming.decision

    def begin_attempt(self, lease: Lease) -> AnswerOutcome:
        """Begin an attempt with a place on an engine; return where its outcome goes."""
        self.lease = lease
        self.depths += (lease.depth,)
        outcome = self.outcome = AnswerOutcome()
        return outcome

    def begin_trace(self, trace: Trace | None, context: Mapping[str, str]) -> None:
        """Have the request's stages traced, if it is, and the trace context go along to engines."""
        self.trace, self.context = trace, context
        if trace:
            self.stage = trace.stage

    def headers(self) -> dict[str, str]:
        """Return the headers that tell the client what is known by now."""
        known = {"x-request-id": self.incoming.request_id}
        if self.quota:
            known |= self.quota.headers()
        if self.decision:
            known |= {"x-ocr-route": self.decision.route, "x-ocr-route-reason": self.decision.reason}
        if self.lease:
            known |= {"x-ocr-pool": self.lease.engine.pool, "x-ocr-depth": str(self.lease.depth)}
        return known


CLIENT_LEFT = 499
# One that is refused on arrival has been in the queue for some microseconds.
_WAITED_S = 0.001


class Accounting:
    """A request from its receipt to its end, whatever that is: a context manager.

    While it is open its request counts as under way and may hold memory. Its end gives all of that back, and
    writes the request's record.
    """

    __slots__ = "_metrics", "_progress", "_state"

    def __init__(self, state: State, metrics: Metrics, progress: RequestProgress) -> None:
        self._state = state
        self._metrics = metrics
        self._progress = progress

    def __enter__(self) -> None:
        self._state.requests.open += 1
        self._progress.held = self._state.memory.claim(self._progress.incoming.client)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        progress = self._progress
        self._state.requests.open -= 1
        progress.held.close()
        if progress.quota:
            progress.quota.release()
        record = record_of(progress, error, at=time.time(), ended=time.perf_counter())
        _write(record, self._state, self._metrics)
        if progress.trace:
            progress.trace.end(record)
        logs.write_access(record)


def record_of(
    progress: RequestProgress, error: BaseException | None, *, at: float, ended: float
) -> RequestRecord:
    """Return what became of a request.

    Args:
        progress: what is known of it.
        error: what it ended with; None where it was answered.
        at: the time, in seconds since 1970.
        ended: the same moment by time.perf_counter.
    """
    incoming, lease, outcome, document = (
        progress.incoming,
        progress.lease,
        progress.outcome,
        progress.document,
    )
    code, error_code = final_status(progress, error)
    first_token_at = outcome.first_token_at if outcome else None
    sample = lease.trusted_sample() if lease else None
    # A document has no route of its own: its pages have.
    decision = None if document else progress.decision
    return RequestRecord(
        at=at,
        request_id=incoming.request_id,
        path=incoming.path,
        code=code,
        seconds=ended - incoming.started,
        error=error_code,
        key=incoming.key,
        route=decision.route if decision else "",
        reason=decision.reason if decision else "",
        pool=lease.engine.pool if lease else None,
        engine=lease.engine.name if lease else None,
        depth=lease.depth if lease else None,
        waited_s=progress.waited_s,
        first_token_s=first_token_at - incoming.started if first_token_at else None,
        usage=outcome.usage if outcome else None,
        speculation=sample.speculation if sample else None,
        speculation_source=sample.source if sample else None,
        acceptance_length=sample.length if sample else None,
        image_bytes=progress.image_bytes,
        depths=progress.depths,
        retried=progress.retried,
        overhead=progress.overhead,
        why=_why(progress, error_code),
        trace_id=progress.trace.trace_id if progress.trace else None,
        pages=PageCounts(document.pages, document.failed, document.requests) if document else None,
    )


def final_status(progress: RequestProgress, error: BaseException | None) -> tuple[int, str]:
    """Return the status that a request ends with, and the code of its error; empty where there is none.

    A client that leaves with all of its answer has had it. An answer whose stream told a failure has failed,
    whatever status went out before.
    """
    outcome = progress.outcome
    if isinstance(error, GatewayError):
        return error.status, error.code or ""
    if isinstance(error, (ClientLeft, asyncio.CancelledError)):
        if outcome is None or not outcome.ended:
            return CLIENT_LEFT, "client_left"
    elif error is not None:
        return 500, "internal_error"
    return (outcome.failed or progress.status, outcome.error) if outcome else (progress.status, "")


def _write(record: RequestRecord, state: State, metrics: Metrics) -> None:
    if record.pages and record.pages.requests:
        return  # its pages' requests have been counted
    metrics.finished(record)
    if state.fleet.config.auth.keys_file:
        state.quotas.count_request(record.key, record.code, record.image_bytes)
    if record.route:
        state.history.record_request(record)


def _why(progress: RequestProgress, error: str) -> str:
    """What the choice of an engine went by and what came between, or why there was none; how it failed."""
    words = [progress.lease.chosen_by] if progress.lease else []
    if progress.waited_s >= _WAITED_S:
        words.append("waited")
    words += [f"retried after {failure}" for failure in progress.retried]
    if error:
        words.append(error)
    return ", ".join(words)
