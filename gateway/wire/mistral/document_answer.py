"""A document's answer: one JSON object, or the events of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gateway.wire.mistral.page_result import error_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gateway.errors import GatewayError


def summary(
    model: str, *, pages: int, size: int, annotation: str | None, annotation_error: GatewayError | None
) -> dict[str, Any]:
    """Return what the client gets beside the pages.

    Args:
        model: the configured model's name.
        pages: how many were read.
        size: the document's, in bytes.
        annotation: of the whole document, as the engine wrote it.
        annotation_error: why there is none although it was asked for.
    """
    told: dict[str, Any] = {"model": model, "document_annotation": annotation}
    if annotation_error:
        told["document_annotation_error"] = error_object(annotation_error)
    return {**told, "usage_info": {"pages_processed": pages, "doc_size_bytes": size}}


def whole_answer(pages: Iterable[bytes], rest: Mapping[str, Any]) -> bytes:
    """Return a whole answer: the pages' objects, and the summary behind them."""
    return b'{"pages":[%s],%s' % (b",".join(pages), msgspec.json.encode(rest)[1:])


def event(name: str, data: bytes) -> bytes:
    """Return an event of a stream; `data` is JSON, which has no line breaks here."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)


def opened_event(model: str, pages: Sequence[int]) -> bytes:
    """Return the event that says which pages will come."""
    return event("ocr.document", msgspec.json.encode({"model": model, "pages": pages}))


def done_event(rest: Mapping[str, Any]) -> bytes:
    """Return the event behind the last page, with the summary."""
    return event("ocr.done", msgspec.json.encode(rest))
