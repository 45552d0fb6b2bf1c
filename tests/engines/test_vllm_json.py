from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.engines.vllm_json import DONE, CompletionAnswer, error_body, speculative_object
from tests.support import events_of

SPECULATION = {"num_spec_steps": 1}


def answer(**fields: Any) -> CompletionAnswer:
    return CompletionAnswer("id-1", "glm-ocr", 900, created=5, **fields)


def simulated(**fields: Any) -> CompletionAnswer:
    return answer(fingerprint="simulated-x", include_usage=True, **fields)


def events(data: bytes) -> list[Any]:
    return events_of(data + DONE)


def test_a_whole_answer() -> None:
    assert json.loads(answer().whole("text", tokens=3, finish_reason="stop")) == {
        "id": "id-1",
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
        "usage": {"prompt_tokens": 900, "total_tokens": 903, "completion_tokens": 3},
    }


def test_a_whole_simulated_answer_tells_so_and_its_speculation() -> None:
    told = json.loads(
        simulated().whole("This text is", tokens=4, finish_reason="stop", speculation=SPECULATION)
    )
    assert (told["id"], told["object"], told["created"]) == ("id-1", "chat.completion", 5)
    (choice,) = told["choices"]
    assert choice["message"] == {"role": "assistant", "content": "This text is"}
    assert choice["finish_reason"] == "stop"
    assert told["usage"] == {"prompt_tokens": 900, "total_tokens": 904, "completion_tokens": 4}
    assert told["metrics"] == {"speculative_decoding": SPECULATION}
    assert told["system_fingerprint"] == "simulated-x"


def test_a_whole_text_completion() -> None:
    told = json.loads(simulated(chat=False).whole("This text", tokens=2, finish_reason="length"))
    assert told["object"] == "text_completion"
    assert told["choices"][0]["text"] == "This text"
    assert (told["choices"][0]["finish_reason"], told["metrics"]) == ("length", None)


def test_a_chat_streams_events() -> None:
    one = simulated()
    assert one.accepted() == b""
    (opening,) = events(one.opening())
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    data = one.piece("a\n\nb", tokens=4)
    assert data.startswith(b"data: ")
    assert data.endswith(b"\n\n")
    assert data.count(b"\n") == 2
    (piece,) = events(data)
    assert piece["object"] == "chat.completion.chunk"
    assert piece["choices"] == [
        {"index": 0, "delta": {"content": "a\n\nb"}, "logprobs": None, "finish_reason": None}
    ]
    assert "usage" not in piece
    (last,) = events(one.piece("", tokens=5, finish_reason="length"))
    assert last["choices"][0]["delta"] == {"content": ""}
    assert last["choices"][0]["finish_reason"] == "length"
    (usage,) = events_of(one.closing(tokens=5, finish_reason="length", speculation=SPECULATION))
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 5)
    assert usage["metrics"] == {"speculative_decoding": SPECULATION}
    assert {event["id"] for event in (opening, piece, last, usage)} == {"id-1"}


def test_a_text_streams_events() -> None:
    one = simulated(chat=False)
    assert one.opening() == b""
    (piece,) = events(one.piece("This text", tokens=2))
    assert (piece["object"], piece["choices"][0]["text"]) == ("text_completion", "This text")
    (usage,) = events_of(one.closing(tokens=2, finish_reason="stop"))
    assert "metrics" not in usage


def test_usage_is_told_only_where_asked_for() -> None:
    assert answer().closing(tokens=5, finish_reason="stop", speculation=SPECULATION) == DONE
    (last,) = events(answer().piece("", finish_reason="stop"))
    assert "usage" not in last


def test_usage_so_far_rides_on_every_event() -> None:
    one = simulated(continuous_usage=True)
    (opening,) = events(one.opening())
    (piece,) = events(one.piece("text", tokens=4))
    assert (opening["usage"]["completion_tokens"], piece["usage"]["completion_tokens"]) == (0, 4)


def test_a_forced_tool_is_called() -> None:
    one = answer(tool="save")
    (choice,) = json.loads(one.whole('{"a": 1}', tokens=7, finish_reason="tool_calls"))["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["function"] == {"name": "save", "arguments": '{"a": 1}'}
    _, named = events(one.opening())
    (delta,) = named["choices"][0]["delta"]["tool_calls"]
    assert delta == {**call, "index": 0, "function": {"name": "save", "arguments": ""}}
    (piece,) = events(one.piece('{"a": 1}'))
    assert piece["choices"][0]["delta"] == {
        "tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}'}}]
    }


def test_an_answers_speculation_is_as_vllm_tells_it() -> None:
    # A recorded answer's figures.
    assert speculative_object([20, 26, 26, 38], 330) == {
        "mean_acceptance_length": 2.745454545454545,
        "draft_acceptance_rate": 0.5818181818181818,
        "acceptance_histogram": [20, 26, 26, 38],
        "num_spec_steps": 110,
        "num_accepted_draft_tokens": 192,
        "num_draft_tokens": 330,
        "num_spec_tokens": 3,
    }


def test_an_answer_without_drafts_has_length_one_and_rate_nought() -> None:
    told = speculative_object([0, 0], 0)
    assert (told["mean_acceptance_length"], told["draft_acceptance_rate"]) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "BadRequestError"), (404, "NotFoundError"), (500, "InternalServerError")],
)
def test_an_errors_code_is_its_status(status: int, kind: str) -> None:
    assert json.loads(error_body(status, "no", "model")) == {
        "error": {"message": "no", "type": kind, "param": "model", "code": status}
    }
