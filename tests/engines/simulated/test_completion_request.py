from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.engines.simulated.completion_request import SimulatedRequest, parse
from gateway.errors import BadRequest, UnknownModel
from gateway.policy.sort.evidence import SortRules
from tests.support import chat

RULES = SortRules(("text", "key-value", "table"), default="text")


def read(fields: dict[str, Any], *, speculative: bool = True) -> SimulatedRequest:
    body = json.dumps(fields).encode()
    return parse(body, chat="messages" in fields, model="glm-ocr", rules=RULES, speculative=speculative)


@pytest.mark.parametrize(
    ("prompt", "route"),
    [("Text Recognition:", "text"), ("Table Recognition:", "table"), ("What is it?", "text"), (None, "text")],
)
def test_the_prompt_gives_the_route(prompt: str | None, route: str) -> None:
    assert read(chat(prompt)).route == route


def test_a_demand_for_json_is_key_value() -> None:
    assert read(chat("", response_format={"type": "json_object"})).route == "key-value"


@pytest.mark.parametrize(("hint", "route"), [("table", "table"), ("formula", "text")])
def test_a_gateways_own_routes_need_not_be_known(hint: str, route: str) -> None:
    assert read(chat(metadata={"ocr_route": hint})).route == route


def test_a_text_completion() -> None:
    request = read({"prompt": "Table Recognition:", "max_tokens": 5, "ignore_eos": True})
    assert (request.chat, request.route, request.max_tokens, request.ignore_eos) == (False, "table", 5, True)
    assert (request.stream, request.include_usage, request.continuous_usage) == (False, False, False)


def test_a_streams_options() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    request = read(
        chat(stream=True, stream_options=options, max_tokens=9, max_completion_tokens=4, stream_interval=16)
    )
    assert (request.stream, request.include_usage, request.continuous_usage) == (True, True, True)
    assert (request.max_tokens, request.stream_interval) == (4, 16)
    assert read(chat(stream=True)).stream_interval == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"stream_interval": 0}, "stream_interval"),
        ({"max_tokens": "many"}, None),
        ({"messages": []}, "messages"),
        ({"min_p": 0.1}, None),
        ({"logit_bias": {"5": 1}}, None),
    ],
)
def test_wrong_fields_are_refused(fields: dict[str, Any], param: str | None) -> None:
    with pytest.raises(BadRequest) as caught:
        read(chat(**fields))
    assert caught.value.param == param


def test_only_speculation_rules_options_out() -> None:
    fields = chat(min_p=0.1, logit_bias={"5": 1})
    assert read(fields, speculative=False).route == "text"
    assert read(chat(min_p=0, logit_bias={})).route == "text"


def test_another_model_is_unknown() -> None:
    with pytest.raises(UnknownModel, match="does not exist"):
        read({**chat(), "model": "other"})
