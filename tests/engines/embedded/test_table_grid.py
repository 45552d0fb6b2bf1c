from __future__ import annotations

from hypothesis import given

from gateway.engines.embedded.lines import Box
from gateway.engines.embedded.table_grid import Cell, CellText, Row, grid, html_row, markdown_row, records
from tests.engines.embedded.test_lines import BOXES, line


def read(*texts: str) -> Row:
    return [CellText(column, 1, text) for column, text in enumerate(texts) if text]


def test_a_cell_ends_behind_its_span() -> None:
    assert Cell(2, 3, (0,)).end == 5


def test_nothing_has_no_columns() -> None:
    assert grid([]) == grid([])
    assert (grid([]).columns, grid([]).lines) == (0, [])


def test_a_plain_grid() -> None:
    boxes = [line(10 + 200 * column, 40 * row, 80) for row in range(3) for column in range(3)]
    found = grid(boxes)
    assert found.columns == 3
    assert found.lines == [[Cell(c, 1, (3 * row + c,)) for c in range(3)] for row in range(3)]


def test_a_missing_cell_leaves_its_column_empty() -> None:
    boxes = [line(10, 0, 80), line(210, 0, 80), line(410, 0, 80), line(10, 40, 80), line(410, 40, 80)]
    assert [cell.column for cell in grid(boxes).lines[1]] == [0, 2]


def test_a_heading_spans_the_columns_it_is_centred_on() -> None:
    body = [line(10 + 200 * column, 40 * row, 80) for row in (1, 2) for column in range(5)]
    heading = Box(440, 0, 660, 20)  # on columns 2 and 3, in the middle of 1 to 4
    found = grid([heading, *body])
    assert found.lines[0] == [Cell(1, 4, (0,))]


def test_a_heading_over_one_column_stays_there() -> None:
    body = [line(10 + 200 * column, 40 * row, 80) for row in (1, 2) for column in range(4)]
    assert grid([line(210, 0, 80), *body]).lines[0] == [Cell(1, 1, (0,))]


def test_a_wide_cell_spans_columns() -> None:
    body = [line(10 + 200 * column, 40 * row, 80) for row in range(3) for column in range(3)]
    found = grid([*body, Box(10, 120, 290, 140)])
    assert found.lines[3] == [Cell(0, 2, (9,))]


def test_a_heading_in_pieces_makes_no_columns() -> None:
    body = [line(10 + 200 * column, 40 * row, 120) for row in range(1, 5) for column in range(2)]
    found = grid([line(210, 0, 30), line(270, 0, 60), *body])
    assert found.columns == 2
    assert found.lines[0] == [Cell(1, 1, (0, 1))]


@given(BOXES)
def test_every_box_is_in_one_cell_and_cells_do_not_overlap(boxes: list[Box]) -> None:
    found = grid(boxes)
    held = [index for cells in found.lines for cell in cells for index in cell.boxes]
    assert sorted(held) == list(range(len(boxes)))
    for cells in found.lines:
        at = 0
        for cell in cells:
            assert cell.column >= at
            at = cell.end
        assert at <= found.columns


def test_a_wrapped_row_is_joined() -> None:
    lines = [read("Long label that", "1", "2"), read("goes on"), read("Next", "3", "4")]
    assert list(records(lines)) == [read("Long label that goes on", "1", "2"), read("Next", "3", "4")]


def test_a_units_line_below_a_header_is_joined() -> None:
    lines = [read("Name", "Weight"), [CellText(1, 1, "(kg)")], read("Bolt", "3")]
    assert list(records(lines)) == [read("Name", "Weight (kg)"), read("Bolt", "3")]


def test_section_headings_and_full_rows_are_not_joined() -> None:
    lines = [read("A", "1"), read("Section"), read("b", "2"), read("c", "3")]
    assert list(records(lines)) == lines
    assert list(records([])) == []


def test_a_line_under_an_empty_cell_is_not_joined() -> None:
    lines = [[CellText(0, 1, "A"), CellText(1, 1, "")], [CellText(1, 1, "note")]]
    assert list(records(lines)) == lines


def test_html_escapes_and_fills() -> None:
    row = [CellText(1, 2, "a < b & c")]
    assert html_row(row, 4) == '<tr><td></td><td colspan="2">a &lt; b &amp; c</td><td></td></tr>'


def test_markdown_escapes_and_fills() -> None:
    assert markdown_row([CellText(1, 2, "a|b")], 3) == r"|  | a\|b |  |"
