import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.engines.vllm_json import speculative_object
from gateway.model import Speculation, Usage
from gateway.wire.openai.completion import StreamChunk, WholeAnswer, read_answer, read_chunk
from gateway.wire.openai.error_shape import read_error_message
from tests.support import chunk

VALUES = st.sampled_from(
    [None, True, 0, 1, -1, 2**53, 2**70, 0.5, 400, "", "abort", "stop", [], {}, ["x"], {"a": 1}]
)
CHOICES = st.dictionaries(
    st.sampled_from(["index", "delta", "text", "finish_reason", "stop_reason"]),
    VALUES | st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "reasoning"]), VALUES),
)
FIGURES = st.sampled_from(["prompt_tokens", "completion_tokens", "code", "message", "speculative_decoding"])
ANSWERS = st.dictionaries(
    st.sampled_from(["choices", "usage", "metrics", "error", "object"]),
    VALUES | st.lists(CHOICES, max_size=3) | st.dictionaries(FIGURES, VALUES),
)


@given(ANSWERS)
def test_no_answer_breaks_the_readers(answer: Any) -> None:
    data = json.dumps(answer).encode()
    event, whole = read_chunk(data), read_answer(data)
    for usage in (event.usage, whole.usage if whole else None):
        assert usage is None or (0 <= usage.prompt_tokens < 2**53 and 0 <= usage.completion_tokens < 2**53)
    assert event.error_status == 0 or 400 <= event.error_status < 600
    assert len(read_error_message(data)) <= 500


@given(st.binary(max_size=200))
def test_no_bytes_break_the_readers_of_answers(data: bytes) -> None:
    assert read_answer(data) is None
    assert not read_chunk(data).is_chunk
    assert read_error_message(data).isprintable()


USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (chunk(), StreamChunk(is_chunk=True)),
        (chunk("hi"), StreamChunk(is_chunk=True, has_output=True, is_step=True)),
        (
            chunk("hi", usage=USAGE),
            StreamChunk(is_chunk=True, usage=Usage(3, 4), has_output=True, is_step=True),
        ),
        ({"choices": [{"text": "hi"}]}, StreamChunk(is_chunk=True, has_output=True, is_step=True)),
        (
            {"choices": [{"delta": {"tool_calls": [{}]}}]},
            StreamChunk(is_chunk=True, has_output=True, is_step=True, is_uncountable=True),
        ),
        ({"choices": [], "usage": USAGE}, StreamChunk(is_chunk=True, usage=Usage(3, 4), is_usage_only=True)),
        ({"choices": []}, StreamChunk(is_chunk=True)),
        ({"error": {"message": "x"}}, StreamChunk(is_error=True)),
        ({"error": {"code": 503}}, StreamChunk(is_error=True, error_status=503)),
        ({"error": {"code": 200}}, StreamChunk(is_error=True)),
        ({"error": {"code": "503"}}, StreamChunk(is_error=True)),
        ({"choices": 5}, StreamChunk()),
        ({"usage": {"prompt_tokens": 2**60}}, StreamChunk(usage=Usage(), is_usage_only=True)),
        (
            {"usage": {"prompt_tokens": "x", "completion_tokens": -1}},
            StreamChunk(usage=Usage(), is_usage_only=True),
        ),
    ],
)
def test_what_one_event_tells(data: object, expected: StreamChunk) -> None:
    assert read_chunk(json.dumps(data).encode()) == expected


STEP = {"index": 0, "delta": {"content": "hi"}}
DRAFTED = {"speculative_decoding": speculative_object([1, 2, 3], 12)}


@pytest.mark.parametrize(
    ("choice", "is_step"),
    [
        ({"delta": {"role": "assistant", "content": ""}}, False),
        ({"delta": {"role": "assistant"}}, False),
        ({"delta": {"role": "assistant", "content": "hi"}}, True),
        ({"delta": {"role": "assistant", "content": ""}, "finish_reason": "stop"}, True),
        ({"delta": {"content": "hi"}}, True),
        ({"delta": {"content": ""}}, True),  # a character whose bytes are not all there yet
        ({"delta": {"content": ""}, "finish_reason": "stop"}, True),  # the end mark, alone
        ({"delta": {}}, True),
        ({"delta": {"reasoning": "so"}}, True),
        ({"text": "hi"}, True),
        ({"text": ""}, True),
    ],
)
def test_every_chunk_but_the_one_that_names_the_role_is_a_step(choice: object, is_step: bool) -> None:
    assert read_chunk(json.dumps({"choices": [choice]}).encode()).is_step is is_step


@pytest.mark.parametrize(
    ("choices", "uncountable"),
    [
        ([STEP], False),
        ([{**STEP, "index": 1}], True),
        ([STEP, {**STEP, "index": 1}], True),
        ([{**STEP, "finish_reason": "stop", "stop_reason": None}], False),
        ([{**STEP, "finish_reason": "stop", "stop_reason": 151329}], False),
        ([{**STEP, "finish_reason": "stop", "stop_reason": "</table>"}], True),
        ([{**STEP, "finish_reason": "length"}], False),
        ([{"index": 0, "delta": {"reasoning": "so"}}], True),
        ([{"index": 0, "delta": {"tool_calls": [{}]}}], True),
    ],
)
def test_steps_of_several_choices_before_a_stop_string_or_behind_a_parser_cannot_be_counted(
    choices: object, uncountable: bool
) -> None:
    assert read_chunk(json.dumps({"choices": choices}).encode()).is_uncountable is uncountable


def test_what_was_drafted_is_told_in_the_answer_or_with_a_streams_usage() -> None:
    figures = Speculation(6, 8, 12, (5, 3))
    chunk = read_chunk(json.dumps({"choices": [], "usage": USAGE, "metrics": DRAFTED}).encode())
    assert chunk == StreamChunk(is_chunk=True, usage=Usage(3, 4), is_usage_only=True, speculation=figures)
    whole = read_answer(json.dumps({"choices": [STEP], "usage": USAGE, "metrics": DRAFTED}).encode())
    assert whole == WholeAnswer(Usage(3, 4), figures)
    for nothing in ({}, {"metrics": None}, {"metrics": {"speculative_decoding": None}}, {"metrics": 5}):
        whole = read_answer(json.dumps({"choices": [STEP], "usage": USAGE, **nothing}).encode())
        assert whole == WholeAnswer(Usage(3, 4))


def test_garbage_tells_nothing() -> None:
    assert read_chunk(b"not json") == StreamChunk()
    for garbage in (b"not json", b"{}", b"[]", b"\xff", b'{"choices": 5}', b"[" * 100_000):
        assert read_answer(garbage) is None
    assert read_answer(b'{"choices": [{"message": {"content": "\xff"}}]}') is None
    assert read_chunk(b'{"choices": [], "usage": {"prompt_tokens": 1e400}}') == StreamChunk(
        is_chunk=True, is_usage_only=True, is_uncountable=True
    )


def test_answers_are_read() -> None:
    assert read_answer(json.dumps({"usage": USAGE, "choices": [{}]}).encode()) == WholeAnswer(Usage(3, 4))
    assert read_answer(b'{"usage": "none", "choices": []}') == WholeAnswer(None)
    assert read_error_message(b'{"error": {"message": "too long", "code": 400}}') == "too long"
    assert read_error_message(b'{"error": "Unauthorized"}') == "Unauthorized"
    assert read_error_message(b'{"error": {"message": 5}}') == ""


@pytest.mark.parametrize("usage", [-5, 10**12, 1.5, "7", None, True])
def test_absurd_usage_counts_nothing(usage: Any) -> None:
    told = json.dumps({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": usage}}).encode()
    counted = Usage(3, 1 if usage is True else 0)
    assert read_chunk(told).usage == counted
    assert read_answer(told) == WholeAnswer(counted)


def test_what_would_take_an_event_long_to_build_is_not_built() -> None:
    """5,000 choices are passed on; whether they are a completion, or an error, is known."""
    many = b"[" + b"{}," * 5_001 + b"{}]"
    chunk = read_chunk(b'{"choices": ' + many + b', "usage": {"prompt_tokens": 1, "completion_tokens": 1}}')
    assert chunk == StreamChunk(is_chunk=True, has_output=True, is_uncountable=True)
    assert not read_chunk(b'{"x": ' + many + b"}").is_chunk
    assert not read_chunk(many).is_chunk
    assert not read_chunk(many).is_error
    assert read_chunk(b'{"error": ' + many + b"}").is_error
    usage = b', "usage": {"prompt_tokens": 1, "completion_tokens": 1, "more": '
    assert read_answer(b'{"choices": ' + many + usage + b"0}}") == WholeAnswer(Usage(1, 1))
    assert read_answer(b'{"choices": []' + usage + many + b"}}") == WholeAnswer(None)


def test_tells_what_the_engine_broke_off() -> None:
    aborted = b'{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"abort"}]}'
    quoting = json.dumps({"choices": [{"message": {"content": aborted.decode()}, "finish_reason": "stop"}]})
    answers = [read_answer(aborted), read_answer(quoting.encode())]
    assert [answer and answer.is_aborted for answer in answers] == [True, False]
    spaced = read_answer(aborted.replace(b":", b" : "))
    assert spaced
    assert spaced.is_aborted
    assert read_chunk(aborted).is_aborted
    assert not read_chunk(quoting.encode()).is_aborted
