from __future__ import annotations

import json

import pytest

from gateway.engines.vllm_json import chunk_choice, error_body, event, speculative_object, usage, whole_choice


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
