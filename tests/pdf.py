"""PDFs as tests need them: plain ones with words on each page, and any that can be written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

LETTER = (612, 792)
_FONT = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>"
# The objects that every document here begins with: catalogue, page tree, font.
_FIRST = 4


def document(
    texts: Sequence[str], broken: Collection[int] = (), *, size: tuple[int, int] = LETTER, points: int = 18
) -> bytes:
    """Return a PDF with one page for each text, line by line; those of `broken` are listed and not there.

    Args:
        texts: Latin letters; one page each.
        broken: indices of pages that cannot be read.
        size: of each page, in points.
        points: the letters' height.
    """
    kids = b" ".join(b"%d 0 R" % (_FIRST + 2 * index) for index in range(len(texts)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Count %d /Kids [%s] >>" % (len(texts), kids),
        _FONT,
    ]
    for index, text in enumerate(texts):
        page = _page(size, _FIRST + 2 * index + 1)
        objects += [b"null" if index in broken else page, _written(text, size, points)]
    return written(objects)


def written(objects: Sequence[bytes], trailer: bytes = b"") -> bytes:
    """Return a PDF of objects, numbered from 1, of which the first is its catalogue.

    Args:
        objects: each as it stands between `obj` and `endobj`.
        trailer: further members of the trailer.
    """
    body = bytearray(b"%PDF-1.4\n")
    places = []
    for number, one in enumerate(objects, 1):
        places.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, one)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    size = len(objects) + 1
    return (
        bytes(body)
        + b"xref\n0 %d\n0000000000 65535 f \n%strailer\n<< /Size %d /Root 1 0 R %s >>\n"
        % (
            size,
            table,
            size,
            trailer,
        )
        + b"startxref\n%d\n%%%%EOF\n" % len(body)
    )


def _page(size: tuple[int, int], content: int) -> bytes:
    box = b"/MediaBox [0 0 %d %d]" % size
    return b"<< /Type /Page /Parent 2 0 R %s /Contents %d 0 R /Resources << /Font << /F1 3 0 R >> >> >>" % (
        box,
        content,
    )


def _written(text: str, size: tuple[int, int], points: int) -> bytes:
    margin = min(size) // 10
    lines = b" ".join(b"(%s) Tj T*" % _escaped(line) for line in text.split("\n"))
    words = b"BT /F1 %d Tf %d TL %d %d Td %s ET" % (
        points,
        points * 5 // 4,
        margin,
        size[1] - margin - points,
        lines,
    )
    return b"<< /Length %d >>\nstream\n%s\nendstream" % (len(words), words)


def _escaped(line: str) -> bytes:
    text = line.encode("cp1252", "replace")
    return text.replace(b"\\", rb"\\").replace(b"(", rb"\(").replace(b")", rb"\)")
