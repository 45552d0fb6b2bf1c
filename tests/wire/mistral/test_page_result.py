import json

from gateway.errors import Unavailable
from gateway.model import Reason, SortDecision
from gateway.wire.mistral import PageResult, page_object


def test_a_page_tells_where_its_text_comes_from() -> None:
    page = PageResult(
        3,
        text="hello",
        finish_reason="stop",
        size=(1700, 2200, 200),
        decision=SortDecision("text", Reason.IMAGE, 0.9),
        pool="mtp3",
        depth=3,
        acceptance_length=2.5,
        seconds=1.23456,
    )
    assert json.loads(page_object(page, None)) == {
        "index": 3,
        "markdown": "hello",
        "images": [],
        "dimensions": {"width": 1700, "height": 2200, "dpi": 200},
        "ocr": {
            "route": "text",
            "reason": "image",
            "pool": "mtp3",
            "depth": 3,
            "acceptance_length": 2.5,
            "finish_reason": "stop",
            "seconds": 1.235,
        },
    }


def test_a_page_that_failed_says_why() -> None:
    error = Unavailable("nobody", code="no_engine", retry_after=2)
    told = json.loads(page_object(PageResult(0, error=error), "html"))
    assert (told["markdown"], told["tables"], told["dimensions"], told["ocr"]["route"]) == (
        "",
        [],
        None,
        None,
    )
    assert told["error"] == {
        "message": "nobody",
        "type": "service_unavailable",
        "param": None,
        "code": "no_engine",
    }


def test_tables_are_told_beside_the_page() -> None:
    page = PageResult(0, text="a|b\n-|-\n")
    told = json.loads(page_object(page, "markdown"))
    assert told["markdown"] == "[tbl-0.md](tbl-0.md)\n"
    assert told["tables"] == [{"id": "tbl-0.md", "content": "a|b\n-|-", "format": "markdown"}]
