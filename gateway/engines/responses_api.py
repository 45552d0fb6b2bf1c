"""vLLM's answers in the Responses API, whole and as events, for the engines that ship along."""

from __future__ import annotations

import time
from typing import Any

import msgspec


class ModelResponse:
    """One response: its frame, and as much of its text as has been sent."""

    def __init__(self, model: str, id: str, input_tokens: int, tool: str | None = None) -> None:
        """Begin one.

        Args:
            model: the served model's name.
            id: names the request.
            input_tokens: tokens of the prompt, its images' among them.
            tool: the function that is called with the text; None where the text is the answer.
        """
        self._id = id
        self._input_tokens = input_tokens
        self._tool = tool
        self._item_id = f"{'msg' if tool is None else 'fc'}_{id}"
        self._text: list[str] = []
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

    def whole(self, text: str, *, tokens: int, cut: bool) -> bytes:
        """The response that is not streamed; `tokens` of text, `cut` at the limit."""
        return msgspec.json.encode(self._ended([text], tokens, cut))

    def accepted(self) -> bytes:
        """What vLLM sends at once, before it does anything."""
        begun = {
            **self._head,
            "status": "in_progress",
            "incomplete_details": None,
            "output": [],
            "usage": None,
        }
        return self._event("response.created", response=begun) + self._event(
            "response.in_progress", response=begun
        )

    def opening(self) -> bytes:
        """What comes with the first token."""
        item = self._item("", "in_progress")
        if self._tool is not None:
            return self._event("response.output_item.added", output_index=0, item=item)
        added = self._event("response.output_item.added", output_index=0, item={**item, "content": []})
        return added + self._event("response.content_part.added", **self._place(), part=_part(""))

    def piece(self, text: str) -> bytes:
        """An event with a piece of the text."""
        self._text.append(text)
        if self._tool is not None:
            return self._event(
                "response.function_call_arguments.delta", item_id=self._item_id, output_index=0, delta=text
            )
        return self._event("response.output_text.delta", **self._place(), delta=text, logprobs=[])

    def closing(self, *, tokens: int, cut: bool) -> bytes:
        """The last events; vLLM calls an answer that was cut completed, too, and only its status tells."""
        text = "".join(self._text)
        if self._tool is not None:
            done = self._event(
                "response.function_call_arguments.done", item_id=self._item_id, output_index=0, arguments=text
            )
        else:
            done = self._event("response.output_text.done", **self._place(), text=text, logprobs=[])
            done += self._event("response.content_part.done", **self._place(), part=_part(text))
        done += self._event("response.output_item.done", output_index=0, item=self._item(text, "completed"))
        return done + self._event("response.completed", response=self._ended(self._text, tokens, cut))

    def _ended(self, text: list[str], tokens: int, cut: bool) -> dict[str, Any]:
        return {
            **self._head,
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [self._item("".join(text), "completed")],
            "usage": {
                "input_tokens": self._input_tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": self._input_tokens + tokens,
            },
        }

    def _item(self, text: str, status: str) -> dict[str, Any]:
        if self._tool is None:
            shape = {"type": "message", "role": "assistant", "content": [_part(text)]}
        else:
            shape = {
                "type": "function_call",
                "call_id": f"call_{self._id}",
                "name": self._tool,
                "arguments": text,
            }
        return {"id": self._item_id, "status": status, **shape}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._events = self._events, self._events + 1
        data = msgspec.json.encode({"type": kind, "sequence_number": number, **fields})
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
