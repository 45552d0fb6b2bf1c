import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.mistral.page_tables import PageTable, lift_tables

HTML = "<table><tr><th>item</th><th>sum</th></tr><tr><td>a | b</td><td>1</td></tr></table>"
MARKDOWN = "| item | sum |\n| --- | --- |\n| a \\| b | 1 |"


@pytest.mark.parametrize("found", [HTML, MARKDOWN])
def test_tables_leave_a_link_behind_and_are_in_the_form_that_is_asked_for(found: str) -> None:
    page = f"# Bill\n\n{found}\n\nThank you | come again"
    text, tables = lift_tables(page, "html")
    assert text == "# Bill\n\n[tbl-0.html](tbl-0.html)\n\nThank you | come again"
    assert tables == [PageTable("tbl-0.html", HTML, "html")]
    text, tables = lift_tables(page, "markdown")
    assert text == "# Bill\n\n[tbl-0.md](tbl-0.md)\n\nThank you | come again"
    assert tables == [PageTable("tbl-0.md", MARKDOWN, "markdown")]


def test_they_are_numbered_in_their_order_whatever_their_form() -> None:
    text, tables = lift_tables(f"{MARKDOWN}\n\n{HTML}between{HTML}\n{MARKDOWN}\n", "html")
    assert text == (
        "[tbl-0.html](tbl-0.html)\n\n[tbl-1.html](tbl-1.html)between[tbl-2.html](tbl-2.html)\n"
        "[tbl-3.html](tbl-3.html)\n"
    )
    assert {table.content for table in tables} == {HTML}


@pytest.mark.parametrize(
    "page",
    ["", "no table", "<table><tr><td>cut short", "</table>", "a | b\nc | d", "a\n--|--", "|-|", "a | b\n---"],
)
def test_what_is_no_table_stays(page: str) -> None:
    assert lift_tables(page, "html") == (page, [])


def test_a_table_in_a_table_is_not_one_of_its_own() -> None:
    inner = "<table><tr><td>outer<table><tr><td>inner</td></tr></table></td></tr></table>"
    assert lift_tables(inner, "html")[1] == [PageTable("tbl-0.html", inner, "html")]


def test_cells_that_span_several_leave_the_others_empty() -> None:
    page = (
        "<table><thead><tr><th colspan=2>name</th><th rowspan='2'>sum</th></tr></thead>"
        "<tr><td>first<br>one</td><td>last\n one</td></tr><tr></tr>"
        "<tr><td rowspan=x>&amp;</td></tr></table>"
    )
    _, (table,) = lift_tables(page, "markdown")
    assert table.content == (
        "| name |  | sum |\n| --- | --- | --- |\n| first one | last one |  |\n| & |  |  |"
    )


def test_rows_need_not_be_closed_nor_begun() -> None:
    _, (table,) = lift_tables(
        "<TABLE class='x'>lost<td>a<td>b<tr><td rowspan=2>c<tr><td>d</TABLE>", "markdown"
    )
    assert table.content == "| a | b |\n| --- | --- |\n| c |  |\n|  | d |"


def test_pipes_may_be_missing_at_the_ends_and_markup_is_escaped() -> None:
    _, (table,) = lift_tables("a | b<br>c\n:--|--:\n1 < 2 | x\\|\n", "html")
    assert table.content == (
        "<table><tr><th>a</th><th>b<br>c</th></tr><tr><td>1 &lt; 2</td><td>x|</td></tr></table>"
    )


@pytest.mark.parametrize(
    "page",
    [
        "<table></table>",
        f"<table><tr><td>{'x' * 300_000}</td></tr></table>",
        f"<table><tr>{'<td colspan=50>' * 1000}{'<tr><td>' * 1000}</table>",  # 50 million cells
        f"<table><tr>{'<td colspan=50 rowspan=50>' * 1000}{'<tr>' * 50}</table>",
        f"<table><tr>{'<td colspan=50>' * 10_000}</table>",
        "<table><tr><td><![<a</td></tr></table>",
        f"<table><tr><td>&#{'9' * 5000};</td></tr></table>",
    ],
)
def test_what_has_no_cells_or_too_many_or_cannot_be_read_keeps_its_form(page: str) -> None:
    text, tables = lift_tables(page, "markdown")
    assert text == "[tbl-0.html](tbl-0.html)"
    assert tables == [PageTable("tbl-0.html", page, "html")]


PIECES = st.sampled_from(
    [
        "<table>",
        "</table>",
        "<tr>",
        "<td colspan=3>",
        "</td>",
        "<th rowspan=2>",
        "a",
        "|",
        "\n",
        "|-|-|",
        "&lt",
        "<",
        "<![",
        "<!--",
        "<?",
        "&#",
        "9" * 5000,
        "<td colspan=50 rowspan=50>" * 500,
    ]
)


@given(st.lists(PIECES, max_size=40).map("".join), st.sampled_from(["html", "markdown"]))
def test_whatever_an_engine_writes_the_page_has_a_link_for_each_table(page: str, wanted: str) -> None:
    text, tables = lift_tables(page, wanted)  # type: ignore[arg-type]
    assert [table.id for table in tables] == [
        f"tbl-{number}.{'html' if table.format == 'html' else 'md'}" for number, table in enumerate(tables)
    ]
    assert all(f"[{table.id}]({table.id})" in text for table in tables)
