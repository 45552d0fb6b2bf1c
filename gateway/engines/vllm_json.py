"""Pieces of vLLM's answers that every engine's replies are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

DONE = b"data: [DONE]\n\n"


def event(head: Mapping[str, Any], choices: list[dict[str, Any]], **more: Any) -> bytes:
    """Write a stream's event: `head` (id, object, created, model), choices, and what else there is."""
    return b"data: %s\n\n" % msgspec.json.encode({**head, "choices": choices, **more})


def chunk_choice(delta: Mapping[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    """Return the one choice of a chat stream's event."""
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def whole_choice(message: Mapping[str, Any], finish_reason: str) -> dict[str, Any]:
    """Return the one choice of a chat answer that is not streamed."""
    return {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": finish_reason,
        "stop_reason": None,
    }


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """Return the token usage of an answer."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }
