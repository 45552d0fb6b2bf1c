from __future__ import annotations

import base64
import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BadImage, BadRequest, EngineFailed, Unavailable
from gateway.model import Reason, SortDecision
from gateway.wire.mistral import ocr
from gateway.wire.openai.request_body import parse_request
from tests import pdf
from tests.support import completion, data_url, encoded, picture, png

DOCUMENT = pdf.document(["hello"])
URL = data_url(DOCUMENT, "application/pdf")
SCHEMA = {"type": "json_schema", "json_schema": {"name": "bill", "schema": {"type": "object"}}}


def asked(**members: Any) -> dict[str, Any]:
    return {"model": "glm-ocr", "document": {"type": "document_url", "document_url": URL}, **members}


def parsed(**members: Any) -> ocr.OcrRequest:
    return ocr.parse_json(json.dumps(asked(**members)).encode())


def refused(body: bytes | dict[str, Any]) -> BadRequest:
    with pytest.raises(BadRequest) as raised:
        ocr.parse_json(body if isinstance(body, bytes) else json.dumps(body).encode())
    return raised.value


# --- requests


def test_a_request_is_read_with_its_document() -> None:
    request = parsed(
        stream=True,
        pages=[0, "2-3"],
        table_format="html",
        include_blocks=True,
        include_image_base64=True,
        image_limit=3,
        image_min_size=0,
        document_annotation_format=SCHEMA,
        document_annotation_prompt="the bill",
        id="mine",
        extract_header=False,
        bbox_annotation_format=None,
        something_new=None,
    )
    assert bytes(request.data or b"") == DOCUMENT
    assert request == ocr.OcrRequest(
        model="glm-ocr",
        data=request.data,
        url=None,
        param="document.document_url",
        pages=((0, 0), (2, 3)),
        stream=True,
        table_format="html",
        annotation=json.dumps(SCHEMA).encode(),
        annotation_prompt="the bill",
    )


def test_only_the_document_is_needed() -> None:
    request = ocr.parse_json(json.dumps({"document": {"document_url": URL}}).encode())
    assert (request.model, request.pages, request.stream, request.table_format) == (None, None, False, None)
    assert (request.annotation, request.annotation_prompt) == (None, "")


@pytest.mark.parametrize(
    "document",
    [
        {"type": "image_url", "image_url": data_url(png())},
        {"type": "image_url", "image_url": {"url": data_url(png()), "detail": "high"}},
        {"image_url": data_url(png()), "document_url": None},
        {"type": "image_url", "image_url": data_url(png()).replace("/", "\\/")},
    ],
)
def test_an_image_may_come_in_each_form(document: dict[str, Any]) -> None:
    body = json.dumps({"document": document}).replace("\\\\/", "\\/").encode()
    assert bytes(ocr.parse_json(body).data or b"") == png()


def test_what_lies_elsewhere_is_to_be_fetched() -> None:
    request = parsed(document={"type": "document_url", "document_url": "https://files.example/a.pdf"})
    assert (request.data, request.url) == (None, b"https://files.example/a.pdf")


@pytest.mark.parametrize(
    ("pages", "ranges"),
    [
        (None, None),
        (3, ((3, 3),)),
        ("3", ((3, 3),)),
        ([], None),
        ([0, 2], ((0, 0), (2, 2))),
        ("0-5, 9", ((0, 5), (9, 9))),
        (["1 - 2", 7], ((1, 2), (7, 7))),
    ],
)
def test_pages_are_numbers_and_ranges(pages: Any, ranges: Any) -> None:
    if pages == []:
        assert refused(asked(pages=pages)).code == "page_out_of_range"
    else:
        assert parsed(pages=pages).pages == ranges


@pytest.mark.parametrize("pages", ["", "-1", -1, "1-", "5-2", "a", "0,,1", [""], "9999999999"])
def test_other_pages_are_refused(pages: Any) -> None:
    error = refused(asked(pages=pages))
    assert (error.param, error.code) == ("pages", "page_out_of_range")


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (b"{", None, "invalid_json"),
        (b"[]", None, None),
        (b'{"a":"\xff"}', None, "invalid_json"),
        (b"{" + b"," * 60_000, None, "invalid_json"),
        ({}, "document", None),
        ({"document": None}, "document", None),
        ({"document": {}}, "document", None),
        ({"document": {"document_url": URL, "image_url": URL}}, "document", None),
        ({"document": {"type": "file", "file_id": "x"}}, "document.file_id", "unsupported_parameter"),
        ({"document": {"type": "file"}}, "document.file_id", "unsupported_parameter"),
        ({"document": {"type": "image_url", "document_url": URL}}, "document.type", None),
        ({"document": {"document_url": 7}}, "document.document_url", None),
        ({"document": {"image_url": {}}}, "document.image_url", None),
        ({"document": {"document_url": "file:///etc/passwd"}}, "document.document_url", "invalid_document"),
        (
            {"document": {"document_url": "data:application/pdf,x"}},
            "document.document_url",
            "invalid_document",
        ),
        (asked(model=7), "model", None),
        (asked(table_format="xml"), "table_format", None),
        (asked(extract_header=True), "extract_header", "unsupported_parameter"),
        (asked(bbox_annotation_format=SCHEMA), "bbox_annotation_format", "unsupported_parameter"),
        (asked(include_blocks=1), "include_blocks", None),
        (
            asked(confidence_scores_granularity="page"),
            "confidence_scores_granularity",
            "unsupported_parameter",
        ),
        (asked(whatever="x"), "whatever", "unsupported_parameter"),
        (asked(document_annotation_format={"type": "text"}), "document_annotation_format", None),
        (asked(document_annotation_format="x"), "document_annotation_format", None),
        (
            asked(document_annotation_format={"type": "json_schema", "json_schema": {"name": "x"}}),
            "document_annotation_format",
            None,
        ),
        (
            asked(document_annotation_format={**SCHEMA, "more": "x" * 300_000}),
            "document_annotation_format",
            None,
        ),
        (asked(document_annotation_prompt="x"), "document_annotation_prompt", None),
        (
            asked(document_annotation_format=SCHEMA, document_annotation_prompt="x" * 70_000),
            "document_annotation_prompt",
            None,
        ),
    ],
)
def test_a_refusal_names_what_is_wrong(
    body: bytes | dict[str, Any], param: str | None, code: str | None
) -> None:
    error = refused(body)
    assert (error.param, error.code) == (param, code)


def test_what_may_be_used_is_told() -> None:
    assert "table_format" in refused(asked(extract_footer=True)).message
    assert "not supported" in refused(asked(extract_footer=True)).message
    assert "unknown" in refused(asked(pgs=[1])).message


# --- forms


def form(*parts: tuple[str, bytes], boundary: str = "b0undary", end: str = "--") -> bytes:
    lines = [
        b'--%s\r\nContent-Disposition: form-data; name="%s"%s\r\nX-Other: y\r\n\r\n%s\r\n'
        % (boundary.encode(), name.encode(), b'; filename="a.pdf"' if name == "file" else b"", data)
        for name, data in parts
    ]
    return b"".join(lines) + f"--{boundary}{end}".encode()


def from_form(
    *parts: tuple[str, bytes], kind: str = "multipart/form-data; boundary=b0undary"
) -> ocr.OcrRequest:
    return ocr.parse_form(form(*parts), kind)


def test_a_form_brings_the_document_as_a_file() -> None:
    data = DOCUMENT + b"\r\n--b0\r\n\0\xff"
    request = from_form(
        ("model", b"glm-ocr"),
        ("pages", b"0-2"),
        ("stream", b"True"),
        ("table_format", b"html"),
        ("document_annotation_format", json.dumps(SCHEMA).encode()),
        ("document_annotation_prompt", "the bill, \u00fc".encode()),
        ("include_image_base64", b"false"),
        ("image_limit", b""),
        ("file", data),
    )
    assert bytes(request.data or b"") == data
    assert (request.model, request.pages, request.stream, request.param) == (
        "glm-ocr",
        ((0, 2),),
        True,
        "file",
    )
    assert (request.table_format, request.annotation_prompt) == ("html", "the bill, \u00fc")
    assert msgspec.json.decode(request.annotation or b"") == SCHEMA


@pytest.mark.parametrize(
    ("pages", "ranges"), [(b"3", ((3, 3),)), (b"[0, 2]", ((0, 0), (2, 2))), (b"0,2", ((0, 0), (2, 2)))]
)
def test_a_forms_pages_are_json_or_as_people_write_them(pages: bytes, ranges: Any) -> None:
    assert from_form(("pages", pages), ("file", b"x")).pages == ranges


def test_a_form_may_name_its_document_too() -> None:
    request = from_form(("document", json.dumps({"document_url": URL}).encode()))
    assert bytes(request.data or b"") == DOCUMENT


KIND = "multipart/form-data; boundary=b0undary"


@pytest.mark.parametrize(
    ("body", "kind", "param", "code"),
    [
        (form(), "multipart/form-data", "content-type", "bad_content_type"),
        (b"", KIND, None, "invalid_form"),
        (form(("file", b"x"), end=""), KIND, None, "invalid_form"),
        (form(("file", b"x")), "multipart/form-data; boundary=other", None, "invalid_form"),
        (form(("file", b"x")), f"multipart/form-data; boundary={'b' * 300}", None, "invalid_form"),
        (form(("file", b"x"), ("file", b"y")), KIND, "file", "invalid_form"),
        (form(("model", b"x" * 600_000), ("file", b"y")), KIND, "model", "invalid_form"),
        (form(*[(f"m{n}", b"null") for n in range(40)]), KIND, None, "invalid_form"),
        (form(("whatever", b"x"), ("file", b"y")), KIND, "whatever", "unsupported_parameter"),
        (form(("stream", b"perhaps"), ("file", b"y")), KIND, "stream", None),
        (form(("model", b"x")), KIND, "document", None),
        (form(("file", b"x"), ("document", b'{"document_url":"x"}')), KIND, "document", None),
    ],
)
def test_a_forms_refusal_names_what_is_wrong(
    body: bytes, kind: str, param: str | None, code: str | None
) -> None:
    with pytest.raises(BadRequest) as raised:
        ocr.parse_form(body, kind)
    assert (raised.value.param, raised.value.code) == (param, code)


@given(st.binary(max_size=300), st.integers(0, 300))
def test_whatever_comes_as_a_form_is_read_or_refused(noise: bytes, at: int) -> None:
    whole = form(("model", b"glm-ocr"), ("file", noise))
    for body in (noise, whole[:at] + noise + whole[at:], whole[:at] + whole[at + 1 :]):
        with contextlib.suppress(BadRequest):
            ocr.parse_form(body, KIND)


# --- what it is, and which pages


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (DOCUMENT, "pdf"),
        (b"\0junk before it" + DOCUMENT, "pdf"),
        (encoded(picture("x"), "TIFF"), "tiff"),
        *[(encoded(picture("x"), name), "image") for name in ("PNG", "JPEG", "WEBP", "GIF", "BMP")],
    ],
)
def test_the_first_bytes_tell_what_it_is(data: bytes, kind: str) -> None:
    assert ocr.kind_of(memoryview(data), "file") == kind


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"<html>", b"RIFF0000WAVE", b"x" * 2000 + DOCUMENT])
def test_what_is_none_of_these_is_refused(data: bytes) -> None:
    with pytest.raises(BadRequest, match=r"0 bytes|none of PDF") as raised:
        ocr.kind_of(data, "file")
    assert (raised.value.param, raised.value.code) == ("file", "invalid_document")


def test_pages_are_read_once_and_in_their_order() -> None:
    assert ocr.chosen(None, 3, 10) == [0, 1, 2]
    assert ocr.chosen(((4, 4), (0, 2), (1, 3), (4, 4), (1, 1)), 5, 5) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("count", [0, -5])
def test_a_document_without_pages_is_refused(count: int) -> None:
    with pytest.raises(BadRequest, match="no pages"):
        ocr.chosen(None, count, 5)


def test_a_page_that_is_not_there_is_refused_with_how_many_there_are() -> None:
    with pytest.raises(BadRequest, match="the document has 3, numbered from 0 to 2") as raised:
        ocr.chosen(((0, 0), (2, 3)), 3, 5)
    assert raised.value.code == "page_out_of_range"


@pytest.mark.parametrize(("pages", "count"), [(None, 1_000_000), (((0, 3), (2, 6)), 7)])
def test_too_many_pages_are_refused_and_may_be_chosen_from(pages: Any, count: int) -> None:
    with pytest.raises(BadRequest, match="`pages`") as raised:
        ocr.chosen(pages, count, 6)
    assert raised.value.code == "too_many_pages"


def scale(width: float, height: float, **limits: Any) -> float:
    return ocr.page_scale(width, height, **{"dpi": 200, "max_side": 2400, "max_pixels": 10**8, **limits})


def test_a_page_is_rendered_at_the_dpi_but_no_larger_than_may_be() -> None:
    assert scale(612, 792) == 200 / 72
    assert round(scale(14_400, 100) * 14_400) == 2400
    assert scale(14_400, 100) * 14_400 < 2400
    assert round((scale(1000, 1000, max_pixels=10_000) * 1000) ** 2) == 10_000


@pytest.mark.parametrize(
    ("width", "height"), [(14_401, 10), (10, 1e30), (0, 10), (-1, 10), (float("nan"), 10), (float("inf"), 10)]
)
def test_a_page_of_impossible_sides_is_refused(width: float, height: float) -> None:
    with pytest.raises(BadImage, match="14,400") as raised:
        scale(width, height)
    assert raised.value.code == "page_too_large"


# --- what a page becomes


def test_a_pages_request_is_one_that_engines_take() -> None:
    url = ocr.image_url(encoded(picture("x"), "JPEG"))
    body = ocr.chat_request('a "model"', [url, url], "Text\n", json.dumps(SCHEMA).encode())
    request = parse_request(body, chat=True, max_images=2)
    assert (request.model, request.facts.prompt, request.facts.schema) == (
        'a "model"',
        "Text\n",
        {"type": "object"},
    )
    assert [bytes(part.url) for part in request.images] == [url, url]
    assert "response_format" not in json.loads(ocr.chat_request("m", [url], "Text"))


def test_an_answers_text_is_read() -> None:
    assert ocr.read_text(json.dumps(completion("hello")).encode()) == ("hello", "stop")
    empty = {"choices": [{"message": {"content": None}}]}
    assert ocr.read_text(json.dumps(empty).encode()) == ("", None)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"choices":[]}', b'{"choices":[{"message":{"content":[]}}]}'])
def test_what_is_no_answer_is_the_engines_fault(body: bytes) -> None:
    with pytest.raises(EngineFailed):
        ocr.read_text(body)


def test_an_engines_refusal_keeps_its_words_and_status() -> None:
    error = ocr.refusal(400, b'{"error":{"message":"encoder cache"}}', None)
    assert (error.status, error.message, error.kind, error.retry_after) == (
        400,
        "encoder cache",
        "invalid_request_error",
        None,
    )
    assert ocr.refusal(429, b"?", "7").retry_after == 7
    assert ocr.refusal(429, b"?", "Mon").retry_after == 1
    assert ocr.refusal(429, b"?", "999999999").retry_after == 60
    assert "429" in ocr.refusal(429, b"?", "7").message


def test_a_page_tells_where_its_text_comes_from() -> None:
    page = ocr.PageResult(
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
    assert json.loads(ocr.page_object(page, None)) == {
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
    told = json.loads(ocr.page_object(ocr.PageResult(0, error=error), "html"))
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
    page = ocr.PageResult(0, text="a|b\n-|-\n")
    told = json.loads(ocr.page_object(page, "markdown"))
    assert told["markdown"] == "[tbl-0.md](tbl-0.md)\n"
    assert told["tables"] == [{"id": "tbl-0.md", "content": "a|b\n-|-", "format": "markdown"}]


def test_a_whole_answer_has_the_pages_and_what_is_told_beside_them() -> None:
    told = ocr.result("m", pages=2, size=7, annotation='{"a":1}', annotation_error=None)
    assert json.loads(ocr.whole([b'{"index":0}', b'{"index":1}'], told)) == {
        "pages": [{"index": 0}, {"index": 1}],
        "model": "m",
        "document_annotation": '{"a":1}',
        "usage_info": {"pages_processed": 2, "doc_size_bytes": 7},
    }
    failed = ocr.result("m", pages=2, size=7, annotation=None, annotation_error=BadRequest("no", code="x"))
    assert failed["document_annotation_error"] == {
        "message": "no",
        "type": "invalid_request_error",
        "param": None,
        "code": "x",
    }


def test_events_are_named_and_one_line() -> None:
    assert ocr.opened_event("m", [0, 1]) == b'event: ocr.document\ndata: {"model":"m","pages":[0,1]}\n\n'
    assert ocr.done_event({"model": "m"}) == b'event: ocr.done\ndata: {"model":"m"}\n\n'


@given(st.binary(max_size=200), st.integers(0, 400))
def test_whatever_comes_is_read_or_refused(noise: bytes, at: int) -> None:
    small = {
        "document": {"document_url": f"data:;base64,{base64.b64encode(b'%PDF-').decode()}"},
        "pages": "0-2",
    }
    whole = json.dumps(small).encode()
    for body in (noise, whole[:at] + noise + whole[at:]):
        with contextlib.suppress(BadRequest):
            request = ocr.parse_json(body)
            assert (request.data is None) != (request.url is None)
