from __future__ import annotations

from typing import Any

import msgspec
import pytest
from PIL import Image

from gateway.engines.embedded.ocr_request import parse
from gateway.engines.embedded.request_fields import HARMLESS, HONOURED, REFUSED, check_fields
from gateway.errors import BadRequest
from tests.engines.embedded.rendering import chat, encoded

PICTURE = encoded(Image.new("RGB", (60, 30), "white"))
TOOL = {"type": "function", "function": {"name": "save", "parameters": {"properties": {"a": {}}}}}

# Every field of vLLM's ChatCompletionRequest, with a value that asks for something, and what becomes of it.
FIELDS: dict[str, tuple[Any, str]] = {
    "frequency_penalty": (0.5, "harmless"),
    "logit_bias": ({"7": 1.0}, "refused"),
    "logprobs": (True, "refused"),
    "top_logprobs": (3, "refused"),
    "max_tokens": (5, "honoured"),
    "max_completion_tokens": (5, "honoured"),
    "n": (1, "honoured"),
    "presence_penalty": (0.5, "harmless"),
    "response_format": ({"type": "json_object"}, "honoured"),
    "seed": (7, "harmless"),
    "stop": (["x"], "honoured"),
    "stream": (True, "honoured"),
    "stream_options": ({"include_usage": True}, "honoured"),
    "temperature": (0.7, "harmless"),
    "top_p": (0.9, "harmless"),
    "tools": ([TOOL], "honoured"),
    "tool_choice": ("none", "honoured"),
    "reasoning_effort": ("low", "harmless"),
    "thinking_token_budget": (10, "harmless"),
    "include_reasoning": (True, "harmless"),
    "parallel_tool_calls": (True, "harmless"),
    "user": ("ada", "harmless"),
    "use_beam_search": (True, "harmless"),
    "top_k": (3, "harmless"),
    "min_p": (0.1, "harmless"),
    "repetition_penalty": (1.1, "harmless"),
    "watermarking": (True, "refused"),
    "length_penalty": (1.0, "harmless"),
    "stop_token_ids": ([7], "refused"),
    "include_stop_str_in_output": (True, "honoured"),
    "ignore_eos": (True, "harmless"),
    "min_tokens": (5, "refused"),
    "skip_special_tokens": (True, "harmless"),
    "spaces_between_special_tokens": (True, "harmless"),
    "truncate_prompt_tokens": (100, "harmless"),
    "truncation_side": ("left", "harmless"),
    "prompt_logprobs": (1, "refused"),
    "logprob_token_ids": ([1], "refused"),
    "allowed_token_ids": ([1], "refused"),
    "bad_words": (["x"], "refused"),
    "echo": (True, "refused"),
    "add_generation_prompt": (True, "harmless"),
    "continue_final_message": (True, "refused"),
    "add_special_tokens": (True, "harmless"),
    "documents": ([{"title": "a"}], "harmless"),
    "chat_template": ("{{ x }}", "harmless"),
    "chat_template_kwargs": ({"mode": "markdown"}, "honoured"),
    "media_io_kwargs": ({"image": {"x": 1}}, "harmless"),
    "mm_processor_kwargs": ({"x": 1}, "harmless"),
    "structured_outputs": ({"json": {"type": "object"}}, "honoured"),
    "priority": (1, "harmless"),
    "request_id": ("x", "harmless"),
    "session_id": ("x", "harmless"),
    "return_tokens_as_token_ids": (True, "harmless"),
    "return_token_ids": (True, "refused"),
    "routed_experts_prompt_start": (1, "harmless"),
    "return_token_offsets": (True, "harmless"),
    "return_prompt_text": (True, "refused"),
    "return_mm_kwargs": (True, "harmless"),
    "cache_salt": ("x", "harmless"),
    "kv_transfer_params": ({"x": 1}, "refused"),
    "ec_transfer_params": ({"x": 1}, "refused"),
    "vllm_xargs": ({"x": 1}, "harmless"),
    "repetition_detection": ({"max_pattern_size": 3}, "harmless"),
    "stream_interval": (3, "harmless"),
    # Its older fields, which clients still send.
    "guided_json": ({"type": "object"}, "honoured"),
    "guided_regex": (".*", "honoured"),
    "guided_choice": (["a"], "honoured"),
    "guided_grammar": ("root ::= x", "refused"),
    "guided_decoding_backend": ("xgrammar", "harmless"),
    "guided_whitespace_pattern": (" ", "harmless"),
}


@pytest.mark.parametrize("name", FIELDS)
def test_each_field_of_vllms_is_honoured_harmless_or_refused_by_name(name: str) -> None:
    value, fate = FIELDS[name]
    assert [name in fields for fields in (HONOURED, HARMLESS, REFUSED)] == [
        fate == "honoured",
        fate == "harmless",
        fate == "refused",
    ]
    body = chat(PICTURE, **{name: value})
    if fate == "refused":
        with pytest.raises(BadRequest) as caught:
            parse(body, "glm-ocr")
        assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")
        assert name in caught.value.message
        return
    asked, plain = parse(body, "glm-ocr"), parse(chat(PICTURE), "glm-ocr")
    if fate == "harmless":
        assert asked == plain


def test_the_table_has_no_other_fields() -> None:
    besides = {"messages", "model", "include"}  # the last is the Responses API's
    assert (HONOURED | HARMLESS | REFUSED.keys()) - besides == FIELDS.keys()


@pytest.mark.parametrize("name", [name for name, (_, fate) in FIELDS.items() if fate == "refused"])
def test_a_field_that_asks_for_nothing_is_as_if_it_were_not_there(name: str) -> None:
    for value in (None, [], {}, False, 0):
        check_fields({name: msgspec.Raw(msgspec.json.encode(value))})


def test_of_include_only_probabilities_are_refused() -> None:
    check_fields({"include": msgspec.Raw(b'["reasoning.encrypted_content"]')})
    with pytest.raises(BadRequest):
        check_fields({"include": msgspec.Raw(b'["message.output_text.logprobs"]')})
