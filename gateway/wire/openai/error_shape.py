"""OpenAI's shape of an error: written for clients, read from engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gateway.wire import sse
from gateway.wire.partial_json import object_of

if TYPE_CHECKING:
    from gateway.errors import GatewayError


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


def read_error_message(body: bytes) -> str:
    """Return the message of an engine's error body, at most 500 printable characters; empty without one."""
    error = object_of(body).get("error")
    message = error.get("message") if isinstance(error, dict) else error
    if not isinstance(message, str):
        return ""
    return "".join(character if character.isprintable() else " " for character in message[:500])
