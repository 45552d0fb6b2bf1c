"""Tables in a page's markdown: taken out, and put into the form that is asked for."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

TableFormat = Literal["html", "markdown"]

_SUFFIXES: dict[TableFormat, str] = {"html": "html", "markdown": "md"}
# Longer tables keep the form they came in.
_MAX_CHARS = 256 * 1024
_MAX_SPAN = 50
# Spans make more of them than a text that long has: a few kilobytes of HTML could ask for gigabytes of pipes.
_MAX_CELLS = 64 * 1024

_TAG = re.compile(r"<(/?)table\b[^<>]*>", re.IGNORECASE)
_PIPE = re.compile(r"(?<!\\)\|")
_BREAK = re.compile(r"&lt;br ?/?&gt;", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table of a page: the name that its link has, and what it holds in which form."""

    id: str
    content: str
    format: TableFormat


def lift_tables(markdown: str, wanted: TableFormat) -> tuple[str, list[PageTable]]:
    """Take the tables, in HTML and in markdown, out of a page.

    Returns:
        The page with a link in the place of each, and the tables; one that is very long, has no cells or too
        many, or cannot be read is in the form it came in.
    """
    kept: list[str] = []
    tables: list[PageTable] = []
    at = 0
    for start, end, found in _spans(markdown):
        content, form = _in_form(markdown[start:end], found, wanted)
        name = f"tbl-{len(tables)}.{_SUFFIXES[form]}"
        kept += (markdown[at:start], f"[{name}]({name})")
        tables.append(PageTable(name, content, form))
        at = end
    return "".join((*kept, markdown[at:])), tables


def _spans(text: str) -> Iterator[tuple[int, int, TableFormat]]:
    """Yield where tables begin and end, in their order."""
    at = 0
    for start, end in _html_spans(text):
        yield from _markdown_spans(text, at, start)
        yield start, end, "html"
        at = end
    yield from _markdown_spans(text, at, len(text))


def _html_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield the outermost tables; one that is cut short is none."""
    depth = start = 0
    for tag in _TAG.finditer(text):
        if not tag[1]:
            start = start if depth else tag.start()
            depth += 1
        elif depth:
            depth -= 1
            if not depth:
                yield start, tag.end()


def _markdown_spans(text: str, start: int, end: int) -> Iterator[tuple[int, int, TableFormat]]:
    lines = text[start:end].split("\n")
    places = list(accumulate((len(line) + 1 for line in lines), initial=start))
    row = 0
    while row + 1 < len(lines):
        if "|" not in lines[row] or not _is_rule(lines[row + 1]):
            row += 1
            continue
        first, row = row, row + 2
        while row < len(lines) and "|" in lines[row]:
            row += 1
        yield places[first], places[row] - 1, "markdown"


def _is_rule(line: str) -> bool:
    """Whether a line stands between a table's head and its rows."""
    return "|" in line and "-" in line and not line.strip("|-: \t\r")


def _in_form(text: str, found: TableFormat, wanted: TableFormat) -> tuple[str, TableFormat]:
    if found == wanted or len(text) > _MAX_CHARS:
        return text, found
    if wanted == "html":
        return _as_html(_rows_of_markdown(text)), wanted
    rows = _rows_of_html(text)
    return (_as_markdown(rows), wanted) if any(rows) else (text, found)


def _rows_of_markdown(text: str) -> list[list[str]]:
    head, _, *body = text.split("\n")
    return [
        [cell.strip().replace("\\|", "|") for cell in _PIPE.split(_between(line))] for line in (head, *body)
    ]


def _between(line: str) -> str:
    """What stands between a row's outer pipes, where it has them."""
    inner = line.strip().removeprefix("|")
    return inner if inner.endswith("\\|") else inner.removesuffix("|")


def _as_html(rows: Sequence[Sequence[str]]) -> str:
    lines = []
    for number, row in enumerate(rows):
        tag = "td" if number else "th"
        cells = (_BREAK.sub("<br>", html.escape(cell, quote=False)) for cell in row)
        lines.append("<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in cells) + "</tr>")
    return "<table>" + "".join(lines) + "</table>"


@dataclass(slots=True)
class _Cell:
    columns: int
    rows: int
    words: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


class _Cells(HTMLParser):
    """Gathers a table's cells, row by row; those of a table within a cell are rows, too."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[_Cell]] = []
        self._cell: _Cell | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
            self._cell = None
        elif tag in ("td", "th"):
            given = dict(attrs)
            self._cell = _Cell(_span(given.get("colspan")), _span(given.get("rowspan")))
            if not self.rows:
                self.rows.append([])
            self.rows[-1].append(self._cell)
        elif tag == "br":
            self.handle_data(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._cell = None

    def handle_data(self, data: str) -> None:
        if self._cell:
            self._cell.words.append(data)


def _span(told: str | None) -> int:
    return min(int(told), _MAX_SPAN) if told and re.fullmatch("[1-9][0-9]{0,3}", told) else 1


def _rows_of_html(text: str) -> list[list[str]]:
    """Cells by row and column; one that spans several stands in the first, and leaves the others empty.

    There are none where that cannot be told, or would be too many.
    """
    parser = _Cells()
    try:
        parser.feed(text)
        parser.close()
    except (AssertionError, ValueError):  # of `<![` and of `&#` before thousands of digits
        return []
    grid: list[list[str]] = []
    width = 0
    below: dict[int, int] = {}  # columns that a cell further up still covers, and in how many rows
    for cells in parser.rows:
        line: list[str] = []
        for cell in cells:
            _cover(line, below)
            for column in range(cell.columns):
                below[len(line)] = cell.rows - 1
                line.append("" if column else cell.text)
            if len(line) > _MAX_CELLS:
                return []
        _cover(line, below)
        grid.append(line)
        width = max(width, len(line))
        if width * len(grid) > _MAX_CELLS:
            return []
    return grid


def _cover(line: list[str], below: dict[int, int]) -> None:
    while below.get(len(line)):
        below[len(line)] -= 1
        line.append("")


def _as_markdown(rows: Iterable[Sequence[str]]) -> str:
    filled = [row for row in rows if row]
    width = max(map(len, filled))
    lines = []
    for row in filled:
        cells = [cell.replace("|", "\\|") for cell in row] + [""] * (width - len(row))
        lines.append("| " + " | ".join(cells) + " |")
    lines.insert(1, "|" + " --- |" * width)
    return "\n".join(lines)
