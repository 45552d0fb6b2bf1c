"""A request's answer, piece by piece as it is read: text lines, table rows, or one JSON object."""

from __future__ import annotations

import itertools
import json
import re
from typing import TYPE_CHECKING

from gateway.engines.embedded.lines import Box, reading_order, rows
from gateway.engines.embedded.pairs import Piece, fill, find_pairs
from gateway.engines.embedded.pictures import decode
from gateway.engines.embedded.table_grid import CellText, Grid, Row, grid, html_row, markdown_row, records
from gateway.engines.embedded.text_forms import form_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gateway.engines.embedded.ocr_request import OcrRequest
    from gateway.engines.embedded.reader import Reader, TextPage

GREETING = "Send an image and I will read it."

_MARKDOWN = re.compile(r"\bmarkdown\b|\bmd\b", re.IGNORECASE)


def read_pieces(reader: Reader, request: OcrRequest, stopped: Callable[[], bool]) -> Iterator[str]:
    """Read a request's images, in order, and yield the answer's pieces.

    The first piece is empty and says that every image can be decoded: a refusal comes before it or not
    at all. When `stopped` turns true the answer ends where it is, within one detection or one line.

    Raises:
        BadImage: an image is truncated or corrupt.
    """
    if len(request.images) > 1:  # one page is held at a time, so several are decoded twice
        for data in itertools.takewhile(lambda _: not stopped(), request.images):
            decode(data)
    first, *others = request.images
    decoded = itertools.chain([decode(first)], map(decode, others))
    yield ""
    pages = map(reader.detect, itertools.takewhile(lambda _: not stopped(), decoded))
    if request.task == "key-value":
        yield _key_value(reader, pages, request, stopped)
        return
    read = _table if request.task == "table" else _text
    begun = False
    for page in pages:
        between = "\n\n" if begun else ""
        for piece in read(reader, page, request, stopped):
            yield between + piece
            between, begun = "", True


def _text(reader: Reader, page: TextPage, request: OcrRequest, stopped: Callable[[], bool]) -> Iterator[str]:
    form = form_of(request.prompt)
    begun = False
    for line in reading_order(page.boxes):
        text = " ".join(text for text in _read(reader, page, line, stopped) if text)
        if stopped():
            return
        if text:
            yield (form.between if begun else form.opening) + form.escape(text)
            begun = True
    if end := form.closing if begun else form.opening + form.closing:
        yield end


def _table(reader: Reader, page: TextPage, request: OcrRequest, stopped: Callable[[], bool]) -> Iterator[str]:
    table = grid(page.boxes)
    markdown = bool(_MARKDOWN.search(request.prompt))
    number = 0
    for number, row in enumerate(records(_table_lines(reader, page, table, stopped)), start=1):
        if markdown:
            rule = "\n|" + " --- |" * table.columns if number == 1 else ""
            yield ("\n" if number > 1 else "") + markdown_row(row, table.columns) + rule
        else:
            yield ("<table>" if number == 1 else "") + html_row(row, table.columns)
    if number and not markdown:
        yield "</table>"


def _table_lines(reader: Reader, page: TextPage, table: Grid, stopped: Callable[[], bool]) -> Iterator[Row]:
    for cells in table.lines:
        row = []
        for cell in cells:
            texts = _read(reader, page, cell.boxes, stopped)
            row.append(CellText(cell.column, cell.colspan, " ".join(text for text in texts if text)))
        if stopped():
            return
        if any(cell.text for cell in row):
            yield row


def _key_value(
    reader: Reader, pages: Iterable[TextPage], request: OcrRequest, stopped: Callable[[], bool]
) -> str:
    document: list[list[Piece]] = []
    offset = 0.0
    for page in pages:
        for line in rows(page.boxes):
            boxes = (page.boxes[index] for index in line)
            moved = (Box(box.left, box.top + offset, box.right, box.bottom + offset) for box in boxes)
            read = zip(moved, _read(reader, page, line, stopped), strict=False)
            document.append([Piece(box, text) for box, text in read if text])
        offset += max((box.bottom for box in page.boxes), default=0.0)
    found = find_pairs(document) if request.schema is None else fill(request.schema, document)
    return json.dumps(found, ensure_ascii=False)


def _read(
    reader: Reader, page: TextPage, indices: Sequence[int], stopped: Callable[[], bool]
) -> Iterator[str]:
    for index in indices:
        if stopped():
            return
        yield reader.recognise([page.crop(index)])[0]
