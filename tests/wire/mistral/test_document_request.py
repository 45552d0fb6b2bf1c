from __future__ import annotations

import base64
import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BadRequest
from gateway.wire.mistral import DocumentRequest, parse_json
from tests import pdf
from tests.support import data_url, png

DOCUMENT = pdf.document(["hello"])
URL = data_url(DOCUMENT, "application/pdf")
SCHEMA = {"type": "json_schema", "json_schema": {"name": "bill", "schema": {"type": "object"}}}


def asked(**members: Any) -> dict[str, Any]:
    return {"model": "glm-ocr", "document": {"type": "document_url", "document_url": URL}, **members}


def parsed(**members: Any) -> DocumentRequest:
    return parse_json(json.dumps(asked(**members)).encode())


def refused(body: bytes | dict[str, Any]) -> BadRequest:
    with pytest.raises(BadRequest) as raised:
        parse_json(body if isinstance(body, bytes) else json.dumps(body).encode())
    return raised.value


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
    assert request == DocumentRequest(
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
    request = parse_json(json.dumps({"document": {"document_url": URL}}).encode())
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
    assert bytes(parse_json(body).data or b"") == png()


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


@given(st.binary(max_size=200), st.integers(0, 400))
def test_whatever_comes_is_read_or_refused(noise: bytes, at: int) -> None:
    small = {
        "document": {"document_url": f"data:;base64,{base64.b64encode(b'%PDF-').decode()}"},
        "pages": "0-2",
    }
    whole = json.dumps(small).encode()
    for body in (noise, whole[:at] + noise + whole[at:]):
        with contextlib.suppress(BadRequest):
            request = parse_json(body)
            assert (request.data is None) != (request.url is None)
