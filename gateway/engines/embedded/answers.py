"""A request's answer, piece by piece as it is read: text lines, table rows, or one JSON object."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.engines.embedded.filling import Unfillable, chosen, fill, fill_strictly
from gateway.engines.embedded.json_schema import NotUnderstood
from gateway.engines.embedded.lines import Box, reading_order, rows
from gateway.engines.embedded.pairs import Piece, find_pairs
from gateway.engines.embedded.pictures import decode
from gateway.engines.embedded.table_grid import CellText, Grid, Row, grid, html_row, markdown_row, records
from gateway.engines.embedded.text_forms import form_of
from gateway.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gateway.engines.embedded.constraints import Constraint, Tool
    from gateway.engines.embedded.ocr_request import OcrRequest
    from gateway.engines.embedded.pairs import Rows
    from gateway.engines.embedded.reader import Reader, TextPage

GREETING = "Send an image and I will read it."

_MARKDOWN = re.compile(r"\bmarkdown\b|\bmd\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CalledTool:
    """The tool that is called with the answer: comes before the answer's text."""

    name: str


def read_pieces(
    reader: Reader, request: OcrRequest, stopped: Callable[[], bool]
) -> Iterator[str | CalledTool]:
    """Read a request's images, in order, and yield the answer's pieces.

    Where nothing binds the answer, the first piece is empty and says that every image can be decoded; else
    nothing comes before all is read. A refusal comes before the first piece or not at all. When `stopped`
    turns true the answer ends where it is, within one detection or one line.

    Raises:
        BadImage: an image is truncated or corrupt.
        BadRequest: no answer that follows the request's constraint can be made of what was read.
    """
    if len(request.images) > 1:  # one page is held at a time, so several are decoded twice
        for data in itertools.takewhile(lambda _: not stopped(), request.images):
            decode(data)
    first, *others = request.images
    decoded = itertools.chain([decode(first)], map(decode, others))
    if not request.is_bound:
        yield ""
    pages = map(reader.detect, itertools.takewhile(lambda _: not stopped(), decoded))
    if request.task == "key-value":
        document = _document(reader, pages, stopped)
        if not stopped():
            yield from _of_document(request, document)
    elif request.is_bound:
        text = "".join(_written(reader, pages, request, stopped))
        if not stopped():
            yield _of_text(request.constraint, text)
    else:
        yield from _written(reader, pages, request, stopped)


def without_images(request: OcrRequest) -> Iterator[str | CalledTool]:
    """Yield the answer to a request without images: a greeting, or what follows its constraint.

    Raises:
        BadRequest: nothing does.
    """
    if request.task == "key-value" and (request.is_bound or request.constraint):
        yield from _of_document(request, [])
    elif request.is_bound:
        yield _of_text(request.constraint, "")
    else:
        yield GREETING


def _of_document(request: OcrRequest, document: Rows) -> Iterator[str | CalledTool]:
    """Yield a key-value answer, behind the tool that is called with it."""
    if request.tools:
        tool, value = _call(request.tools, document)
        yield CalledTool(tool)
    elif request.constraint and request.constraint.schema:
        try:
            value, _ = fill_strictly(request.constraint.schema, document)
        except (Unfillable, NotUnderstood) as error:
            raise BadRequest(
                f"`{request.constraint.param}`: {error}", param=request.constraint.param
            ) from error
    else:
        value = find_pairs(document) if request.schema is None else fill(request.schema, document)
    yield json.dumps(value, ensure_ascii=False)


def _call(tools: Sequence[Tool], document: Rows) -> tuple[str, object]:
    """Return the tool for whose arguments the page has the most, and these."""
    calls: list[tuple[int, str, object]] = []
    failed: list[str] = []
    for tool in tools:
        try:
            value, found = fill_strictly(tool.schema, document)
        except (Unfillable, NotUnderstood) as error:
            failed.append(f"{tool.name[:64]!r} cannot be called: {error}")
        else:
            calls.append((found, tool.name, value))
    if not calls:
        raise BadRequest("`tools`: " + "; ".join(failed[:3]), param="tools")
    _, name, value = max(calls, key=lambda call: call[0])
    return name, value


def _of_text(constraint: Constraint | None, text: str) -> str:
    """Return the answer that a text is under a constraint."""
    if constraint is None:
        return text
    if constraint.choices:
        choice = chosen(constraint.choices, text)
        if choice is not None:
            return choice
        wrong = "what the page says has none of the choices, or several"
    else:
        for found in (text, text.strip()):
            if constraint.pattern and constraint.pattern.found_in(found):
                return found
        wrong = "what the page says does not match the regular expression"
    raise BadRequest(f"`{constraint.param}`: {wrong}", param=constraint.param)


def _written(
    reader: Reader, pages: Iterable[TextPage], request: OcrRequest, stopped: Callable[[], bool]
) -> Iterator[str]:
    """Yield pages as text lines or table rows, with a blank line between two that have any."""
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


def _document(reader: Reader, pages: Iterable[TextPage], stopped: Callable[[], bool]) -> list[list[Piece]]:
    """Return all pages' rows, one page below the other."""
    document: list[list[Piece]] = []
    offset = 0.0
    for page in pages:
        for line in rows(page.boxes):
            boxes = (page.boxes[index] for index in line)
            moved = (Box(box.left, box.top + offset, box.right, box.bottom + offset) for box in boxes)
            read = zip(moved, _read(reader, page, line, stopped), strict=False)
            document.append([Piece(box, text) for box, text in read if text])
        offset += max((box.bottom for box in page.boxes), default=0.0)
    return document


def _read(
    reader: Reader, page: TextPage, indices: Sequence[int], stopped: Callable[[], bool]
) -> Iterator[str]:
    for index in indices:
        if stopped():
            return
        yield reader.recognise([page.crop(index)])[0]
