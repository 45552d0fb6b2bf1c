"""Mistral's format for documents (POST /v1/ocr): requests, what a page becomes, the events of a stream."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pybase64
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from gateway.errors import BadImage, BadRequest, EngineFailed, GatewayError
from gateway.wire import openai
from gateway.wire.image import headers, remote_url
from gateway.wire.mistral.page_tables import TableFormat, lift_tables
from gateway.wire.partial_json import MEMBERS, NULL, STRING, decode, decode_body, is_set

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gateway.model import Buffer, SortDecision

Kind = Literal["pdf", "tiff", "image"]

# 200 inches, the largest page that PDF knew for most of its life.
MAX_POINTS = 14_400
POINTS_PER_INCH = 72

# What Mistral's API has and this one has not: asked for, it is refused, since an answer without it would not
# be what the client expects.
_REFUSED = ("bbox_annotation_format", "confidence_scores_granularity", "extract_footer", "extract_header")
_UNSET = (b"null", b"false")
_MAX_PROMPT_CHARS = 65_536
_MAX_SCHEMA_BYTES = 256 * 1024
_RANGE = re.compile(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9})\s*)?")

_FILE = "file"
# Members that are text in a form, too; the others are JSON there.
_WORDS = frozenset(("model", "id", "table_format", "document_annotation_prompt"))
_MAX_PARTS = 32
_MAX_PART_BYTES = 512 * 1024

# The page waits for so long, and its document's turn with it.
_LONGEST_RETRY_S = 60

# Where a PDF's mark may stand: some writers, and mail, put something before it.
_PDF, _PDF_BYTES = b"%PDF-", 1024
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_IMAGES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"BM")


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


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]


_BODY = msgspec.json.Decoder(_Body)
_FORMAT = msgspec.json.Decoder(_Format)
_ANSWER = msgspec.json.Decoder(_Answer)
_FORMS: dict[str, TableFormat] = {"html": "html", "markdown": "markdown"}
_MEMBERS = frozenset(_Body.__struct_fields__)


@dataclass(slots=True)
class OcrRequest:
    """A document to read.

    Attributes:
        model: the requested model, None where the client named none.
        data: the document; None where it is
        url: to be fetched from here.
        param: the member that it came by.
        pages: ranges of them, first and last; None for all.
        stream: each page is to be told as it is done.
        table_format: tables are to be taken out of the pages, in this form.
        annotation: the `response_format`, as JSON, of an annotation of the whole document.
        annotation_prompt: what that is asked for with.
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


@dataclass(slots=True)
class PageResult:
    """What became of a page.

    Attributes:
        index: its place in the document, from 0.
        text: what the engine read; empty where it failed.
        finish_reason: why the engine ended.
        size: width and height in pixels, and dots per inch, as the engine saw it; None where nobody did.
        decision: its route; None where it had none.
        pool: of the engine that read it.
        depth: at which that ran.
        acceptance_length: in tokens per step, where it is known.
        seconds: from its rendering to its end.
        error: why there is no text.
    """

    index: int
    text: str = ""
    finish_reason: str | None = None
    size: tuple[int, int, int] | None = None
    decision: SortDecision | None = None
    pool: str | None = None
    depth: int | None = None
    acceptance_length: float | None = None
    seconds: float = 0.0
    error: GatewayError | None = None


def parse_json(body: bytes) -> OcrRequest:
    """Read a request that is JSON.

    Raises:
        BadRequest: invalid JSON, a member that is mistyped, unknown or not supported, or no document.
    """
    members = decode_body(MEMBERS, body)
    _check_members(members)
    return _request(decode(_BODY, body), None)


def parse_form(body: bytes, content_type: str) -> OcrRequest:
    """Read a request that is a form (multipart/form-data): the document is its `file`.

    Raises:
        BadRequest: no such form, or as parse_json.
    """
    parts = _parts(body, content_type)
    file = parts.pop(_FILE, None)
    members = {name: _as_json(name, bytes(text)) for name, text in parts.items()}
    _check_members(members)
    text = b",".join(b"%s:%s" % (msgspec.json.encode(name), value) for name, value in members.items())
    return _request(decode_body(_BODY, b"{%s}" % text), file)


def kind_of(data: Buffer, param: str) -> Kind:
    """Return what a document is, by its first bytes.

    Raises:
        BadRequest: it is none that can be read here.
    """
    head = bytes(data[:_PDF_BYTES])
    if head.startswith(_TIFF):
        return "tiff"
    if head.startswith(_IMAGES) or (head.startswith(b"RIFF") and head[8:12] == b"WEBP"):
        return "image"
    if _PDF in head:
        return "pdf"
    what = "by its first bytes none of PDF, TIFF, JPEG, PNG, WebP, GIF and BMP" if head else "empty (0 bytes)"
    raise BadRequest(f"the document is {what}", param=param, code="invalid_document")


def chosen(pages: Sequence[tuple[int, int]] | None, count: int, most: int) -> list[int]:
    """Return the pages to read, each once, in their order.

    Args:
        pages: ranges of them, first and last; None for all.
        count: how many the document has.
        most: how many may be read at once.

    Raises:
        BadRequest: there are none, one is not there, or they are too many.
    """
    if count < 1:
        raise BadRequest("the document has no pages", param="document", code="invalid_document")
    if pages and (last := max(last for _, last in pages)) >= count:
        raise BadRequest(
            f"`pages` asks for page {last:,}; the document has {count:,}, numbered from 0 to {count - 1:,}",
            param="pages",
            code="page_out_of_range",
        )
    spans: list[range] = []
    behind = 0
    for first, last in sorted(pages or ((0, count - 1),)):
        spans.append(range(max(first, behind), last + 1))
        behind = max(behind, last + 1)
    total = sum(map(len, spans))
    if total > most:
        raise BadRequest(
            f"{total:,} pages are asked for, of {count:,} in the document; at most {most:,} are read in one "
            f'request (documents.max_pages): choose them with `pages`, such as "0-{most - 1}"',
            param="pages",
            code="too_many_pages",
        )
    return [index for span in spans for index in span]


def page_scale(width: float, height: float, *, dpi: int, max_side: int, max_pixels: int) -> float:
    """Return the pixels per point at which a page is rendered.

    Args:
        width: in points.
        height: in points.
        dpi: dots per inch to render at, where the result is not
        max_side: longer than so many pixels, or has
        max_pixels: more of them in all.

    Raises:
        BadImage: its sides are out of bounds.
    """
    if not (0 < width <= MAX_POINTS and 0 < height <= MAX_POINTS):
        raise BadImage(
            f"the page is {width:g} x {height:g} points; each side may have up to {MAX_POINTS:,}",
            code="page_too_large",
        )
    # The library rounds up; a hair less, so that whole numbers of pixels stay so.
    most = (max_side - 0.01) / max(width, height)
    return min(dpi / POINTS_PER_INCH, most, math.sqrt(max_pixels / (width * height)))


def image_url(jpeg: Buffer) -> bytes:
    """Return a JPEG as a data URL."""
    return b"data:image/jpeg;base64,%s" % pybase64.b64encode(jpeg)


def chat_request(
    model: str, urls: Iterable[Buffer], text: str, response_format: bytes | None = None
) -> bytes:
    """Return the body of a chat completion of images, as data URLs, and a text behind them."""
    parts = [b'{"type":"image_url","image_url":{"url":"%s"}},' % url for url in urls]
    return b"".join(
        (
            b'{"model":%s,"messages":[{"role":"user","content":[' % msgspec.json.encode(model),
            *parts,
            b'{"type":"text","text":%s}]}]' % msgspec.json.encode(text),
            b',"response_format":%s' % response_format if response_format else b"",
            b"}",
        )
    )


def read_text(body: bytes) -> tuple[str, str | None]:
    """Return the text of an engine's answer, and why it ended.

    Raises:
        EngineFailed: it is no chat completion.
    """
    try:
        choice = _ANSWER.decode(body).choices[0]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, IndexError) as error:
        raise EngineFailed("the engine's answer is no completion", code="engine_garbage") from error
    return choice.message.content or "", choice.finish_reason


def refusal(status: int, body: bytes, retry_after: str | None) -> GatewayError:
    """Return an engine's own refusal of a page as an error."""
    told = openai.read_error_message(body)
    error = GatewayError(told or f"the engine refused it with HTTP {status}", code="engine_refused")
    error.status, error.kind = status, BadRequest.kind
    if retry_after is not None:
        told_s = int(retry_after) if re.fullmatch("[0-9]{1,9}", retry_after) else 1
        error.retry_after = min(told_s, _LONGEST_RETRY_S)
    return error


def page_object(page: PageResult, table_format: TableFormat | None) -> bytes:
    """Return what the client gets of a page."""
    told: dict[str, Any] = {"index": page.index, "markdown": page.text, "images": []}
    if table_format:
        told["markdown"], told["tables"] = lift_tables(page.text, table_format)
    told["dimensions"] = None
    if page.size:
        told["dimensions"] = dict(zip(("width", "height", "dpi"), page.size, strict=True))
    told["ocr"] = {
        "route": page.decision.route if page.decision else None,
        "reason": page.decision.reason if page.decision else None,
        "pool": page.pool,
        "depth": page.depth,
        "acceptance_length": page.acceptance_length,
        "finish_reason": page.finish_reason,
        "seconds": round(page.seconds, 3),
    }
    if page.error:
        told["error"] = error_object(page.error)
    return msgspec.json.encode(told)


def error_object(error: GatewayError) -> dict[str, str | None]:
    """Return what the client gets of an error that is not its whole answer."""
    return {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}


def result(
    model: str, *, pages: int, size: int, annotation: str | None, annotation_error: GatewayError | None
) -> dict[str, Any]:
    """Return what the client gets beside the pages.

    Args:
        model: the configured model's name.
        pages: how many were read.
        size: the document's, in bytes.
        annotation: of the whole document, as the engine wrote it.
        annotation_error: why there is none although it was asked for.
    """
    told: dict[str, Any] = {"model": model, "document_annotation": annotation}
    if annotation_error:
        told["document_annotation_error"] = error_object(annotation_error)
    return {**told, "usage_info": {"pages_processed": pages, "doc_size_bytes": size}}


def whole(pages: Iterable[bytes], told: Mapping[str, Any]) -> bytes:
    """Return a whole answer: the pages' objects, and what is told beside them."""
    return b'{"pages":[%s],%s' % (b",".join(pages), msgspec.json.encode(told)[1:])


def event(name: str, data: bytes) -> bytes:
    """Return an event of a stream; `data` is JSON, which has no line breaks here."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)


def opened_event(model: str, pages: Sequence[int]) -> bytes:
    """Return the event that says which pages will come."""
    return event("ocr.document", msgspec.json.encode({"model": model, "pages": pages}))


def done_event(told: Mapping[str, Any]) -> bytes:
    """Return the event behind the last page, with what is told beside them."""
    return event("ocr.done", msgspec.json.encode(told))


def _check_members(members: Mapping[str, Buffer | msgspec.Raw]) -> None:
    for name, value in members.items():
        if name not in _MEMBERS and bytes(value) not in _UNSET:
            known = "not supported" if name in _REFUSED else "unknown"
            raise BadRequest(
                f"`{name[:64]}` is {known} here; these may be used: {', '.join(sorted(_MEMBERS))}",
                param=name[:64],
                code="unsupported_parameter",
            )


def _request(fields: _Body, file: Buffer | None) -> OcrRequest:
    prompt = fields.document_annotation_prompt or ""
    if len(prompt) > _MAX_PROMPT_CHARS:
        raise BadRequest(
            f"`document_annotation_prompt` has {len(prompt):,} characters, over {_MAX_PROMPT_CHARS:,}",
            param="document_annotation_prompt",
        )
    table_format = _FORMS.get(fields.table_format or "")
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
    return OcrRequest(
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


def _parts(body: bytes, content_type: str) -> dict[str, bytearray]:
    """Return a form's parts by their names."""
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if not boundary:
        raise BadRequest(
            "the content type multipart/form-data lacks its boundary",
            param="content-type",
            code="bad_content_type",
        )
    # Each costs time that its few bytes do not show.
    if body.count(b"--" + boundary) > _MAX_PARTS + 1:
        raise BadRequest(f"the form has more than {_MAX_PARTS} parts", code="invalid_form")
    form = _Form()
    try:
        MultipartParser(boundary, form.callbacks()).write(body)  # type: ignore[arg-type]
    except FormParserError as error:
        raise BadRequest(f"the body is not a valid form: {error}", code="invalid_form") from error
    if not form.is_whole:
        raise BadRequest("the form is cut short: its closing boundary is missing", code="invalid_form")
    return form.parts


class _Form:
    """Gathers a form's parts."""

    def __init__(self) -> None:
        self.parts: dict[str, bytearray] = {}
        self.is_whole = False
        self._name, self._value = bytearray(), bytearray()
        self._disposition = b""
        self._data = bytearray()

    def callbacks(self) -> dict[str, Any]:
        return {
            "on_part_begin": self._begin,
            "on_header_begin": self._header_begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._part_data,
            "on_end": self._end,
        }

    def _begin(self) -> None:
        self._disposition = b""

    def _header_begin(self) -> None:
        self._name, self._value = bytearray(), bytearray()

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._disposition = bytes(self._value)

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if name in self.parts:
            raise BadRequest(
                f"the form has `{name[:64]}` twice; a list goes into one part, as JSON",
                param=name[:64],
                code="invalid_form",
            )
        self._data = self.parts[name] = bytearray()

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        self._data += memoryview(data)[start:end]

    def _end(self) -> None:
        self.is_whole = True


def _as_json(name: str, text: bytes) -> bytes:
    """Return a form's part as the JSON value that it stands for."""
    if len(text) > _MAX_PART_BYTES:
        raise BadRequest(
            f"the form's part `{name[:64]}` is over {_MAX_PART_BYTES:,} bytes; the document goes into `file`",
            param=name[:64],
            code="invalid_form",
        )
    plain = text.strip()
    if not plain:
        return b"null"
    if name not in _WORDS:
        if plain.lower() in (b"true", b"false", b"null"):  # Python writes them with a capital
            return plain.lower()
        try:
            msgspec.json.decode(plain)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
        else:
            return plain
    return msgspec.json.encode(text.decode("utf-8", "replace"))
