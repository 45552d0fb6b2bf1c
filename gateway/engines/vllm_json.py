"""vLLM's answers to completion requests, whole and as events, for the engines that ship along; its errors."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

DONE = b"data: [DONE]\n\n"

_ERROR_TYPES = {400: "BadRequestError", 404: "NotFoundError", 503: "ServiceUnavailableError"}


@dataclass(frozen=True, slots=True)
class CompletionAnswer:
    """The JSON of one answer, but for its text; `responses_api.ResponseAnswer` has the same methods.

    Attributes:
        id: `chatcmpl-` or `cmpl-`, and the request's id.
        model: the served model's name.
        prompt_tokens: tokens of the prompt, its images' among them.
        chat: the request has messages, not a prompt.
        tool: the function that is called with the text; None where the text is the answer.
        include_usage: a stream ends with its token usage.
        continuous_usage: each event tells the usage so far, too.
        fingerprint: names the simulation, if it is one; then an answer may also tell of its speculation.
        created: seconds since 1970.
    """

    id: str
    model: str
    prompt_tokens: int
    chat: bool = True
    tool: str | None = None
    include_usage: bool = False
    continuous_usage: bool = False
    fingerprint: str | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    def calling(self, tool: str) -> Self:
        """Return the same answer as a call of a tool."""
        return replace(self, tool=tool)

    def whole(
        self,
        text: str,
        *,
        tokens: int,
        finish_reason: str,
        stop_reason: str | None = None,
        speculation: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Return the answer that is not streamed: `tokens` of text, and why it ended, or at which string."""
        if not self.chat:
            choice = {**_text_choice(text, finish_reason), "prompt_logprobs": None}
        else:
            message: dict[str, Any] = {"role": "assistant", "content": text}
            if self.tool is not None:
                message |= {"content": "", "tool_calls": [self._tool_call(text)]}
            choice = {
                "index": 0,
                "message": message,
                "logprobs": None,
                "finish_reason": finish_reason,
                "stop_reason": stop_reason,
            }
        answer = {**self._head("chat.completion"), "choices": [choice]}
        if self.fingerprint is not None:
            answer["system_fingerprint"] = self.fingerprint
        answer["usage"] = self._usage(tokens)
        if self.fingerprint is not None:
            answer["metrics"] = None if speculation is None else {"speculative_decoding": speculation}
        return msgspec.json.encode(answer)

    def accepted(self) -> bytes:
        """Return what is streamed before anything is done: nothing."""
        return b""

    def opening(self) -> bytes:
        """Return what is streamed before the first text: an event that names the role, of a chat."""
        if not self.chat:
            return b""
        opening = self._delta({"role": "assistant", "content": ""})
        if self.tool is not None:
            opening += self._delta({"tool_calls": [{"index": 0, **self._tool_call("")}]})
        return opening

    def piece(
        self, text: str, *, tokens: int = 0, finish_reason: str | None = None, stop_reason: str | None = None
    ) -> bytes:
        """Return an event with more text, after which there are `tokens`; the last one tells why it ended."""
        if not self.chat:
            return self._event([_text_choice(text, finish_reason)], **self._usage_so_far(tokens))
        delta: dict[str, Any] = {"content": text}
        if self.tool is not None and finish_reason is None:
            delta = {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
        return self._delta(delta, tokens, finish_reason, stop_reason)

    def closing(
        self, *, tokens: int, finish_reason: str, speculation: Mapping[str, Any] | None = None
    ) -> bytes:
        """Return what is streamed last: usage and speculation where asked for, and the end mark."""
        if not self.include_usage:
            return DONE
        more: dict[str, Any] = {"usage": self._usage(tokens)}
        if speculation is not None:
            more["metrics"] = {"speculative_decoding": speculation}
        if self.fingerprint is not None:
            more["system_fingerprint"] = self.fingerprint
        return self._event([], **more) + DONE

    def broken(self, error: bytes) -> bytes:
        """Return the last events of a stream that breaks off; `error` is the error's JSON."""
        return b"data: %s\n\n%s" % (error, DONE)

    def _head(self, chat_object: str) -> dict[str, Any]:
        kind = chat_object if self.chat else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        event = {**self._head("chat.completion.chunk"), "choices": choices, **more}
        return b"data: %s\n\n" % msgspec.json.encode(event)

    def _delta(
        self,
        delta: Mapping[str, Any],
        tokens: int = 0,
        finish_reason: str | None = None,
        stop_reason: str | None = None,
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        if stop_reason is not None:
            choice["stop_reason"] = stop_reason
        return self._event([choice], **self._usage_so_far(tokens))

    def _tool_call(self, arguments: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-tool-{uuid.uuid5(uuid.NAMESPACE_OID, self.id).hex[:16]}",
            "type": "function",
            "function": {"name": self.tool, "arguments": arguments},
        }

    def _usage(self, tokens: int) -> dict[str, int]:
        total = self.prompt_tokens + tokens
        return {"prompt_tokens": self.prompt_tokens, "total_tokens": total, "completion_tokens": tokens}

    def _usage_so_far(self, tokens: int) -> dict[str, Any]:
        return {"usage": self._usage(tokens)} if self.continuous_usage else {}


def _text_choice(text: str, finish_reason: str | None) -> dict[str, Any]:
    return {
        "index": 0,
        "text": text,
        "logprobs": None,
        "finish_reason": finish_reason,
        "stop_reason": None,
    }


def error_body(status: int, message: str, param: str | None = None) -> bytes:
    """Return vLLM's error object; its `code` is the HTTP status."""
    kind = _ERROR_TYPES.get(status, "InternalServerError")
    error = {"message": message, "type": kind, "param": param, "code": status}
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
