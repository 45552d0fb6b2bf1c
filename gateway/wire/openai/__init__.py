"""OpenAI's formats. The functions that others call stand here; begin reading in `completions`."""

from gateway.wire.openai.completions import (
    COMPLETIONS,
    CompletionRequest,
    Dialect,
    StreamChunk,
    WholeAnswer,
    error_body,
    error_event,
    error_headers,
    parse_lifted,
    parse_request,
    read_answer,
    read_chunk,
    read_error_message,
    rewritten,
    usage_of,
)

__all__ = [
    "COMPLETIONS",
    "CompletionRequest",
    "Dialect",
    "StreamChunk",
    "WholeAnswer",
    "error_body",
    "error_event",
    "error_headers",
    "parse_lifted",
    "parse_request",
    "read_answer",
    "read_chunk",
    "read_error_message",
    "rewritten",
    "usage_of",
]
