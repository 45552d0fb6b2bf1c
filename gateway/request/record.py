"""Account: a request's record is put together, once, and everything that is written of it is made of that."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from gateway.errors import ClientLeft, GatewayError
from gateway.model import PageCounts, RequestRecord
from gateway.telemetry import access_log

if TYPE_CHECKING:
    from types import TracebackType

    from gateway.request.progress import RequestProgress
    from gateway.state.store import State
    from gateway.telemetry.metrics import Metrics

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
        access_log.write(record)


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
