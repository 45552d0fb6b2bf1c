"""Text boxes to a table: a grid from geometry alone, written as HTML or Markdown row by row."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.engines.embedded.lines import Box, rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: the columns it starts at and spans (0-based), and the boxes it holds, in reading order."""

    column: int
    colspan: int
    boxes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """A table's rows of cells, top to bottom and left to right; gaps between cells are empty cells."""

    columns: int
    rows: list[list[Cell]]


def grid(boxes: Sequence[Box]) -> Grid:
    """Cluster boxes into the rows and columns of one table."""
    lines = rows(boxes)
    columns = _columns(boxes, lines)
    return Grid(len(columns), [_cells(boxes, line, columns) for line in lines])


def html_row(cells: Sequence[Cell], columns: int, texts: Mapping[int, str]) -> str:
    """Write one row; `texts` gives each box's text."""
    parts: list[str] = []
    at = 0
    for cell in cells:
        parts += ["<td></td>"] * (cell.column - at)
        span = f' colspan="{cell.colspan}"' if cell.colspan > 1 else ""
        parts.append(f"<td{span}>{html.escape(_text(cell, texts), quote=False)}</td>")
        at = cell.column + cell.colspan
    parts += ["<td></td>"] * (columns - at)
    return f"<tr>{''.join(parts)}</tr>"


def markdown_row(cells: Sequence[Cell], columns: int, texts: Mapping[int, str]) -> str:
    """Write one row; a spanning cell stands in its first column."""
    values = [""] * columns
    for cell in cells:
        values[cell.column] = _text(cell, texts).replace("|", r"\|")
    return f"| {' | '.join(values)} |"


def _text(cell: Cell, texts: Mapping[int, str]) -> str:
    return " ".join(texts[index] for index in cell.boxes if texts[index])


def _columns(boxes: Sequence[Box], lines: Sequence[Sequence[int]]) -> list[tuple[float, float]]:
    """Return the columns' (left, right), from the left.

    Narrow boxes found columns, wider ones widen them; a box over two columns spans them and says nothing,
    unless the two are never filled side by side: then they are one.
    """
    columns: list[tuple[float, float]] = []
    spans: list[Box] = []
    for box in sorted(boxes, key=lambda box: box.width):
        over = [column for column in columns if _overlap(box, column) > 0.25]
        if len(over) > 1:
            spans.append(box)
            continue
        for column in over:
            columns.remove(column)
        columns.append((min([box.left, *(c[0] for c in over)]), max([box.right, *(c[1] for c in over)])))
    columns.sort()
    index = 0
    while index < len(columns) - 1:
        first, second = columns[index], columns[index + 1]
        bridged = any(_overlap(box, first) > 0.25 and _overlap(box, second) > 0.25 for box in spans)
        beside = any(
            any(_overlap(boxes[i], first) > 0.25 and boxes[i] not in spans for i in line)
            and any(_overlap(boxes[i], second) > 0.25 and boxes[i] not in spans for i in line)
            for line in lines
        )
        if bridged and not beside:
            columns[index : index + 2] = [(first[0], max(first[1], second[1]))]
        else:
            index += 1
    return columns


def _overlap(box: Box, column: tuple[float, float]) -> float:
    """Share of the narrower of the two that they have in common."""
    common = min(box.right, column[1]) - max(box.left, column[0])
    return common / max(1.0, min(box.width, column[1] - column[0]))


def _cells(boxes: Sequence[Box], line: Sequence[int], columns: Sequence[tuple[float, float]]) -> list[Cell]:
    cells: list[Cell] = []
    for index in line:
        over = [c for c, column in enumerate(columns) if _overlap(boxes[index], column) > 0.25]
        if not over:
            over = [min(range(len(columns)), key=lambda c: -_overlap(boxes[index], columns[c]))]
        first, last = over[0], over[-1]
        if cells and first < cells[-1].column + cells[-1].colspan:
            before = cells.pop()
            last = max(last, before.column + before.colspan - 1)
            cells.append(Cell(before.column, last - before.column + 1, (*before.boxes, index)))
        else:
            cells.append(Cell(first, last - first + 1, (index,)))
    return cells
