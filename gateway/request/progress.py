"""One request: what came of it from the client, and what has become of it so far."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from contextlib import AbstractContextManager

    from gateway.model import SortDecision, ToldSpeculation, Usage
    from gateway.policy.fail.retry import Failure
    from gateway.state.lease import Lease
    from gateway.state.quotas import QuotaUse
    from gateway.state.requests import MemoryClaim
    from gateway.telemetry.tracing import Trace

_UNTRACED = nullcontext()


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """A request as it arrived.

    Attributes:
        path: the endpoint, on the gateway as on the engine.
        request_id: the client's own or a new one.
        read: returns the body of at most so many bytes, counted as held in memory while it comes; raises
            BodyTooLarge, Unavailable or ClientLeft.
        route_header: the `x-ocr-route` header.
        content_type: the request's content type.
        may_come_late: it is taken even while the gateway drains.
        key: the name of the client's API key; empty where there are none.
        client: what shares are counted by: the key's name, else the address the request came from.
        context: its W3C trace context, as headers; empty where it has none.
        decision: its route, where that is decided already.
        started: when it arrived, by time.perf_counter.
    """

    path: str
    request_id: str
    read: Callable[[int, MemoryClaim], Awaitable[bytes]]
    route_header: str | None = None
    content_type: str = ""
    may_come_late: bool = False
    key: str = ""
    client: str = ""
    context: Mapping[str, str] = field(default_factory=dict)
    decision: SortDecision | None = None
    started: float = field(default_factory=time.perf_counter)


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

    def stage(self, name: str) -> AbstractContextManager[object]:
        """Return a block to run a stage in, which has a span where the request is traced."""
        return self.trace.stage(name) if self.trace else _UNTRACED

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
