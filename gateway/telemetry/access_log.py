"""The access log: a line for each request and each document, written from its record."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from gateway.telemetry.logs import Line

if TYPE_CHECKING:
    from gateway.model import PageCounts, RequestRecord

_LOG = logging.getLogger("gateway.access")
_REQUEST = Line(_LOG, "request")
_DOCUMENT = Line(_LOG, "document")


def write(record: RequestRecord) -> None:
    """Log what became of a request."""
    if record.pages:
        _write_document(record, record.pages)
        return
    seconds, length, usage = record.first_token_s, record.acceptance_length, record.usage
    _REQUEST.write(
        {
            "request_id": record.request_id,
            "path": record.path,
            "code": record.code,
            "key": record.key,
            "route": record.route,
            "reason": record.reason,
            "pool": record.pool or "",
            "engine": record.engine or "",
            "depth": record.depth,
            "seconds": round(record.seconds, 4),
            "waited": round(record.waited_s, 4) or None,
            "first_token": round(seconds, 4) if seconds else None,
            "completion_tokens": usage.completion_tokens if usage else None,
            "acceptance_length": round(length, 4) if length else None,
            "acceptance_source": record.speculation_source,
            "trace_id": record.trace_id,
        }
    )


def _write_document(record: RequestRecord, pages: PageCounts) -> None:
    fields: dict[str, object] = {
        "request_id": record.request_id,
        "path": record.path,
        "code": record.code,
        "key": record.key,
        "seconds": round(record.seconds, 4),
    }
    if pages.requests:  # which have lines of their own
        _DOCUMENT.write({**fields, "pages": pages.total, "failed": pages.failed})
    else:
        _REQUEST.write({**fields, "error": record.error})
