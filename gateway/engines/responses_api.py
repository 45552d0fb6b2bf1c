"""vLLM's answers in the Responses API, whole and as events, for the engines that ship along."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


class ResponseAnswer:
    """The JSON of one response, and as much of its text as has been sent; see `vllm_json.CompletionAnswer`.

    Unlike a completion's, a response's pieces are counted, so that each event has its number. Of speculation
    vLLM tells nothing here.
    """

    def __init__(self, id: str, model: str, prompt_tokens: int, tool: str | None = None) -> None:
        """Begin one.

        Args:
            id: names the request.
            model: the served model's name.
            prompt_tokens: tokens of the prompt, its images' among them.
            tool: the function that is called with the text; None where the text is the answer.
        """
        self._id = id
        self._input_tokens = prompt_tokens
        self.calling(tool)
        self._texts: list[str] = []
        self._events = 0
        self._head = {
            "id": f"resp_{id}",
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "instructions": None,
            "metadata": None,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "top_p": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "background": False,
            "service_tier": "auto",
            "truncation": "disabled",
        }

    def calling(self, tool: str | None) -> Self:
        """Make it a call of a tool, before anything is sent of it; return itself."""
        self._tool = tool
        self._item_id = f"{'msg' if tool is None else 'fc'}_{self._id}"
        self._place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        return self

    def whole(
        self,
        text: str,
        *,
        tokens: int,
        finish_reason: str,
        stop_reason: str | None = None,
        speculation: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Return the response that is not streamed: `tokens` of text, and why it ended."""
        return msgspec.json.encode(self._ended(text, tokens, finish_reason))

    def accepted(self) -> bytes:
        """Return what vLLM streams at once, before it does anything."""
        begun: dict[str, Any] = {**self._head, "status": "in_progress", "incomplete_details": None}
        begun |= {"output": [], "usage": None}
        return self._event("created", response=begun) + self._event("in_progress", response=begun)

    def opening(self) -> bytes:
        """Return what is streamed before the first text."""
        item = self._item("", "in_progress")
        if self._tool is not None:
            return self._event("output_item.added", output_index=0, item=item)
        added = self._event("output_item.added", output_index=0, item={**item, "content": []})
        return added + self._event("content_part.added", **self._place, part=_part(""))

    def piece(
        self, text: str, *, tokens: int = 0, finish_reason: str | None = None, stop_reason: str | None = None
    ) -> bytes:
        """Return an event with more text; nothing where there is none."""
        if not text:
            return b""
        self._texts.append(text)
        if self._tool is not None:
            return self._event(
                "function_call_arguments.delta", item_id=self._item_id, output_index=0, delta=text
            )
        return self._event("output_text.delta", **self._place, delta=text, logprobs=[])

    def closing(
        self, *, tokens: int, finish_reason: str, speculation: Mapping[str, Any] | None = None
    ) -> bytes:
        """Return the last events; also a response that was cut is `completed`, and only its status tells."""
        text = "".join(self._texts)
        if self._tool is not None:
            done = self._event(
                "function_call_arguments.done", item_id=self._item_id, output_index=0, arguments=text
            )
        else:
            done = self._event("output_text.done", **self._place, text=text, logprobs=[])
            done += self._event("content_part.done", **self._place, part=_part(text))
        done += self._event("output_item.done", output_index=0, item=self._item(text, "completed"))
        return done + self._event("completed", response=self._ended(text, tokens, finish_reason))

    def broken(self, error: bytes) -> bytes:
        """Return the last event of a stream that breaks off; `error` is the error's JSON."""
        return b"event: error\ndata: %s\n\n" % error

    def _ended(self, text: str, tokens: int, finish_reason: str) -> dict[str, Any]:
        cut = finish_reason == "length"
        return {
            **self._head,
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [self._item(text, "completed")],
            "usage": {
                "input_tokens": self._input_tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": self._input_tokens + tokens,
            },
        }

    def _item(self, text: str, status: str) -> dict[str, Any]:
        head = {"id": self._item_id, "status": status}
        if self._tool is None:
            return {**head, "type": "message", "role": "assistant", "content": [_part(text)]}
        call_id = f"call_{self._id}"
        return {**head, "type": "function_call", "call_id": call_id, "name": self._tool, "arguments": text}

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._events = self._events, self._events + 1
        event = {"type": f"response.{kind}", "sequence_number": number, **fields}
        return b"event: response.%s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(event))


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
