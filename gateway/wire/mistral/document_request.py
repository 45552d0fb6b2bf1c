"""A request for a document to be read, in Mistral's format: a JSON body, or a form."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.errors import BadImage, BadRequest
from gateway.wire.image import headers, remote_url
from gateway.wire.mistral import form
from gateway.wire.partial_json import MEMBERS, NULL, STRING, decode, decode_body, is_set

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.model import Buffer
    from gateway.wire.mistral.page_tables import TableFormat

# What Mistral's API has and this one has not: asked for, it is refused, since an answer without it would not
# be what the client expects.
_REFUSED = ("bbox_annotation_format", "confidence_scores_granularity", "extract_footer", "extract_header")
_UNSET = (b"null", b"false")
_MAX_PROMPT_CHARS = 65_536
_MAX_SCHEMA_BYTES = 256 * 1024
_RANGE = re.compile(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9})\s*)?")

_FILE = "file"
# Members that are text in a form, too; the others are JSON there.
_TEXTS = frozenset(("model", "id", "table_format", "document_annotation_prompt"))


class _Body(msgspec.Struct):
    model: str | None = None
    document: msgspec.Raw = NULL
    pages: str | int | list[str | int] | None = None
    stream: bool | None = None
    table_format: str | None = None
    include_blocks: bool | None = None  # which mistralai sets
    include_image_base64: bool | None = None
    image_limit: int | None = None
    image_min_size: int | None = None
    document_annotation_format: msgspec.Raw = NULL
    document_annotation_prompt: str | None = None
    id: str | None = None


class _JsonSchema(msgspec.Struct):
    name: str
    schema: dict[str, Any]


class _Format(msgspec.Struct):
    type: str
    json_schema: _JsonSchema | None = None


_BODY = msgspec.json.Decoder(_Body)
_FORMAT = msgspec.json.Decoder(_Format)
_TABLE_FORMATS: dict[str, TableFormat] = {"html": "html", "markdown": "markdown"}
_MEMBERS = frozenset(_Body.__struct_fields__)


@dataclass(frozen=True, slots=True)
class DocumentRequest:
    """A document to read.

    Attributes:
        model: the requested model, None where the client named none.
        data: the document; None where it lies elsewhere.
        url: where it is to be fetched from then.
        param: the member that it came by.
        pages: ranges of them, first and last; None for all.
        stream: each page is sent as soon as it is done.
        table_format: tables are taken out of the pages, in this form.
        annotation: the `response_format`, as JSON, of an annotation of the whole document.
        annotation_prompt: the prompt for it.
    """

    model: str | None
    data: Buffer | None
    url: bytes | None
    param: str
    pages: tuple[tuple[int, int], ...] | None
    stream: bool
    table_format: TableFormat | None
    annotation: bytes | None
    annotation_prompt: str


def parse_json(body: bytes) -> DocumentRequest:
    """Read a request that is JSON.

    Raises:
        BadRequest: invalid JSON, a member that is mistyped, unknown or not supported, or no document.
    """
    members = decode_body(MEMBERS, body)
    _check_members(members)
    return _request(decode(_BODY, body), None)


def parse_form(body: bytes, content_type: str) -> DocumentRequest:
    """Read a request that is a form (multipart/form-data): the document is its `file`.

    Raises:
        BadRequest: no such form, or as parse_json.
    """
    parts = form.form_parts(body, content_type)
    file = parts.pop(_FILE, None)
    members = {name: form.as_json(name, bytes(text), is_text=name in _TEXTS) for name, text in parts.items()}
    _check_members(members)
    text = b",".join(b"%s:%s" % (msgspec.json.encode(name), value) for name, value in members.items())
    return _request(decode_body(_BODY, b"{%s}" % text), file)


def _check_members(members: Mapping[str, Buffer | msgspec.Raw]) -> None:
    for name, value in members.items():
        if name not in _MEMBERS and bytes(value) not in _UNSET:
            known = "not supported" if name in _REFUSED else "unknown"
            raise BadRequest(
                f"`{name[:64]}` is {known} here; these may be used: {', '.join(sorted(_MEMBERS))}",
                param=name[:64],
                code="unsupported_parameter",
            )


def _request(fields: _Body, file: Buffer | None) -> DocumentRequest:
    prompt = fields.document_annotation_prompt or ""
    if len(prompt) > _MAX_PROMPT_CHARS:
        raise BadRequest(
            f"`document_annotation_prompt` has {len(prompt):,} characters, over {_MAX_PROMPT_CHARS:,}",
            param="document_annotation_prompt",
        )
    table_format = _TABLE_FORMATS.get(fields.table_format or "")
    if fields.table_format is not None and table_format is None:
        raise BadRequest("`table_format` must be html or markdown", param="table_format")
    annotation = _annotation(fields.document_annotation_format)
    if prompt and not annotation:
        raise BadRequest(
            "`document_annotation_prompt` needs a `document_annotation_format`",
            param="document_annotation_prompt",
        )
    if file is not None and is_set(fields.document):
        raise BadRequest("give one document: `file` or `document`", param="document")
    data, url, param = (file, None, _FILE) if file is not None else _source(fields.document)
    return DocumentRequest(
        model=fields.model,
        data=data,
        url=url,
        param=param,
        pages=_ranges(fields.pages),
        stream=bool(fields.stream),
        table_format=table_format,
        annotation=annotation,
        annotation_prompt=prompt,
    )


def _source(raw: msgspec.Raw) -> tuple[Buffer | None, bytes | None, str]:
    """Return the document, or where it is to be fetched from, and the member that it came by."""
    if not is_set(raw):
        raise BadRequest(
            "there is no document: send `document` with a `document_url` or `image_url`, or a form's `file`",
            param="document",
        )
    members: dict[str, msgspec.Raw] = decode(MEMBERS, raw)
    if is_set(members.get("file_id", NULL)) or bytes(members.get("type", NULL)) == b'"file"':
        raise BadRequest(
            "`document.file_id`: no files are kept here; send the document as a data URL, or a form's `file`",
            param="document.file_id",
            code="unsupported_parameter",
        )
    given = [name for name in ("document_url", "image_url") if is_set(members.get(name, NULL))]
    if len(given) != 1:
        raise BadRequest("`document` must have one of `document_url` and `image_url`", param="document")
    if is_set(kind := members.get("type", NULL)) and bytes(kind) != b'"%s"' % given[0].encode():
        raise BadRequest(
            f"`document.type` must be {given[0]!r}, as its other member is", param="document.type"
        )
    param = f"document.{given[0]}"
    url = members[given[0]]
    if bytes(memoryview(url)[:1]) == b"{":
        url = decode(MEMBERS, url).get("url", NULL)
    if bytes(memoryview(url)[:1]) != b'"':
        raise BadRequest(f"`{param}` must be a URL, as a string", param=param)
    text = bytes(url)
    plain: Buffer = decode(STRING, url).encode() if b"\\" in text else memoryview(text)[1:-1]
    if remote_url.is_remote(plain):
        return None, bytes(plain), param
    try:
        return headers.parse_data_url(plain).data, None, param
    except BadImage as error:
        raise BadRequest(
            f"`{param}` must be an http(s) URL, or a data URL in base64: data:application/pdf;base64,...",
            param=param,
            code="invalid_document",
        ) from error


def _annotation(raw: msgspec.Raw) -> bytes | None:
    if not is_set(raw):
        return None
    param = "document_annotation_format"
    text = bytes(raw)
    try:
        found = _FORMAT.decode(text) if len(text) <= _MAX_SCHEMA_BYTES else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        found = None
    if found is None or found.type != "json_schema" or found.json_schema is None:
        raise BadRequest(
            f"`{param}` must be of type json_schema, with a `json_schema` that has a `name` and a `schema`, "
            f"and have at most {_MAX_SCHEMA_BYTES:,} bytes",
            param=param,
        )
    return text


def _ranges(told: str | int | list[str | int] | None) -> tuple[tuple[int, int], ...] | None:
    if told is None:
        return None
    entries = ",".join(map(str, told)) if isinstance(told, list) else str(told)
    found = [_RANGE.fullmatch(entry) for entry in entries.split(",")]
    ranges = tuple((int(one[1]), int(one[2] or one[1])) for one in found if one)
    if len(ranges) < len(found) or any(last < first for first, last in ranges):
        raise BadRequest(
            '`pages` must be numbers from 0 on, or ranges of them: 3, [0, 2] or "0-5,9"',
            param="pages",
            code="page_out_of_range",
        )
    return ranges
