"""What became of a page, as the client gets it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.wire.mistral.page_tables import lift_tables

if TYPE_CHECKING:
    from gateway.errors import GatewayError
    from gateway.model import SortDecision
    from gateway.wire.mistral.page_tables import TableFormat


@dataclass(frozen=True, slots=True)
class PageResult:
    """What became of a page.

    Attributes:
        index: its place in the document, from 0.
        text: what the engine read; empty where it failed.
        finish_reason: why the engine ended.
        size: width and height in pixels, and dots per inch, as the engine saw it; None where nobody did.
        decision: its route; None where it had none.
        pool: of the engine that read it.
        depth: at which that ran.
        acceptance_length: in tokens per step, where it is known.
        seconds: from its rendering to its end.
        error: why there is no text.
    """

    index: int
    text: str = ""
    finish_reason: str | None = None
    size: tuple[int, int, int] | None = None
    decision: SortDecision | None = None
    pool: str | None = None
    depth: int | None = None
    acceptance_length: float | None = None
    seconds: float = 0.0
    error: GatewayError | None = None


def page_object(page: PageResult, table_format: TableFormat | None) -> bytes:
    """Return what the client gets of a page."""
    told: dict[str, Any] = {"index": page.index, "markdown": page.text, "images": []}
    if table_format:
        told["markdown"], told["tables"] = lift_tables(page.text, table_format)
    told["dimensions"] = None
    if page.size:
        told["dimensions"] = dict(zip(("width", "height", "dpi"), page.size, strict=True))
    told["ocr"] = {
        "route": page.decision.route if page.decision else None,
        "reason": page.decision.reason if page.decision else None,
        "pool": page.pool,
        "depth": page.depth,
        "acceptance_length": page.acceptance_length,
        "finish_reason": page.finish_reason,
        "seconds": round(page.seconds, 3),
    }
    if page.error:
        told["error"] = error_object(page.error)
    return msgspec.json.encode(told)


def error_object(error: GatewayError) -> dict[str, str | None]:
    """Return what the client gets of an error that is not its whole answer."""
    return {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}
