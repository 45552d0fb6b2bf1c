"""OpenAI's shape of an error: written for clients, read from engines."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.wire import sse
from gateway.wire.partial_json import object_of

if TYPE_CHECKING:
    from gateway.errors import GatewayError

_MESSAGE_CHARS = 500
_SKETCH_BYTES = 120
# So much of a body that is no JSON is looked through for its message.
_TEXT_BYTES = 4096
_HEADING = re.compile(r"(?is)<(?:title|h1)[^<>]*>([^<>]+)<")


def error_body(error: GatewayError) -> bytes:
    """Return OpenAI's error object for a refusal."""
    fields = {
        "message": error.message,
        "type": error.kind,
        "param": error.param,
        "code": error.code,
    }
    return msgspec.json.encode({"error": fields})


def error_event(error: GatewayError, place: int) -> bytes:
    """Return what a stream of chunks that breaks off ends with."""
    return sse.data_event(error_body(error))


def error_headers(error: GatewayError, body: bytes) -> dict[str, str]:
    """Return the headers that go with a refusal's body."""
    headers = {"content-type": "application/json", "content-length": str(len(body))}
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    return headers


def is_error_body(body: bytes) -> bool:
    """Whether a body is an error in OpenAI's shape."""
    error = object_of(body).get("error")
    return isinstance(error, dict) and isinstance(error.get("message"), str)


def read_error_message(body: bytes) -> str:
    """Return the message of an engine's error body, at most 500 printable characters; empty without one.

    It is found in OpenAI's shape, in vLLM's flat one of old (`{"object": "error", "message": ...}`), in
    FastAPI's (`detail`, a string or a list), in the title of an HTML page, and in plain text.
    """
    fields = object_of(body)
    error = fields.get("error")
    detail = fields.get("detail")
    found = (
        error.get("message") if isinstance(error, dict) else error,
        fields.get("message"),
        detail,
        _detail(detail) if isinstance(detail, list) else None,
    )
    message = next((words for words in found if words and isinstance(words, str)), "")
    if not (message or fields):
        message = _text(body)
    return _printable(message[:_MESSAGE_CHARS]).strip()


def read_error_status(body: bytes) -> int:
    """Return the HTTP status that an error tells in its body, where it is one of 400 to 599; else 0."""
    fields = object_of(body)
    error = fields.get("error")
    return status_of(error if isinstance(error, dict) else fields)


def status_of(error: object) -> int:
    """Return an error object's `code` where it is an HTTP status of 400 to 599; else 0."""
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 400 <= code < 600 else 0


def sketch(content_type: str, body: bytes) -> str:
    """Say for a log what a body is, without any text that may be a document's."""
    if fields := object_of(body):
        names = ", ".join(_printable(name[:32]) for name in list(fields)[:8])
        return f"a JSON object with {names}"
    if body.lstrip()[:1] == b"<":
        return _printable(body[:_SKETCH_BYTES].decode(errors="replace"))
    return f"{len(body):,} bytes of {_printable(content_type[:64]) or 'no type'}"


def _detail(errors: list[Any]) -> str:
    words = (error.get("msg") for error in errors[:8] if isinstance(error, dict))
    return "; ".join(word for word in words if isinstance(word, str))


def _text(body: bytes) -> str:
    """Return what a body that is no JSON says: an HTML page's title or first heading, or plain text."""
    start = body[:_TEXT_BYTES].decode(errors="replace").strip()
    if start[:1] in ("{", "["):
        return ""
    if start[:1] == "<":
        heading = _HEADING.search(start)
        return html.unescape(heading[1]).strip() if heading else ""
    return start


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
