"""Pieces of vLLM's answers that every engine's replies are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DONE = b"data: [DONE]\n\n"

_ERROR_TYPES = {400: "BadRequestError", 404: "NotFoundError", 503: "ServiceUnavailableError"}


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


def error_body(status: int, message: str, param: str | None = None) -> bytes:
    """Write vLLM's error object; its `code` is the HTTP status."""
    error = {
        "message": message,
        "type": _ERROR_TYPES.get(status, "InternalServerError"),
        "param": param,
        "code": status,
    }
    return msgspec.json.encode({"error": error})


def speculative_object(histogram: Sequence[int], draft_tokens: int) -> dict[str, object]:
    """Return the `metrics.speculative_decoding` object of an answer.

    Args:
        histogram: the request's drafts by how many of their tokens were accepted; one longer than the depth.
        draft_tokens: tokens proposed for the request.
    """
    drafts = sum(histogram)
    accepted = sum(number * count for number, count in enumerate(histogram))
    return {
        "mean_acceptance_length": 1 + accepted / drafts if drafts else 1.0,
        "draft_acceptance_rate": accepted / draft_tokens if draft_tokens else 0.0,
        "acceptance_histogram": list(histogram),
        "num_spec_steps": drafts,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": draft_tokens,
        "num_spec_tokens": len(histogram) - 1,
    }
