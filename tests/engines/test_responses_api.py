from __future__ import annotations

import copy
import json
from typing import Any

import openai.types.responses as sdk
from pydantic import TypeAdapter

from gateway.engines.responses_api import ResponseAnswer
from gateway.model import Usage
from gateway.wire import sse
from gateway.wire.responses import read_answer, read_chunk

EVENT: TypeAdapter[Any] = TypeAdapter(sdk.ResponseStreamEvent)


def events(stream: bytes) -> list[dict[str, Any]]:
    told = [json.loads(sse.event_data(event) or b"") for event in sse.EventSplitter().feed(stream)]
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    for event in told:
        as_openai_tells = copy.deepcopy(event)
        if usage := event.get("response", {}).get("usage"):  # OpenAI has counted this since, vLLM has not
            as_openai_tells["response"]["usage"]["input_tokens_details"] = {
                **usage["input_tokens_details"],
                "cache_write_tokens": 0,
            }
        EVENT.validate_python(as_openai_tells)
    return told


def streamed(answer: ResponseAnswer, *texts: str, finish_reason: str = "stop") -> list[dict[str, Any]]:
    begun = answer.accepted() + answer.opening()
    pieces = b"".join(map(answer.piece, texts)) + answer.piece("", finish_reason=finish_reason)
    return events(begun + pieces + answer.closing(tokens=3, finish_reason=finish_reason))


def test_a_streams_events_are_openais_and_tell_the_same_as_the_whole() -> None:
    told = streamed(ResponseAnswer("1", "m", 7), "one", " two")
    assert [event["type"].removeprefix("response.") for event in told] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    whole = json.loads(ResponseAnswer("1", "m", 7).whole("one two", tokens=3, finish_reason="stop"))
    assert {**told[-1]["response"], "created_at": 0} == {**whole, "created_at": 0}
    assert sdk.Response.construct(**whole).output_text == "one two"


def test_a_forced_tool_is_called_with_the_text() -> None:
    told = streamed(ResponseAnswer("1", "m", 7, "save"), '{"a":', " 1}")
    (call,) = told[-1]["response"]["output"]
    assert (call["type"], call["name"], json.loads(call["arguments"])) == ("function_call", "save", {"a": 1})
    assert [event["delta"] for event in told if event["type"].endswith("arguments.delta")] == ['{"a":', " 1}"]


def test_an_answer_that_was_cut_says_so_and_all_tell_their_usage() -> None:
    last = streamed(ResponseAnswer("1", "m", 7), "one", finish_reason="length")[-1]
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert read_chunk(json.dumps(last).encode()).usage == Usage(7, 3)
    whole = ResponseAnswer("1", "m", 7).whole("one", tokens=3, finish_reason="length")
    assert json.loads(whole)["status"] == "incomplete"
    answer = read_answer(whole)
    assert answer
    assert answer.usage == Usage(7, 3)
