# ruff: noqa: E501 - the prompts are quoted as they are sent
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.errors import BadRequest
from gateway.model import LayoutGuess, Reason, SortDecision, SortFacts
from gateway.policy.sort.evidence import SortRules, by_default, normalise, sort, sort_by_layout

RULES = SortRules(("text", "key-value", "table"), "text")

# Every prompt of the published clients, as they send it, with the route it must take.
KNOWN = {
    "text": [
        "Text Recognition:",
        "Formula Recognition:",
        "OCR:",
        "Chart Recognition:",
        "Spotting:",
        "Seal Recognition:",
        "\nLayout Detection:",
        "\nText Recognition:",
        "\nFormula Recognition:",
        "\nImage Analysis:",
        "Free OCR.",
        "<image>\nFree OCR. ",
        "<image>\n<|grounding|>Convert the document to markdown. ",
        "<image>\n<|grounding|>OCR this image. ",
        "<image>\nParse the figure. ",
        "<image>\nDescribe this image in detail. ",
        "<image>\nLocate <|ref|>the total<|/ref|> in the image. ",
        "<|img|><|imgpad|><|endofimg|>Please output the layout information from the PDF image, including each "
        "layout element's bbox, its category, and the corresponding text content within the bbox.\n\n1. Bbox "
        "format: [x1, y1, x2, y2]\n\n2. Layout Categories: 'Table', 'Text'. 3. Table: Format its text as HTML.",
        "Please output the layout information from this PDF image, including each layout's bbox and its "
        "category. Do not output the corresponding text.".replace("this PDF", "the PDF"),
        "Extract the text content from this image.",
        "Detect and recognize the text in the image.",
        "Extract text from the given bounding box on the image (format: [x1, y1, x2, y2]).\nBounding Box:\n[1]",
        "Attached is one page of a document that you must process. Just return the plain text representation of "
        "this document as if you were reading it naturally. Convert equations to LateX and tables to HTML.\n"
        "Return your output as markdown, with a front matter section on top",
        "OCR this image to HTML, arranged as layout blocks. Each layout block should be a div",
        "OCR this image to HTML.\n\nOnly use these tags: ['math', 'table', 'tr', 'td', 'form', 'input']",
        "Output the layout of this image as JSON.",
        "OCR this block image to HTML.",
        "OCR this image to HTML. Each block is a div with data-label",
        "Extract the text in the image.",
        "提取图中的文字。",
        "Extract the text from the above document as if you were reading it naturally. Return the tables in html "
        "format. Return the equations in LaTeX representation.",
        "Return the plain text representation of this document as if you were reading it naturally.",
        "Convert this page to docling.",
        "Convert page to Docling.",
        "Please convert the image document into Markdown format",
        "- Extract layout information from the provided PDF image.",
        "You are an AI assistant specialized in converting PDF images to Markdown. Rules: tables to HTML",
        "Please output the text content from the image.",
        "Please write out the expression of the formula in the image using LaTeX format.",
        "Read all the text in the image.",
        "qwenvl markdown",
        "QwenVL HTML",
        "Parse this document to Markdown.",
        "Write a detailed caption for this image.",
        "Extract all text from this image. Return ONLY the extracted text, maintaining the original layout and "
        "order. Do not add any commentary or description.",
        "Extract all visible text from this image. Reproduce the text exactly as it appears, preserving the "
        "original structure, paragraph breaks, and reading order. Do not add any commentary, explanation, or "
        "formatting beyond what is present in the image.\n\nThe document is in language: deu",
        "\n\nYour task is to analyze the given image (which is a page from a PDF) and extract textual content in "
        "markdown format.\n\n\n- Analyze this image carefully\n\n- If tables are detected in the PDF, convert them "
        "to **HTML** format using `<table>`, `<thead>`, `<tbody>`",
        "\nAnalyze this image and return a detailed JSON description including any text detected, images detected, "
        'tables detected, latex equations detected.\n\n```json\n{\n  "text_detected": "Yes" | "No",\n}\n```\n',
        "使用markdown语法，将图片中识别到的文字转换为markdown格式输出。你必须做到：\n1. 输出和使用识别到的图片的相同的语言",
    ],
    "table": [
        "Table Recognition:",
        "\nTable Recognition:",
        "Output the table rows then columns as JSON.",
        "Parse the table in the image into HTML.",
        "把图中的表格解析为 HTML。",
        "This is the image of a table. Please output the table in html format.",
        "Please output the table in the image in LaTeX format.",
        "Extract tables to HTML format.",
        "\nThis is the image of a table. Please output the table in OTSL format.",
    ],
    "key-value": [
        '请按下列JSON格式输出图中信息:\n{"name": "", "items": [{"price": ""}]}',
        "Output the value of Total Amount.",
        "Extract the content of the fields: ['date', 'total'] from the image and return it in JSON format.",
        "提取图片中的: ['日期','金额'] 的字段内容，并按照 JSON 格式返回。",
    ],
}


@pytest.mark.parametrize(("route", "prompt"), [(route, prompt) for route in KNOWN for prompt in KNOWN[route]])
def test_every_known_prompt_goes_to_its_route(route: str, prompt: str) -> None:
    assert sort(SortFacts(prompt=prompt, has_image=True), RULES) == SortDecision(route, Reason.PROMPT)


# zerox asks in a system message, and sends the picture alone; a page before it comes as another one.
ZEROX = """
    Convert the following document to markdown.
    Return only the markdown with no explanation text. Do not include delimiters like ```markdown or ```html.

    RULES:
      - Return tables in an HTML format.
"""


@pytest.mark.parametrize(
    "system", [ZEROX, f'{ZEROX}\nMarkdown must maintain consistent formatting: """| a |"""']
)
def test_where_a_picture_comes_without_words_the_system_prompt_is_compared(system: str) -> None:
    assert sort(SortFacts(system=system, has_image=True), RULES) == SortDecision("text", Reason.PROMPT)
    # With words of its own the request means these.
    facts = SortFacts(system=system, prompt="Table Recognition:", has_image=True)
    assert sort(facts, RULES) == SortDecision("table", Reason.PROMPT)
    assert sort(SortFacts(system="You are a helpful assistant.", has_image=True), RULES) is None


@pytest.mark.parametrize(
    ("fields", "route"),
    [
        (["text"], "text"),
        (["reasoning", "markdown"], "text"),
        (["rows"], "table"),
        (["reasoning", "headers", "rows"], "table"),
        (["answer"], "key-value"),
        (["invoice_number", "total"], "key-value"),
        (["label", "bbox"], "text"),
    ],
)
@pytest.mark.parametrize(
    ("begin", "mark", "end"),
    [
        (
            "Respond with the corresponding output fields, starting with the field ",
            "`[[ ## {} ## ]]`",
            ", and then ending with the marker for `[[ ## completed ## ]]`.",
        ),
        ("Respond with a JSON object in the following order of fields: ", "`{}`", "."),
        ("Respond with the corresponding output fields wrapped in XML tags ", "`<{}>`", "."),
    ],
)
def test_the_fields_that_dspy_names_tell_the_route(
    fields: list[str], route: str, begin: str, mark: str, end: str
) -> None:
    names = ", then ".join(
        mark.format(name) + (" (must be formatted as a valid Python float)" if name == "total" else "")
        for name in fields
    )
    prompt = f"[[ ## image ## ]]\n\n\n\n{begin}{names}{end}"
    system = "Your input fields are:\n1. `image` (Image)\nYour output fields are:\n1. `text` (str)"
    facts = SortFacts(prompt=prompt, system=system, has_image=True)
    assert sort(facts, RULES) == SortDecision(route, Reason.STRUCTURE)
    # Its JSON adapter sends a schema of the same fields, too.
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in fields}}
    with_schema = SortFacts(prompt=prompt, system=system, schema=schema, has_image=True)
    assert sort(with_schema, RULES) == SortDecision(route, Reason.STRUCTURE)


LAYOUT_SCHEMA: dict[str, Any] = {
    "type": "array",
    "items": {"type": "object", "properties": {"label": {}, "bbox": {}, "count": {}}},
}
INVOICE_SCHEMA = {"type": "object", "properties": {"invoice_number": {"type": "string"}, "total": {}}}


def test_a_known_prompt_beats_the_schema_that_comes_with_it() -> None:
    facts = SortFacts(prompt="Output the layout of this image as JSON.", schema=LAYOUT_SCHEMA, has_image=True)
    assert sort(facts, RULES) == SortDecision("text", Reason.PROMPT)


@pytest.mark.parametrize(
    ("facts", "route"),
    [
        (SortFacts(schema=INVOICE_SCHEMA), "key-value"),
        (SortFacts(schema={}), "key-value"),
        (SortFacts(schema=LAYOUT_SCHEMA), "text"),
        (SortFacts(schema={"properties": {"rows": {"items": {"properties": {"cells": {}}}}}}), "table"),
        (
            SortFacts(
                schema={"$ref": "#/$defs/Page", "$defs": {"Page": {"properties": {"bbox": {}, "label": {}}}}}
            ),
            "text",
        ),
        *(
            (SortFacts(schema={"properties": {name: {} for name in names.split()}}), route)
            for names, route in (
                ("merchant total category", "key-value"),
                ("street box city", "key-value"),
                ("label polygon", "text"),
                ("category box text", "text"),
                ("title headers rows", "table"),
                ("columns data", "table"),
                ("invoice rows total", "key-value"),
                ("title", "key-value"),
                ("text", "text"),
                ("markdown language", "text"),
                ("natural_text is_table primary_language", "text"),
                ("text amount", "key-value"),
            )
        ),
        (
            SortFacts(
                schema={"properties": {"tables": {"items": {"properties": {"headers": {}, "rows": {}}}}}}
            ),
            "table",
        ),
        (SortFacts(prompt='List every block as {"bbox": [], "category": ""}'), "text"),
        *(
            (SortFacts(prompt=f"Fill in: {template}"), "key-value")
            for template in (
                '{"total": 0, "paid": false, "date": "YYYY-MM-DD"}',
                '{"name": "string (full name)", "when": "DD/MM/YYYY HH:MM"}',
                "{'name': '', 'total': 'number'}",
                '{"currency": ["USD", "EUR"], "category": ""}',
                '{"$defs": {}, "properties": {"a": {"description": "%s"}}}' % ("x" * 20_000),
            )
        ),
        (SortFacts(wants_json=True, prompt="Merchant, category and total, please"), "key-value"),
        (SortFacts(schema={"$ref": "#/$defs/Gone", "$defs": {}}), "key-value"),
        (SortFacts(schema={"items": {"items": {"items": {"items": {"items": {}}}}}}), "key-value"),
        (SortFacts(template={"store": "verbatim-string"}), "key-value"),
        (SortFacts(template_mode="markdown", template={"a": ""}), "text"),
        (SortFacts(template_mode="content"), "text"),
        (SortFacts(wants_json=True), "key-value"),
        (
            SortFacts(prompt='Fill this in: {"date": "", "lines": [{"amount": "number"}], "note": null}'),
            "key-value",
        ),
        (
            SortFacts(system='Answer by {"type": "object", "properties": {"total": {"type": "number"}}}'),
            "key-value",
        ),
        (SortFacts(prompt='An {example} of {broken json and then {"name": "string"}'), "key-value"),
    ],
)
def test_structure_tells_the_route(facts: SortFacts, route: str) -> None:
    assert sort(facts, RULES) == SortDecision(route, Reason.STRUCTURE)


@pytest.mark.parametrize(
    "prompt",
    [
        "What does it say? Mind the table and the form; answer in JSON.",
        'The answer was {"total": "42.00"} last time.',
        "Mark every bounding box, as JSON",
        "{" * 100,
        '{"a":' * 2000,
        "",
    ],
)
def test_a_prompt_that_tells_nothing_leaves_it_to_the_image(prompt: str) -> None:
    assert sort(SortFacts(prompt=prompt, has_image=True), RULES) is None


@pytest.mark.parametrize("prompt", ["hello", "ping", ""])
def test_without_an_image_the_default_route_answers(prompt: str) -> None:
    assert sort(SortFacts(prompt=prompt), RULES) == by_default(RULES) == SortDecision("text", Reason.DEFAULT)


def test_hints_beat_everything_in_their_order() -> None:
    facts = {"prompt": "Text Recognition:", "header": "table", "alias": "key-value", "metadata": "text"}
    assert sort(SortFacts(**facts), RULES) == SortDecision("table", Reason.HEADER)
    del facts["header"]
    assert sort(SortFacts(**facts), RULES) == SortDecision("key-value", Reason.MODEL)
    del facts["alias"]
    assert sort(SortFacts(**facts), RULES) == SortDecision("text", Reason.METADATA)


@pytest.mark.parametrize("hint", ["header", "alias", "metadata"])
def test_an_unknown_route_is_refused_with_the_list_of_routes(hint: str) -> None:
    with pytest.raises(BadRequest, match="text, key-value, table"):
        sort(SortFacts(**{hint: "tables"}), RULES)


def test_operators_patterns_come_first_and_see_the_normalised_prompt() -> None:
    rules = SortRules(RULES.routes, "text", {"table": (re.compile("^list the rows"), re.compile("^ocr$"))})
    for prompt, route in (("  List THE rows, please", "table"), ("OCR:", "table"), ("Free OCR.", "text")):
        assert sort(SortFacts(prompt=prompt), rules) == SortDecision(route, Reason.PROMPT)


def test_evidence_for_a_route_that_is_not_configured_is_passed_over() -> None:
    rules = SortRules(("pages", "tables"), "pages")
    assert sort(SortFacts(prompt="Table Recognition:"), rules) == SortDecision("pages", Reason.DEFAULT)
    assert sort_by_layout(LayoutGuess("table", 0.9), rules) == SortDecision("pages", Reason.DEFAULT)


def test_a_clear_layout_decides_and_an_unclear_one_does_not() -> None:
    assert sort_by_layout(LayoutGuess("table", 0.8), RULES) == SortDecision("table", Reason.IMAGE, 0.8)
    assert sort_by_layout(LayoutGuess("table", 0.34), RULES) == SortDecision("text", Reason.DEFAULT)


@given(st.text(), st.text(), st.booleans())
def test_any_text_is_sorted_or_left_to_the_image(prompt: str, system: str, has_image: bool) -> None:
    decision = sort(SortFacts(prompt=prompt, system=system, has_image=has_image), RULES)
    assert has_image if decision is None else decision.route in RULES.routes


@given(st.text())
@example("0-.")
def test_normalising_twice_changes_nothing(prompt: str) -> None:
    once = normalise(prompt)
    assert normalise(once) == once


@pytest.mark.parametrize("levels", [100, 400, 600, 900])
def test_a_form_that_is_nested_absurdly_is_none(levels: int) -> None:
    for opening, closing, core in (("[", "]", ""), ('{"b":', "}", '""')):
        text = '{"a":' + opening * levels + core + closing * levels + "}"
        assert sort(SortFacts(prompt=text), RULES) == by_default(RULES)


def test_a_form_with_more_elements_than_any_is_none() -> None:
    for fields, route in ((1_000, "key-value"), (5_000, "text")):
        text = "{" + ",".join(f'"{number}":""' for number in range(fields)) + "}"
        decision = sort(SortFacts(prompt=text), RULES)
        assert decision is not None
        assert decision.route == route


def test_what_is_compared_stays_short_where_characters_stand_for_words() -> None:
    assert len(normalise("\ufdfa" * 10_000)) <= 8_192


def test_an_empty_object_before_a_form_is_passed_over() -> None:
    decision = sort(SortFacts(prompt='{} {"total": ""}'), RULES)
    assert decision == SortDecision("key-value", Reason.STRUCTURE)
