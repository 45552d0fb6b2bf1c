import json

import pytest

from gateway.tools.ocr.document_result import SUFFIXES, DocumentResult, described
from tests.tools.ocr.stub import page

REST = {"model": "glm-ocr", "document_annotation": None, "usage_info": {"pages_processed": 2}}


def answer(broken: int = -1) -> DocumentResult:
    return DocumentResult(3, {index: page(index, broken=index == broken) for index in (2, 0, 1)}, REST)


def test_pages_stand_in_their_order() -> None:
    markdown = answer().rendered("markdown").decode()
    assert markdown == "\n\n".join(f"# Page {index}\n\n**bold** text" for index in range(3)) + "\n"
    assert answer().rendered("text").decode() == "\f".join(f"Page {i}\n\nbold text" for i in range(3)) + "\n"


def test_json_is_the_servers_answer() -> None:
    whole = json.loads(answer(broken=1).rendered("json"))
    assert whole == {"pages": [page(0), page(1, broken=True), page(2)], **REST}


@pytest.mark.parametrize("kind", ["markdown", "text"])
def test_a_page_that_could_not_be_read_is_named_in_its_place(kind: str) -> None:
    found = answer(broken=1)
    assert found.failures() == ["page 1: the page cannot be rendered (bad_page)"]
    assert found.broken() == [1]
    pages = found.rendered(kind).decode()
    told = pages.index("page 1 could not be read: the page cannot be rendered")
    assert pages.index("Page 0") < told < pages.index("Page 2")
    assert answer().failures() == []


@pytest.mark.parametrize("message", ["--> <b>", "---->>", "--->", "--!>"])
def test_a_comment_cannot_be_left_from_within(message: str) -> None:
    found = DocumentResult(1, {0: {"markdown": "", "error": {"message": message}}}, REST)
    assert found.rendered("markdown").decode().count(">") == 1


def test_text_that_is_no_unicode_is_written_all_the_same() -> None:
    found = DocumentResult(1, {0: {"index": 0, "markdown": "a\ud800b"}}, REST)
    for kind in SUFFIXES:
        assert b"a" in found.rendered(kind)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ({"message": "no\nengine", "code": "no_engine"}, "no engine (no_engine)"),
        ({"message": "no engine", "code": None}, "no engine"),
        ({}, "no reason given"),
        ("Bad Gateway", "Bad Gateway"),
    ],
)
def test_errors_are_told_in_words(error: object, words: str) -> None:
    assert described(error) == words


def test_values_that_could_not_be_read_are_named() -> None:
    found = DocumentResult(
        1, {0: page(0)}, {**REST, "document_annotation_error": {"message": "no engine is up"}}
    )
    assert found.failures() == ["values of the schema: no engine is up"]
    assert found.broken() == []
