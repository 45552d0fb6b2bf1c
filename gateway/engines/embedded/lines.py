"""Text boxes to lines in reading order, from their geometry alone."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_COLUMN_LINES = 4  # fewer lines are no column


class Box(NamedTuple):
    """An upright rectangle around a piece of text, in pixels of the page."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def width(self) -> float:
        """Pixels from left to right."""
        return self.right - self.left

    @property
    def height(self) -> float:
        """Pixels from top to bottom."""
        return self.bottom - self.top

    @property
    def middle(self) -> float:
        """The vertical centre."""
        return (self.top + self.bottom) / 2


def reading_order(boxes: Sequence[Box]) -> list[list[int]]:
    """Group boxes into lines as a person reads them: column by column, each line from left to right.

    Columns are told from the two sides of a receipt by what fills them: running text is wide in its column.
    A page of mostly tall boxes is vertical script: its lines are read from right to left.

    Returns:
        one list of indices into `boxes` for each line.
    """
    if 2 * sum(box.height > 1.5 * box.width for box in boxes) > len(boxes) and len(boxes) > 1:
        boxes = [Box(box.top, -box.right, box.bottom, -box.left) for box in boxes]
    return _ordered(boxes, list(range(len(boxes))))


def rows(boxes: Sequence[Box], indices: Iterable[int] | None = None) -> list[list[int]]:
    """Group boxes whose middles share a height, columns ignored; rows from the top, each from the left.

    A box joins the row whose horizontally nearest member it overlaps by half its height, so a skewed
    scan's long rows hold together.
    """
    found: list[list[int]] = []
    for index in sorted(range(len(boxes)) if indices is None else indices, key=lambda i: boxes[i].middle):
        best, best_overlap = None, 0.5
        for row in found[-8:]:
            overlap = _row_overlap(boxes[index], [boxes[i] for i in row])
            if overlap > best_overlap:
                best, best_overlap = row, overlap
        if best is None:
            found.append([index])
        else:
            best.append(index)
    for row in found:
        row.sort(key=lambda i: boxes[i].left)
    return sorted(found, key=lambda row: sum(boxes[i].middle for i in row) / len(row))


def _row_overlap(box: Box, row: list[Box]) -> float:
    """Share of the lower height that `box` has in common with its nearest in `row`; 0 where it covers one."""
    if any(
        min(box.right, other.right) - max(box.left, other.left) > 0.3 * min(box.width, other.width)
        for other in row
    ):
        return 0.0
    near = min(row, key=lambda other: max(other.left - box.right, box.left - other.right))
    common = min(box.bottom, near.bottom) - max(box.top, near.top)
    return common / max(1.0, min(box.height, near.height))


def _ordered(boxes: Sequence[Box], indices: list[int]) -> list[list[int]]:
    gutter = _gutter([boxes[i] for i in indices])
    if gutter is None:
        return rows(boxes, indices)
    lines: list[list[int]] = []
    left: list[int] = []
    right: list[int] = []
    for index in sorted(indices, key=lambda i: boxes[i].middle):
        box = boxes[index]
        if box.right <= gutter:
            left.append(index)
        elif box.left >= gutter:
            right.append(index)
        else:  # a heading across both columns: what stands above it comes first
            lines += _ordered(boxes, left) + _ordered(boxes, right)
            lines.append([index])
            left, right = [], []
    return lines + _ordered(boxes, left) + _ordered(boxes, right)


def _gutter(boxes: list[Box]) -> float | None:
    """Where to cut a region into columns of running text, if that is what it holds."""
    if len(boxes) < 2 * _COLUMN_LINES:
        return None
    width = max(box.right for box in boxes) - min(box.left for box in boxes)
    best, best_gap = None, 0.0
    for edge in sorted({box.right for box in boxes}):
        left = [box for box in boxes if box.right <= edge]
        right = [box for box in boxes if box.left > edge]
        if not right or len(left) + len(right) < 0.8 * len(boxes):
            continue
        gap = min(box.left for box in right) - edge
        if best_gap < gap < 0.3 * width and _are_columns(left, right):
            best, best_gap = edge + gap / 2, gap
    return best


def _are_columns(left: list[Box], right: list[Box]) -> bool:
    return (
        _abreast(left, right)
        and _is_column(left)
        and (_is_column(right) or _gutter(right) is not None)  # the right side may hold several
    )


def _is_column(boxes: list[Box]) -> bool:
    """Whether the boxes are lines of running text: several, long, and mostly filling their width."""
    if len(boxes) < _COLUMN_LINES:
        return False
    width = max(box.right for box in boxes) - min(box.left for box in boxes)
    return (
        median(box.width for box in boxes) > 0.6 * width
        and median(box.width / box.height for box in boxes) > 6
    )


def _abreast(left: list[Box], right: list[Box]) -> bool:
    """Whether two columns share most of the shorter one's height."""
    top = max(min(box.top for box in left), min(box.top for box in right))
    bottom = min(max(box.bottom for box in left), max(box.bottom for box in right))
    heights = [max(box.bottom for box in side) - min(box.top for box in side) for side in (left, right)]
    return bottom - top > 0.5 * min(heights)
