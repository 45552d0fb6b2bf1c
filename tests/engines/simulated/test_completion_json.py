from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from gateway.engines.simulated.completion_json import SimulatedReply, words
from gateway.engines.simulated.completion_request import SimulatedRequest
from gateway.engines.vllm_json import DONE


def reply(**changes: Any) -> SimulatedReply:
    fields: dict[str, Any] = {
        "chat": True,
        "route": "text",
        "stream": True,
        "include_usage": True,
        "continuous_usage": False,
        "max_tokens": None,
        "ignore_eos": False,
    }
    return SimulatedReply(
        "glm-ocr", SimulatedRequest(**{**fields, **changes}), "id-1", 900, "simulated-x", created=5
    )


def events(data: bytes) -> list[Any]:
    blocks = data.decode().split("\n\n")
    assert blocks.pop() == ""
    return [json.loads(block.removeprefix("data: ")) for block in blocks if block != "data: [DONE]"]


def test_a_whole_answer() -> None:
    answer = json.loads(reply().whole(4, "stop", {"num_spec_steps": 1}))
    assert (answer["id"], answer["object"], answer["created"]) == ("id-1", "chat.completion", 5)
    (choice,) = answer["choices"]
    # The fourth token is the one that ends the answer.
    assert choice["message"] == {"role": "assistant", "content": "This text is"}
    assert choice["finish_reason"] == "stop"
    assert answer["usage"] == {"prompt_tokens": 900, "total_tokens": 904, "completion_tokens": 4}
    assert answer["metrics"] == {"speculative_decoding": {"num_spec_steps": 1}}
    assert answer["system_fingerprint"] == "simulated-x"


def test_a_whole_text_completion() -> None:
    answer = json.loads(reply(chat=False).whole(4, "length", None))
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["text"] == "This text is simulated"
    assert (answer["choices"][0]["finish_reason"], answer["metrics"]) == ("length", None)


def test_a_chat_streams_events() -> None:
    answer = reply()
    (opening,) = events(answer.opening())
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    (piece,) = events(answer.piece(1, 4, None))
    assert piece["object"] == "chat.completion.chunk"
    assert piece["choices"] == [
        {"index": 0, "delta": {"content": " text is simulated"}, "logprobs": None, "finish_reason": None}
    ]
    assert "usage" not in piece
    (last,) = events(answer.piece(4, 5, "stop"))
    assert last["choices"][0]["delta"] == {"content": ""}
    assert last["choices"][0]["finish_reason"] == "stop"
    closing = answer.closing(5, {"num_spec_steps": 2})
    assert closing.endswith(DONE)
    (usage,) = events(closing)
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 5)
    assert usage["metrics"] == {"speculative_decoding": {"num_spec_steps": 2}}


def test_a_text_streams_events() -> None:
    answer = reply(chat=False)
    assert answer.opening() == b""
    (piece,) = events(answer.piece(0, 2, None))
    assert (piece["object"], piece["choices"][0]["text"]) == ("text_completion", "This text")
    (usage,) = events(answer.closing(2, None))
    assert "metrics" not in usage


def test_usage_is_told_only_where_asked_for() -> None:
    assert reply(include_usage=False).closing(5, {"num_spec_steps": 2}) == DONE


def test_usage_so_far_rides_on_every_event() -> None:
    answer = reply(continuous_usage=True)
    (opening,) = events(answer.opening())
    (piece,) = events(answer.piece(1, 4, None))
    assert (opening["usage"]["completion_tokens"], piece["usage"]["completion_tokens"]) == (0, 4)


@pytest.mark.parametrize("cuts", [[0, 25], [0, 1, 2, 9, 10, 11, 25]])
def test_pieces_join_to_the_same_text_which_says_that_it_is_simulated(cuts: list[int]) -> None:
    text = "".join(words(start, end) for start, end in itertools.pairwise(cuts))
    assert text == words(0, 25)
    assert text.count("simulated") == 3
