"""A form (multipart/form-data): its parts, and the JSON values that they stand for."""

from __future__ import annotations

from typing import Any

import msgspec
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from gateway.errors import BadRequest

_MAX_PARTS = 32
_MAX_PART_BYTES = 512 * 1024


def form_parts(body: bytes, content_type: str) -> dict[str, bytearray]:
    """Return a form's parts by their names.

    Raises:
        BadRequest: it is no whole form, has too many parts, or two of one name.
    """
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
    form = _FormReader()
    try:
        MultipartParser(boundary, form.callbacks()).write(body)  # type: ignore[arg-type]
    except FormParserError as error:
        raise BadRequest(f"the body is not a valid form: {error}", code="invalid_form") from error
    if not form.is_whole:
        raise BadRequest("the form is cut short: its closing boundary is missing", code="invalid_form")
    return form.parts


class _FormReader:
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


def as_json(name: str, text: bytes, *, is_text: bool) -> bytes:
    """Return a form's part as the JSON value that it stands for.

    Args:
        name: the part's.
        text: what it holds.
        is_text: it is text, whatever it looks like; else JSON, or text where it is none.

    Raises:
        BadRequest: it is too long.
    """
    if len(text) > _MAX_PART_BYTES:
        raise BadRequest(
            f"the form's part `{name[:64]}` is over {_MAX_PART_BYTES:,} bytes; the document goes into `file`",
            param=name[:64],
            code="invalid_form",
        )
    plain = text.strip()
    if not plain:
        return b"null"
    if not is_text:
        if plain.lower() in (b"true", b"false", b"null"):  # Python writes them with a capital
            return plain.lower()
        try:
            msgspec.json.decode(plain)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
        else:
            return plain
    return msgspec.json.encode(text.decode("utf-8", "replace"))
