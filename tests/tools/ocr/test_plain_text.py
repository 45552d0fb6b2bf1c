import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tools.ocr.plain_text import plain

TABLE = """<table border="1"><thead>
 <tr><th>item</th> <th>price</th></tr>
</thead>
<tbody><tr><td>tart &amp; tea</td><td>4.20</td></tr><tr><td></td><td><b>4.20</b></td></tr></tbody></table>"""


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        ("# Title #\n\n## C#\nwords", "Title\n\nC#\nwords"),
        (
            "**bold**, *slanted*, __bold__, _slanted_, ~~struck~~, `code`",
            "bold, slanted, bold, slanted, struck, code",
        ),
        ("**标题**文字", "标题文字"),
        ("2 * 3 * 4, snake_case_name, a*b*c, 5 * x", "2 * 3 * 4, snake_case_name, a*b*c, 5 * x"),
        ('[there](https://example.com "title") and ![a stamp](img.png)', "there and a stamp"),
        ("[tbl-0.html](tbl-0.html)", "tbl-0.html"),
        ("> quoted\n\n---\n\n- one\n- two\n1. three", "quoted\n\n- one\n- two\n1. three"),
        ("| a | b |\n|---|:-:|\n| 1 \\| 2 | **3** |", "a\tb\n1 | 2\t3"),
        (TABLE, "item\tprice\n\ntart & tea\t4.20\n\n\t4.20"),
        ("```python\nx = '**'  # no\n```\nafter", "x = '**'  # no\nafter"),
        (
            "write to <john@example.com> if a < b<br/>and 3 &lt; 4",
            "write to <john@example.com> if a < b\nand 3 < 4",
        ),
        ("$x_1 + y_2$ costs \\$3\\*", "$x_1 + y_2$ costs \\$3*"),
        ("one<!-- figure -->two\n\n\n\n\nthree", "onetwo\n\nthree"),
        ('H<sub>2</sub>O <img src="x" onerror="y"/>', "H2O"),
        ("", ""),
    ],
)
def test_marks_go_and_words_stay(markdown: str, text: str) -> None:
    assert plain(markdown) == text


@given(st.text(alphabet="ab12 äé.,:;\n"))
def test_words_without_marks_stay(text: str) -> None:
    assert plain(text).split() == text.split()


def test_a_character_of_thousands_of_digits_stays_as_it_is() -> None:
    assert plain(f"a &#{'9' * 5000}; &lt;") == f"a &#{'9' * 5000}; &lt;"


@given(st.text(alphabet="*_`~|#<>[]()-! \\\n\tatdr/&;"))
def test_no_marks_are_too_many(markdown: str) -> None:
    assert len(plain(markdown)) <= len(markdown)


@pytest.mark.parametrize(
    "piece",
    [
        "*",
        "**a ",
        " ",
        "<td>",
        "<table ",
        "<!--",
        "[a](",
        "|",
        "_a ",
        "`a",
        "~~a ",
        "# ",
        "- ",
        "\\",
        "&amp;",
    ],
)
def test_a_model_that_repeats_itself_keeps_nobody_busy(piece: str) -> None:
    """Work that grows with the square of it would be ten thousand million steps here."""
    assert len(plain(piece * 100_000)) <= len(piece) * 100_000
