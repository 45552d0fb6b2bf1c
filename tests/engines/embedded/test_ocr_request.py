from __future__ import annotations

import json
from typing import Any

import pytest
from PIL import Image

from gateway.engines.embedded.ocr_request import parse
from gateway.errors import BadImage, BadRequest, UnknownModel
from tests.engines.embedded.rendering import chat, encoded

PICTURE = encoded(Image.new("RGB", (60, 30), "white"))
TOOL = {"type": "function", "function": {"name": "save", "parameters": {"properties": {"a": {}}}}}


def test_a_plain_request() -> None:
    request = parse(chat(PICTURE, PICTURE, max_tokens=7, extra=1), "glm-ocr")
    assert (request.task, request.prompt, request.schema) == ("text", "Text Recognition:", None)
    assert request.images == (PICTURE, PICTURE)
    assert (request.stream, request.include_usage, request.max_tokens) == (False, False, 7)
    assert request.prompt_tokens == 3 + 2 * 6
    assert (request.tools, request.finish_reason, request.is_bound) == ((), "stop", False)


def test_a_stream_with_usage() -> None:
    body = chat(stream=True, stream_options={"include_usage": True}, max_tokens=9, max_completion_tokens=5)
    request = parse(body, "glm-ocr")
    assert (request.stream, request.include_usage, request.max_tokens) == (True, True, 5)
    assert request.images == ()


def test_no_model_is_the_model() -> None:
    body = json.loads(chat(PICTURE))
    del body["model"]
    assert parse(json.dumps(body).encode(), "glm-ocr").images == (PICTURE,)


@pytest.mark.parametrize(
    ("choice", "reason"),
    [("required", "tool_calls"), ({"type": "function", "function": {"name": "save"}}, "stop")],
)
def test_a_forced_tool_is_key_value(choice: Any, reason: str) -> None:
    request = parse(chat(PICTURE, prompt="x", tools=[TOOL], tool_choice=choice), "glm-ocr")
    (tool,) = request.tools
    assert (request.task, tool.name, request.finish_reason) == ("key-value", "save", reason)
    assert tool.schema.root == {"type": "object", "properties": {"a": {}}}
    assert request.is_bound


@pytest.mark.parametrize("choice", ["auto", "none", None])
def test_an_offered_tool_is_not_called(choice: str | None) -> None:
    assert parse(chat(PICTURE, tools=[TOOL], tool_choice=choice), "glm-ocr").tools == ()


RESULT = [
    {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "save", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "1", "content": "saved"},
]


@pytest.mark.parametrize(
    ("later", "choice", "called"),
    [
        (RESULT, "required", False),
        ([*RESULT, {"role": "user", "content": "and now this"}], "required", True),
        (RESULT[:1], "required", True),
        # Clients repeat a named call until its arguments please them.
        (RESULT, {"type": "function", "function": {"name": "save"}}, True),
    ],
)
def test_a_required_tool_is_called_once_and_then_the_answer_is_text(
    later: list[Any], choice: Any, called: bool
) -> None:
    body = json.loads(chat(PICTURE, tools=[TOOL], tool_choice=choice))
    body["messages"] += later
    request = parse(json.dumps(body).encode(), "glm-ocr")
    reason = "tool_calls" if called and choice == "required" else "stop"
    assert (bool(request.tools), request.task, request.finish_reason) == (
        called,
        "key-value" if called else "text",
        reason,
    )


@pytest.mark.parametrize(
    ("route", "prompt", "task"),
    [
        ("table", "", "table"),
        ("key-value", "", "key-value"),
        ("text", "", "text"),
        ("invoices", "", "text"),
        (None, "", "text"),
        ("table", "What is this?", "table"),
        ("table", "Text Recognition:", "text"),
    ],
)
def test_where_no_words_tell_the_form_the_route_does(route: str | None, prompt: str, task: str) -> None:
    assert parse(chat(PICTURE, prompt=prompt), "glm-ocr", route).task == task


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        # As vLLM.
        ({"tool_choice": "any", "tools": [TOOL]}, "tool_choice"),
        ({"tool_choice": "save", "tools": [TOOL]}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools"}, "tools": [TOOL]}, "tool_choice"),
        ({"tool_choice": 7, "tools": [TOOL]}, "tool_choice"),
        ({"stop": ["a", ""]}, "stop"),
        ({"logprobs": True}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"tool_choice": "required"}, "tools"),
        ({"tool_choice": {"function": {"name": "other"}}, "tools": [TOOL]}, "tool_choice"),
        ({"max_tokens": "many"}, None),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
    ],
)
def test_wrong_fields_are_refused(fields: dict[str, Any], param: str | None) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(chat(PICTURE, **fields), "glm-ocr")
    assert caught.value.param == param


def test_another_model_is_unknown() -> None:
    with pytest.raises(UnknownModel, match="does not exist"):
        parse(chat(PICTURE, model="other"), "glm-ocr")


@pytest.mark.parametrize("url", ["http://example.com/a.png", "data:image/png;base64,@@@@", "nonsense"])
def test_other_urls_are_refused(url: str) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    body = {"messages": [{"role": "user", "content": [part]}]}
    with pytest.raises(BadImage) as caught:
        parse(json.dumps(body).encode(), "glm-ocr")
    assert caught.value.param == "messages[0].content[0].image_url"
