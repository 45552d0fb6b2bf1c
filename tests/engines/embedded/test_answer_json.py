from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.engines.embedded.answer_json import OcrReply
from gateway.engines.embedded.ocr_request import ReadRequest
from gateway.engines.vllm_json import DONE


def reply(**changes: Any) -> OcrReply:
    fields: dict[str, Any] = {
        "task": "text",
        "prompt": "",
        "schema": None,
        "images": (),
        "stream": True,
        "include_usage": False,
        "max_tokens": None,
        "prompt_tokens": 10,
        "tool": None,
        "tool_required": False,
    }
    return OcrReply("glm-ocr", ReadRequest(**{**fields, **changes}), "chatcmpl-1", created=5)


def events(data: bytes) -> list[Any]:
    blocks = data.decode().split("\n\n")
    assert blocks.pop() == ""
    return [json.loads(block.removeprefix("data: ")) for block in blocks if block != "data: [DONE]"]


def test_a_whole_answer() -> None:
    assert json.loads(reply().whole("text", tokens=3, cut=False)) == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 5,
        "model": "glm-ocr",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "text"},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {"prompt_tokens": 10, "total_tokens": 13, "completion_tokens": 3},
    }


def test_a_streams_events() -> None:
    answer = reply(include_usage=True)
    (opening,) = events(answer.opening())
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    (piece,) = events(answer.piece("text"))
    assert piece["choices"] == [
        {"index": 0, "delta": {"content": "text"}, "logprobs": None, "finish_reason": None}
    ]
    closing = answer.closing(tokens=3, cut=True)
    assert closing.endswith(DONE)
    last, usage = events(closing)
    assert last["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3
    assert {event["id"] for event in (opening, piece, last, usage)} == {"chatcmpl-1"}


def test_usage_is_told_only_where_asked_for() -> None:
    (last,) = events(reply().closing(tokens=3, cut=False))
    assert "usage" not in last


@pytest.mark.parametrize(("required", "reason"), [(True, "tool_calls"), (False, "stop")])
def test_a_forced_tool_is_called(required: bool, reason: str) -> None:
    answer = reply(tool="save", tool_required=required)
    choice = json.loads(answer.whole('{"a": 1}', tokens=7, cut=False))["choices"][0]
    assert choice["finish_reason"] == reason
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["function"] == {"name": "save", "arguments": '{"a": 1}'}
    _, named = events(answer.opening())
    (delta,) = named["choices"][0]["delta"]["tool_calls"]
    assert delta == {**call, "index": 0, "function": {"name": "save", "arguments": ""}}
    (piece,) = events(answer.piece('{"a": 1}'))
    assert piece["choices"][0]["delta"] == {
        "tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}'}}]
    }
