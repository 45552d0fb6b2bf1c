from __future__ import annotations

import json

from gateway.engines.vllm_json import chunk_choice, event, usage, whole_choice


def test_an_event_is_head_choices_and_more() -> None:
    data = event({"id": "chatcmpl-1"}, [chunk_choice({"content": "a\n\nb"})], usage=usage(3, 4))
    assert data.startswith(b"data: ")
    assert data.endswith(b"\n\n")
    assert data.count(b"\n") == 2
    assert json.loads(data[6:]) == {
        "id": "chatcmpl-1",
        "choices": [{"index": 0, "delta": {"content": "a\n\nb"}, "logprobs": None, "finish_reason": None}],
        "usage": {"prompt_tokens": 3, "total_tokens": 7, "completion_tokens": 4},
    }


def test_a_choice_ends_with_its_reason() -> None:
    assert chunk_choice({}, "length")["finish_reason"] == "length"
    assert whole_choice({"content": "a"}, "stop")["finish_reason"] == "stop"
