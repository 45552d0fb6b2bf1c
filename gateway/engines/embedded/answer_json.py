"""The JSON of an answer, whole or in chunks, in the shape vLLM gives it."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.engines.responses_api import ModelResponse
from gateway.engines.vllm_json import DONE, chunk_choice, event, usage, whole_choice

if TYPE_CHECKING:
    from gateway.engines.embedded.ocr_request import ReadRequest


@dataclass(frozen=True, slots=True)
class OcrReply:
    """One answer's frame: everything but its text.

    Attributes:
        model: the served model's name.
        request: what is answered.
        id: `chatcmpl-` and the client's request id or a random one.
        created: seconds since 1970.
    """

    model: str
    request: ReadRequest
    id: str
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, text: str, *, tokens: int, cut: bool) -> bytes:
        """The answer that is not streamed; `tokens` of text, `cut` at the limit."""
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if self.request.tool is not None:
            message |= {"content": "", "tool_calls": [self._tool_call(text)]}
        choice = whole_choice(message, self.finish_reason(cut=cut))
        return msgspec.json.encode(
            {
                "id": self.id,
                "object": "chat.completion",
                "created": self.created,
                "model": self.model,
                "choices": [choice],
                "usage": usage(self.request.prompt_tokens, tokens),
            }
        )

    def opening(self) -> bytes:
        """The first event of a stream, which names the role."""
        delta: dict[str, Any] = {"role": "assistant", "content": ""}
        events = self._event([chunk_choice(delta)])
        if self.request.tool is not None:
            events += self._event([chunk_choice({"tool_calls": [{"index": 0, **self._tool_call("")}]})])
        return events

    def piece(self, text: str) -> bytes:
        """An event with a piece of the text."""
        delta: dict[str, Any] = {"content": text}
        if self.request.tool is not None:
            delta = {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
        return self._event([chunk_choice(delta)])

    def closing(self, *, tokens: int, cut: bool) -> bytes:
        """The last events: finish reason, usage where asked for, and the end mark."""
        events = self._event([chunk_choice({"content": ""}, self.finish_reason(cut=cut))])
        if self.request.include_usage:
            events += self._event([], usage=usage(self.request.prompt_tokens, tokens))
        return events + DONE

    def broken(self, page: bytes) -> bytes:
        """The last events of a stream that broke off; `page` is the error's object."""
        return b"data: %s\n\n%s" % (page, DONE)

    def finish_reason(self, *, cut: bool) -> str:
        """`length` for a cut answer; a required tool call ends with `tool_calls`, a named one with `stop`."""
        if cut:
            return "length"
        return "tool_calls" if self.request.tool_required else "stop"

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        head = {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
        }
        return event(head, choices, **more)

    def _tool_call(self, arguments: str) -> dict[str, Any]:
        function = {"name": self.request.tool, "arguments": arguments}
        return {
            "id": f"chatcmpl-tool-{uuid.uuid5(uuid.NAMESPACE_OID, self.id).hex[:16]}",
            "type": "function",
            "function": function,
        }


class OcrResponse:
    """An answer in the Responses API, told like a Reply."""

    def __init__(self, model: str, request: ReadRequest, id: str) -> None:
        """Frame one; the arguments are a Reply's, but for the id, which is the client's request id alone."""
        self.request = request
        self._response = ModelResponse(model, id, request.prompt_tokens, request.tool)

    def whole(self, text: str, *, tokens: int, cut: bool) -> bytes:
        """The answer that is not streamed; `tokens` of text, `cut` at the limit."""
        return self._response.whole(text, tokens=tokens, cut=cut)

    def opening(self) -> bytes:
        """The events before the text."""
        return self._response.accepted() + self._response.opening()

    def piece(self, text: str) -> bytes:
        """An event with a piece of the text."""
        return self._response.piece(text)

    def closing(self, *, tokens: int, cut: bool) -> bytes:
        """The events behind the text."""
        return self._response.closing(tokens=tokens, cut=cut)

    def broken(self, page: bytes) -> bytes:
        """The last event of a stream that broke off; `page` is the error's object."""
        return b"event: error\ndata: %s\n\n" % page
