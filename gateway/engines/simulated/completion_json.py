"""The JSON of a simulated answer, whole or in chunks, in the shapes vLLM gives it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.engines.vllm_json import DONE, chunk_choice, event, usage, whole_choice

if TYPE_CHECKING:
    from gateway.engines.responses_api import ModelResponse
    from gateway.engines.simulated.completion_request import SimulatedRequest

_WORDS = ("This", "text", "is", "simulated", "and", "was", "read", "from", "no", "image.")


@dataclass(frozen=True, slots=True)
class SimulatedReply:
    """One answer's frame: everything but its text.

    Attributes:
        model: the served model's name.
        request: what is answered.
        id: `chatcmpl-` or `cmpl-`, and the client's request id or a random one.
        prompt_tokens: tokens of the prompt, its image's among them.
        fingerprint: names the simulation.
        created: seconds since 1970.
    """

    model: str
    request: SimulatedRequest
    id: str
    prompt_tokens: int
    fingerprint: str
    created: int = field(default_factory=lambda: int(time.time()))

    def accepted(self) -> bytes:
        """What goes out before anything is done: nothing."""
        return b""

    def whole(self, tokens: int, finish_reason: str, speculation: dict[str, object] | None) -> bytes:
        """The answer that is not streamed."""
        text = words(0, written(tokens, finish_reason))
        if self.request.chat:
            choice = whole_choice({"role": "assistant", "content": text}, finish_reason)
        else:
            choice = {**self._text_choice(text, finish_reason), "prompt_logprobs": None}
        return msgspec.json.encode(
            {
                **self._head(streamed=False),
                "choices": [choice],
                "system_fingerprint": self.fingerprint,
                "usage": usage(self.prompt_tokens, tokens),
                "metrics": None if speculation is None else {"speculative_decoding": speculation},
            }
        )

    def opening(self) -> bytes:
        """The first event of a chat stream, which names the role; text streams have none."""
        if not self.request.chat:
            return b""
        return event(self._head(), [chunk_choice({"role": "assistant", "content": ""})], **self._so_far(0))

    def piece(self, before: int, tokens: int, finish_reason: str | None) -> bytes:
        """An event with the tokens from `before` to `tokens`; the last one has the reason of its end."""
        text = words(before, written(tokens, finish_reason))
        if self.request.chat:
            choice = chunk_choice({"content": text}, finish_reason)
        else:
            choice = self._text_choice(text, finish_reason)
        return event(self._head(), [choice], **self._so_far(tokens))

    def closing(self, tokens: int, speculation: dict[str, object] | None) -> bytes:
        """The last events: usage and speculation where asked for, and the end mark."""
        if not self.request.include_usage:
            return DONE
        more: dict[str, Any] = {"usage": usage(self.prompt_tokens, tokens)}
        if speculation is not None:
            more["metrics"] = {"speculative_decoding": speculation}
        return event(self._head(), [], **more, system_fingerprint=self.fingerprint) + DONE

    def _head(self, *, streamed: bool = True) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if streamed else "chat.completion") if self.request.chat else None
        return {
            "id": self.id,
            "object": kind or "text_completion",
            "created": self.created,
            "model": self.model,
        }

    def _text_choice(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        return {
            "index": 0,
            "text": text,
            "logprobs": None,
            "finish_reason": finish_reason,
            "stop_reason": None,
        }

    def _so_far(self, tokens: int) -> dict[str, Any]:
        return {"usage": usage(self.prompt_tokens, tokens)} if self.request.continuous_usage else {}


class SimulatedResponse:
    """An answer in the Responses API, told like a Reply."""

    def __init__(self, response: ModelResponse) -> None:
        self._response = response
        self._cut = False

    def accepted(self) -> bytes:
        """What goes out before anything is done."""
        return self._response.accepted()

    def whole(self, tokens: int, finish_reason: str, speculation: dict[str, object] | None) -> bytes:
        """The answer that is not streamed; of speculation vLLM tells nothing here."""
        text = words(0, written(tokens, finish_reason))
        return self._response.whole(text, tokens=tokens, cut=finish_reason == "length")

    def opening(self) -> bytes:
        """The events that come with the first token."""
        return self._response.opening()

    def piece(self, before: int, tokens: int, finish_reason: str | None) -> bytes:
        """An event with the tokens from `before` to `tokens`; none where they are no text."""
        self._cut = finish_reason == "length"
        text = words(before, written(tokens, finish_reason))
        return self._response.piece(text) if text else b""

    def closing(self, tokens: int, speculation: dict[str, object] | None) -> bytes:
        """The last events."""
        return self._response.closing(tokens=tokens, cut=self._cut)


def words(start: int, end: int) -> str:
    """Return the filler text's tokens from `start` to `end`: one word each."""
    return "".join(" " * (place > 0) + _WORDS[place % len(_WORDS)] for place in range(start, end))


def written(tokens: int, finish_reason: str | None) -> int:
    """Return how many of an answer's tokens are text: the one that ends it by itself is not."""
    return tokens - (finish_reason == "stop")
