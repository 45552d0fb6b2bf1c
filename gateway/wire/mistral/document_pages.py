"""A document by its bytes: what kind it is, which of its pages are read, how large each is rendered."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from gateway.errors import BadImage, BadRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.model import Buffer

DocumentKind = Literal["pdf", "tiff", "image"]

# 200 inches, the largest page that PDF knew for most of its life.
MAX_POINTS = 14_400
POINTS_PER_INCH = 72

# Where a PDF's mark may stand: some writers, and mail, put something before it.
_PDF, _PDF_BYTES = b"%PDF-", 1024
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_IMAGES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"BM")


def kind_of(data: Buffer, param: str) -> DocumentKind:
    """Return what a document is, by its first bytes.

    Raises:
        BadRequest: it is none that can be read here.
    """
    head = bytes(data[:_PDF_BYTES])
    if head.startswith(_TIFF):
        return "tiff"
    if head.startswith(_IMAGES) or (head.startswith(b"RIFF") and head[8:12] == b"WEBP"):
        return "image"
    if _PDF in head:
        return "pdf"
    what = "by its first bytes none of PDF, TIFF, JPEG, PNG, WebP, GIF and BMP" if head else "empty (0 bytes)"
    raise BadRequest(f"the document is {what}", param=param, code="invalid_document")


def chosen_pages(pages: Sequence[tuple[int, int]] | None, count: int, most: int) -> list[int]:
    """Return the pages to read, each once, in their order.

    Args:
        pages: ranges of them, first and last; None for all.
        count: how many the document has.
        most: how many may be read at once.

    Raises:
        BadRequest: there are none, one is not there, or they are too many.
    """
    if count < 1:
        raise BadRequest("the document has no pages", param="document", code="invalid_document")
    if pages and (last := max(last for _, last in pages)) >= count:
        raise BadRequest(
            f"`pages` asks for page {last:,}; the document has {count:,}, numbered from 0 to {count - 1:,}",
            param="pages",
            code="page_out_of_range",
        )
    spans: list[range] = []
    behind = 0
    for first, last in sorted(pages or ((0, count - 1),)):
        spans.append(range(max(first, behind), last + 1))
        behind = max(behind, last + 1)
    total = sum(map(len, spans))
    if total > most:
        raise BadRequest(
            f"{total:,} pages are asked for, of {count:,} in the document; at most {most:,} are read in one "
            f'request (documents.max_pages): choose them with `pages`, such as "0-{most - 1}"',
            param="pages",
            code="too_many_pages",
        )
    return [index for span in spans for index in span]


def page_scale(width: float, height: float, *, dpi: int, max_side: int, max_pixels: int) -> float:
    """Return the pixels per point at which a page is rendered.

    Args:
        width: in points.
        height: in points.
        dpi: dots per inch to render at, where the result is not
        max_side: longer than so many pixels, or has
        max_pixels: more of them in all.

    Raises:
        BadImage: its sides are out of bounds.
    """
    if not (0 < width <= MAX_POINTS and 0 < height <= MAX_POINTS):
        raise BadImage(
            f"the page is {width:g} x {height:g} points; each side may have up to {MAX_POINTS:,}",
            code="page_too_large",
        )
    # The library rounds up; a hair less, so that whole numbers of pixels stay so.
    most = (max_side - 0.01) / max(width, height)
    return min(dpi / POINTS_PER_INCH, most, math.sqrt(max_pixels / (width * height)))
