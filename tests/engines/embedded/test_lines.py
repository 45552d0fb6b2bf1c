from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.engines.embedded.lines import Box, reading_order, rows


def line(left: float, top: float, width: float, height: float = 20) -> Box:
    return Box(left, top, left + width, top + height)


def test_a_box_knows_its_measures() -> None:
    box = Box(10, 20, 40, 30)
    assert (box.width, box.height, box.middle) == (30, 10, 25)


def test_no_boxes_have_no_lines() -> None:
    assert reading_order([]) == []


def test_pieces_of_a_row_are_joined_from_the_left() -> None:
    boxes = [line(400, 2, 60), line(10, 0, 100), line(10, 40, 90)]
    assert reading_order(boxes) == [[1, 0], [2]]


def test_a_receipts_prices_stay_with_their_items() -> None:
    boxes = [box for n in range(8) for box in (line(10, 40 * n, 180), line(420, 40 * n, 50))]
    assert reading_order(boxes) == [[2 * n, 2 * n + 1] for n in range(8)]


def test_two_columns_are_read_one_after_the_other() -> None:
    left = [line(10, 30 * n, 300) for n in range(6)]
    right = [line(350, 30 * n, 300) for n in range(6)]
    assert reading_order([*left, *right]) == [[n] for n in range(12)]


def test_three_columns_are_read_one_after_the_other() -> None:
    boxes = [line(10 + 330 * column, 30 * n, 300) for column in range(3) for n in range(6)]
    assert reading_order(boxes) == [[n] for n in range(18)]


def test_headings_across_columns_divide_them() -> None:
    title, subtitle = line(10, 0, 640, 30), line(10, 230, 640, 30)
    upper = [line(left, 50 + 30 * n, 300) for left in (10, 350) for n in range(5)]
    lower = [line(left, 280 + 30 * n, 300) for left in (10, 350) for n in range(5)]
    boxes = [*lower, subtitle, *upper, title]
    assert reading_order(boxes) == [[21], *([n] for n in range(11, 21)), [10], *([n] for n in range(10))]


def test_columns_that_do_not_stand_abreast_are_rows() -> None:
    boxes = [line(10, 30 * n, 300) for n in range(5)] + [line(350, 150 + 30 * n, 300) for n in range(5)]
    assert reading_order(boxes) == [[n] for n in range(10)]


def test_a_skewed_row_holds_together() -> None:
    assert rows([line(100 * n, 4 * n, 90) for n in range(8)]) == [list(range(8))]


def test_boxes_over_one_another_are_not_one_row() -> None:
    assert rows([line(10, 0, 100), line(20, 8, 100)]) == [[0], [1]]


def test_vertical_script_is_read_from_the_right() -> None:
    boxes = [Box(40 * n, 10, 40 * n + 25, 300) for n in range(5)]
    assert reading_order(boxes) == [[4], [3], [2], [1], [0]]


BOXES = st.lists(
    st.builds(line, st.integers(0, 900), st.integers(0, 900), st.integers(1, 400), st.integers(1, 60)),
    max_size=40,
)


@given(BOXES)
def test_every_box_is_read_exactly_once(boxes: list[Box]) -> None:
    assert sorted(index for found in reading_order(boxes) for index in found) == list(range(len(boxes)))
    assert sorted(index for found in rows(boxes) for index in found) == list(range(len(boxes)))
