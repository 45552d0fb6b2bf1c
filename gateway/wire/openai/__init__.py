"""OpenAI's formats, as far as the gateway reads them.

What others call stands here; begin with `request_body`.
"""

from gateway.wire.openai.completion import (
    COMPLETIONS,
    Dialect,
    StreamChunk,
    WholeAnswer,
    read_answer,
    read_chunk,
    usage_of,
)
from gateway.wire.openai.error_shape import (
    error_body,
    error_event,
    error_headers,
    is_error_body,
    read_error_message,
    read_error_status,
    sketch,
)
from gateway.wire.openai.request_body import CompletionRequest, parse_lifted, parse_request, rewritten

__all__ = [
    "COMPLETIONS",
    "CompletionRequest",
    "Dialect",
    "StreamChunk",
    "WholeAnswer",
    "error_body",
    "error_event",
    "error_headers",
    "is_error_body",
    "parse_lifted",
    "parse_request",
    "read_answer",
    "read_chunk",
    "read_error_message",
    "read_error_status",
    "rewritten",
    "sketch",
    "usage_of",
]
