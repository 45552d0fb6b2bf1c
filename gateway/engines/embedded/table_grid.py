"""Text boxes to a table: a grid from geometry alone, written as HTML or Markdown row by row."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gateway.engines.embedded.lines import Box, rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_OVER = 0.25  # share of the narrower from which a box counts as standing in a column
_HEADER_ROWS = 2


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: the first column it stands in (0-based), how many it spans, and its boxes from the left."""

    column: int
    colspan: int
    boxes: tuple[int, ...]

    @property
    def end(self) -> int:
        """The column behind its last one."""
        return self.column + self.colspan


@dataclass(frozen=True, slots=True)
class Grid:
    """A table's lines of cells from the top, each from the left; where no cell stands, it is empty."""

    columns: int
    lines: list[list[Cell]]


class CellText(NamedTuple):
    """The text of a cell, and where the cell stands."""

    column: int
    colspan: int
    text: str


Row = list[CellText]


def grid(boxes: Sequence[Box]) -> Grid:
    """Cluster boxes into the lines and columns of one table."""
    lines = rows(boxes)
    columns = _columns(boxes, lines)
    cells = [_cells(boxes, line, columns) for line in lines]
    for number in range(min(_HEADER_ROWS, len(cells) - 1)):
        cells[number] = _widened(boxes, cells[number], cells[number + 1], columns)
    return Grid(len(columns), cells)


def records(lines: Iterable[Row]) -> Iterator[Row]:
    """Join lines whose every text goes on in small letters to the line above: they are one wrapped row."""
    row: Row = []
    for line in lines:
        if _continues(row, line):
            more = {cell.column: cell.text for cell in line}
            row = [cell._replace(text=f"{cell.text} {more.get(cell.column, '')}".rstrip()) for cell in row]
            continue
        if row:
            yield row
        row = line
    if row:
        yield row


def html_row(row: Row, columns: int) -> str:
    """Write one row of a table that has `columns`."""
    parts: list[str] = []
    at = 0
    for cell in row:
        parts += ["<td></td>"] * (cell.column - at)
        span = f' colspan="{cell.colspan}"' if cell.colspan > 1 else ""
        parts.append(f"<td{span}>{html.escape(cell.text, quote=False)}</td>")
        at = cell.column + cell.colspan
    parts += ["<td></td>"] * (columns - at)
    return f"<tr>{''.join(parts)}</tr>"


def markdown_row(row: Row, columns: int) -> str:
    """Write one row of a table that has `columns`; a spanning cell stands in its first."""
    values = [""] * columns
    for cell in row:
        values[cell.column] = cell.text.replace("|", r"\|")
    return f"| {' | '.join(values)} |"


def _continues(above: Row, line: Row) -> bool:
    spans = {(cell.column, cell.colspan) for cell in above if cell.text}
    return (
        0 < len(line) < len(above)
        and all((cell.column, cell.colspan) in spans for cell in line)
        and all(cell.text[:1].islower() or (cell.column > 0 and cell.text[:1] == "(") for cell in line)
    )


def _columns(boxes: Sequence[Box], lines: Sequence[Sequence[int]]) -> list[tuple[float, float]]:
    """Return the columns' (left, right), from the left.

    Narrow boxes found columns and wider ones widen them; a box over two columns spans them. Neighbours that
    more lines span than fill side by side are one column.
    """
    columns: list[tuple[float, float]] = []
    spanning: set[int] = set()
    for index in sorted(range(len(boxes)), key=lambda i: boxes[i].width):
        over = [column for column in columns if _overlap(boxes[index], column) > _OVER]
        if len(over) > 1:
            spanning.add(index)
            continue
        for column in over:
            columns.remove(column)
        lefts, rights = zip(*over, boxes[index][::2], strict=True)
        columns.append((min(lefts), max(rights)))
    columns.sort()
    place = 0
    while place < len(columns) - 1:
        pair = columns[place : place + 2]
        bridged = beside = 0
        for line in lines:
            standing = [[i for i in line if _overlap(boxes[i], column) > _OVER] for column in pair]
            bridged += any(i in spanning for i in standing[0] if i in standing[1])
            beside += all(any(i not in spanning for i in side) for side in standing)
        if bridged > beside:
            columns[place : place + 2] = [(pair[0][0], max(pair[0][1], pair[1][1]))]
        else:
            place += 1
    return columns


def _overlap(box: Box, column: tuple[float, float]) -> float:
    """Share of the narrower of the two that they have in common."""
    common = min(box.right, column[1]) - max(box.left, column[0])
    return common / max(1.0, min(box.width, column[1] - column[0]))


def _cells(boxes: Sequence[Box], line: Sequence[int], columns: Sequence[tuple[float, float]]) -> list[Cell]:
    cells: list[Cell] = []
    for index in line:
        shares = [_overlap(boxes[index], column) for column in columns]
        over = [c for c, share in enumerate(shares) if share > _OVER] or [shares.index(max(shares))]
        first, end = over[0], over[-1] + 1
        held: tuple[int, ...] = (index,)
        if cells and first < cells[-1].end:
            before = cells.pop()
            first, end, held = before.column, max(end, before.end), (*before.boxes, index)
        cells.append(Cell(first, end - first, held))
    return cells


def _widened(
    boxes: Sequence[Box], cells: list[Cell], below: list[Cell], columns: Sequence[tuple[float, float]]
) -> list[Cell]:
    """Let a heading span the empty columns around it over whose filled ones below it is centred."""
    filled = {column for cell in below for column in range(cell.column, cell.end)}
    near = 0.03 * (columns[-1][1] - columns[0][0])
    result: list[Cell] = []
    for number, cell in enumerate(cells):
        middle = (boxes[cell.boxes[0]].left + boxes[cell.boxes[-1]].right) / 2
        free = range(cells[number - 1].end if number else 0, cell.column + 1)
        free_ends = range(cell.end, (cells[number + 1].column if cells[number + 1 :] else len(columns)) + 1)
        spans = [(cell.column, cell.end)]
        spans += [(first, end) for first in free for end in free_ends if filled.issuperset(range(first, end))]
        off = {span: _off_centre(middle, columns, *span) for span in spans}
        best = min(spans, key=off.__getitem__)
        if cell.colspan > 1:  # it is known to span: then over all that it is about centred on
            best = max((span for span in spans if off[span] <= off[best] + near), key=lambda s: s[1] - s[0])
        result.append(Cell(best[0], best[1] - best[0], cell.boxes))
    return result


def _off_centre(middle: float, columns: Sequence[tuple[float, float]], first: int, end: int) -> float:
    return abs(middle - (columns[first][0] + columns[end - 1][1]) / 2)
