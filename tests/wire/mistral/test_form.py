"""Forms, as a request for a document is made of them."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BadRequest
from gateway.wire.mistral import parse_form
from tests import pdf
from tests.support import data_url

if TYPE_CHECKING:
    from gateway.wire.mistral import DocumentRequest

DOCUMENT = pdf.document(["hello"])
URL = data_url(DOCUMENT, "application/pdf")
SCHEMA = {"type": "json_schema", "json_schema": {"name": "bill", "schema": {"type": "object"}}}


def form(*parts: tuple[str, bytes], boundary: str = "b0undary", end: str = "--") -> bytes:
    lines = [
        b'--%s\r\nContent-Disposition: form-data; name="%s"%s\r\nX-Other: y\r\n\r\n%s\r\n'
        % (boundary.encode(), name.encode(), b'; filename="a.pdf"' if name == "file" else b"", data)
        for name, data in parts
    ]
    return b"".join(lines) + f"--{boundary}{end}".encode()


def from_form(
    *parts: tuple[str, bytes], kind: str = "multipart/form-data; boundary=b0undary"
) -> DocumentRequest:
    return parse_form(form(*parts), kind)


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
        parse_form(body, kind)
    assert (raised.value.param, raised.value.code) == (param, code)


@given(st.binary(max_size=300), st.integers(0, 300))
def test_whatever_comes_as_a_form_is_read_or_refused(noise: bytes, at: int) -> None:
    whole = form(("model", b"glm-ocr"), ("file", noise))
    for body in (noise, whole[:at] + noise + whole[at:], whole[:at] + whole[at + 1 :]):
        with contextlib.suppress(BadRequest):
            parse_form(body, KIND)
