from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import pytest
from PIL import Image

from gateway.engines.embedded.answers import GREETING, CalledTool, read_pieces, without_images
from gateway.engines.embedded.ocr_request import parse
from gateway.errors import BadImage, BadRequest
from tests.engines.embedded.rendering import FakePage, FakeReader, chat, draw, encoded, receipt

if TYPE_CHECKING:
    from gateway.engines.embedded.reader import Reader

BLANK = encoded(Image.new("RGB", (400, 300), "white"))


def pieces(reader: object, *images: bytes, prompt: str = "Text Recognition:", **fields: Any) -> list[Any]:
    request = parse(chat(*images, prompt=prompt, **fields), "glm-ocr")
    return list(read_pieces(cast("Reader", reader), request, lambda: False))


def test_text_comes_line_by_line_after_the_opening() -> None:
    assert pieces(FakeReader(), BLANK) == ["", "one", "\ntwo"]


def test_illegible_lines_are_left_out() -> None:
    assert pieces(FakeReader(["", "two", ""]), BLANK) == ["", "two"]


def test_images_are_joined_by_a_blank_line() -> None:
    assert "".join(pieces(FakeReader(), BLANK, BLANK)) == "one\ntwo\n\none\ntwo"


def test_blank_images_leave_no_gap() -> None:
    class Second(FakeReader):
        def detect(self, pixels: object) -> FakePage:
            page = super().detect(pixels)
            return page if self.detected == 2 else FakePage([])

    assert "".join(pieces(Second(), BLANK, BLANK, BLANK)) == "one\ntwo"


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("Text Recognition:", ""),
        ("Table Recognition:", ""),
        ('{"a": ""}', '{"a": ""}'),
    ],
)
def test_a_blank_image(prompt: str, text: str) -> None:
    assert "".join(pieces(FakeReader([]), BLANK, prompt=prompt)) == text


def test_text_comes_in_the_form_that_the_prompt_wants() -> None:
    prompt = "OCR this image to HTML."
    found = pieces(FakeReader(["1 < 2", "two"]), BLANK, prompt=prompt)
    opening, closing = '<div data-bbox="0 0 1000 1000" data-label="Text"><p>', "</p></div>"
    assert found == ["", f"{opening}1 &lt; 2", "<br/>two", closing]
    assert "".join(pieces(FakeReader([]), BLANK, prompt=prompt)) == opening + closing


def test_a_table_is_html_row_by_row() -> None:
    found = pieces(FakeReader(["A", "", "B"]), BLANK, prompt="Table Recognition:")
    assert found == ["", "<table><tr><td>A</td></tr>", "<tr><td>B</td></tr>", "</table>"]


def test_a_table_is_markdown_where_asked_for() -> None:
    request = parse(chat(BLANK, prompt="Table Recognition:"), "glm-ocr")
    object.__setattr__(request, "prompt", "the table as Markdown")
    found = list(read_pieces(cast("Reader", FakeReader(["A", "B"])), request, lambda: False))
    assert "".join(found) == "| A |\n| --- |\n| B |"


def test_key_value_is_one_json_object() -> None:
    reader = FakeReader(["Name: Ada", "Age: 36"])
    schema = {"type": "object", "properties": {"age": {"type": "integer"}, "name": {"type": "string"}}}
    found = pieces(
        reader, BLANK, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    )
    assert json.loads("".join(found)) == {"age": 36, "name": "Ada"}
    free = pieces(reader, BLANK, prompt="x", response_format={"type": "json_object"})
    assert json.loads("".join(free)) == {"Name": "Ada", "Age": "36"}


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": PERSON}}


def test_an_answer_under_a_schema_follows_it_or_is_refused_before_anything_is_said() -> None:
    told = pieces(FakeReader(["Name: Ada", "Age: 36"]), BLANK, response_format=FORM)
    assert told == ['{"name": "Ada", "age": 36}']
    with pytest.raises(BadRequest, match=r"`response_format`.*`age`: a whole number") as caught:
        pieces(FakeReader(["Name: Ada"]), BLANK, response_format=FORM)
    assert caught.value.param == "response_format"


def tool(name: str, /, **properties: str) -> dict[str, Any]:
    """A tool, its arguments by their types."""
    fields = {field: {"type": kind} for field, kind in properties.items()}
    schema = {"type": "object", "properties": fields, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def test_of_several_tools_the_one_is_called_that_the_page_has_the_most_for() -> None:
    person, order = tool("person", name="string", age="integer"), tool("order", total="number", note="string")
    asked: dict[str, Any] = {"tools": [person, order], "tool_choice": "required"}
    ada = FakeReader(["Name: Ada", "Age: 36"])
    assert pieces(ada, BLANK, **asked) == [CalledTool("person"), '{"name": "Ada", "age": 36}']
    assert pieces(FakeReader(["Total | 8.25"]), BLANK, **asked) == [
        CalledTool("order"),
        '{"total": 8.25, "note": ""}',
    ]
    with pytest.raises(BadRequest, match=r"'person' cannot be called.*'order' cannot be called") as caught:
        pieces(FakeReader(["nothing"]), BLANK, **asked)
    assert caught.value.param == "tools"


def test_choices_and_regular_expressions_bind_the_text() -> None:
    letter = FakeReader(["INVOICE", "No. 7"])
    assert pieces(letter, BLANK, guided_choice=["receipt", "invoice"]) == ["invoice"]
    assert pieces(letter, BLANK, guided_regex=r"INVOICE\n[\s\S]*7") == ["INVOICE\nNo. 7"]
    for field, words in (({"guided_choice": ["a"]}, "choices"), ({"guided_regex": "[0-9]+"}, "match")):
        with pytest.raises(BadRequest, match=words) as caught:
            pieces(letter, BLANK, **field)
        assert caught.value.param == next(iter(field))


OLMOCR = (
    r"---\nprimary_language: (?:[a-z]{2}|null)\nis_rotation_valid: (?:True|False|true|false)\n"
    r"rotation_correction: (?:0|90|180|270)\nis_table: (?:True|False|true|false)\n"
    r"is_diagram: (?:True|False|true|false)\n(?:---|---\n[\s\S]+)"
)


def test_olmocrs_regular_expression_is_followed_on_full_and_blank_pages() -> None:
    prompt = (
        "Attached is one page of a document. Return markdown, with a front matter section: primary_language"
    )
    (full,) = pieces(FakeReader(["one", "two"]), BLANK, prompt=prompt, guided_regex=OLMOCR)
    (blank,) = pieces(FakeReader([]), BLANK, prompt=prompt, guided_regex=OLMOCR)
    assert full == f"{blank}\none\ntwo"
    assert blank.endswith("\n---")


def test_without_images_there_is_what_binds_the_answer_or_a_greeting() -> None:
    def told(**fields: Any) -> list[Any]:
        return list(without_images(parse(chat(prompt="hello", **fields), "glm-ocr")))

    assert told() == [GREETING]
    assert told(response_format={"type": "json_object"}) == ["{}"]
    assert told(guided_regex=".{0,3}") == [""]
    optional = {"name": "x", "schema": {**PERSON, "required": ["name"]}}
    assert told(response_format={"type": "json_schema", "json_schema": optional}) == ['{"name": ""}']
    assert told(tools=[tool("save", name="string")], tool_choice="required") == [
        CalledTool("save"),
        '{"name": ""}',
    ]
    for fields in ({"response_format": FORM}, {"guided_choice": ["a"]}):
        with pytest.raises(BadRequest):
            told(**fields)


@pytest.mark.parametrize("fields", [{"response_format": FORM}, {"guided_choice": ["a"]}])
def test_a_bound_answer_that_is_stopped_says_nothing(fields: dict[str, Any]) -> None:
    reader = FakeReader(["one", "two", "three"])
    request = parse(chat(BLANK, **fields), "glm-ocr")
    assert list(read_pieces(cast("Reader", reader), request, lambda: reader.read >= 1)) == []


def test_several_images_give_one_object() -> None:
    found = pieces(FakeReader(["Name: Ada"]), BLANK, BLANK, prompt='{"name": ""}')
    assert json.loads("".join(found)) == {"name": "Ada"}


@pytest.mark.parametrize("prompt", ["Text Recognition:", "Table Recognition:", '{"a": ""}'])
def test_a_stopped_answer_reads_no_further(prompt: str) -> None:
    reader = FakeReader(["one", "two", "three"])
    request = parse(chat(BLANK, BLANK, prompt=prompt), "glm-ocr")
    list(read_pieces(cast("Reader", reader), request, lambda: reader.read >= 1))
    assert (reader.detected, reader.read) == (1, 1)
    before = FakeReader()
    list(read_pieces(cast("Reader", before), request, lambda: True))
    assert (before.detected, before.read) == (0, 0)


def test_a_truncated_image_is_refused_before_the_opening() -> None:
    data = encoded(Image.effect_noise((200, 200), 50), "JPEG")
    for images in ([data[:4000]], [BLANK, data[:4000]]):
        with pytest.raises(BadImage):
            pieces(FakeReader(), *images)


def test_a_real_receipt(reader: Reader) -> None:
    text = "".join(pieces(reader, receipt()))
    assert text.startswith("CORNER BAKERY\n")
    assert text.endswith("Total 8.25")
    found = pieces(reader, receipt(), prompt='{"company": "", "date": "", "total": "number"}')
    assert json.loads("".join(found)) == {"company": "CORNER BAKERY", "date": "2024-05-17", "total": 8.25}


def test_a_real_table(reader: Reader) -> None:
    cells = [["Item", "Count", "Price"], ["Bolt", "12", "3.50"], ["Screw", "40", "1.25"]]
    placed = [(60 + 220 * c, 50 + 70 * r, text) for r, row in enumerate(cells) for c, text in enumerate(row)]
    found = pieces(reader, encoded(draw((700, 280), placed)), prompt="Table Recognition:")
    rows = "".join(f"<tr>{''.join(f'<td>{text}</td>' for text in row)}</tr>" for row in cells)
    assert "".join(found) == f"<table>{rows}</table>"


def test_two_real_columns_are_read_one_after_the_other(reader: Reader) -> None:
    left = [f"left column line number {n}" for n in range(1, 6)]
    right = [f"right column line number {n}" for n in range(1, 6)]
    placed = [(30, 40 + 45 * n, text) for n, text in enumerate(left)]
    placed += [(480, 40 + 45 * n, text) for n, text in enumerate(right)]
    text = "".join(pieces(reader, encoded(draw((900, 320), placed))))
    assert text.splitlines() == [*left, *right]
