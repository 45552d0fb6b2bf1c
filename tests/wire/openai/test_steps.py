from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.wire import openai
from gateway.wire.openai.steps import Steps
from gateway.wire.sse import EventSplitter, event_data
from tests.support import chunk


def event(value: Any, **dumping: Any) -> bytes:
    return b"data: " + json.dumps(value, **dumping).encode() + b"\n\n"


def text(content: str) -> dict[str, Any]:
    return {"id": "c", "choices": [{"index": 0, "text": content, "finish_reason": None}]}


def taught(*events: bytes) -> Steps:
    steps = Steps()
    for one in events:
        steps.learn(one)
    return steps


def ordinary(events: bytes) -> bool:
    """What is asked of each event, read in full."""
    splitter = EventSplitter()
    read = [openai.read_chunk(event_data(one) or b"") for one in splitter.feed(events)]
    return not splitter.pending and all(
        one == openai.StreamChunk(is_chunk=True, has_output=True, is_step=True) for one in read
    )


@pytest.mark.parametrize("of", [lambda content: chunk(content), text])
def test_events_that_differ_in_their_text_alone_are_told_at_once(of: Any) -> None:
    steps = taught(event(of("one")))
    said = ["two", ' "\\ \n\t\x00', "\u00fc\u6f22\U0001f600", '","finish_reason":"stop', "x" * 5000]
    assert steps.count(b"".join(event(of(one)) for one in said)) == 5
    assert steps.count(event(of("\u00fc\u6f22"), ensure_ascii=False)) == 1


@pytest.mark.parametrize(
    "other",
    [
        chunk(),
        chunk(""),
        chunk("x", "stop"),
        chunk("x", usage={"prompt_tokens": 1}),
        chunk("x", id="another"),
        {"error": {"message": "told"}},
        {**chunk(), "choices": []},
        chunk("x" * 9000),
    ],
)
def test_what_differs_otherwise_is_not(other: Any) -> None:
    steps = taught(event(chunk("one")))
    assert steps.count(event(other)) == 0
    assert steps.count(event(chunk("two")) + event(other)) == 0


@pytest.mark.parametrize(
    "broken",
    [b'a"b', b"\\", b"\\x", b"a\nb", b"a\x01b", b"\xff", b"\\ud800\\", b'"},"x":{"y":"'],
)
def test_text_that_is_no_json_string_is_not(broken: bytes) -> None:
    one = event(chunk("one"))
    assert taught(one).count(one.replace(b"one", broken)) == 0


@pytest.mark.parametrize("data", [b"", b": ping\n\n", b"data: [DONE]\n\n", event(chunk("two"))[:-1]])
def test_neither_is_what_is_no_whole_chunk(data: bytes) -> None:
    assert taught(event(chunk("one"))).count(data) == 0


@pytest.mark.parametrize(
    "strange",
    [
        event(chunk()),
        event({"choices": [{"index": 1, "delta": {"content": "x"}}]}),
        event({"choices": [{"delta": {"content": "x", "reasoning": "so"}}]}),
        event({"choices": [{"delta": {"content": "x"}}, {"delta": {"content": "y"}}]}),
        event({"content": "x", "choices": [{"delta": {"content": "y"}}]}),
        event(chunk("one")).replace(b"\n", b"\r\n"),
        b"id: 7\n" + event(chunk("one")),
        b'data: {"content": "x"}\n\n',
        b"data: [DONE]\n\n",
    ],
)
def test_nothing_is_learnt_of_what_is_no_ordinary_step(strange: bytes) -> None:
    steps = taught(strange)
    assert steps.count(strange) == steps.count(strange.replace(b'"x"', b'"z"')) == 0


def test_a_pattern_is_looked_for_in_the_first_events_only() -> None:
    one = event(chunk("one"))
    assert taught(event(chunk()), one).count(one) == 1
    assert taught(*[event(chunk())] * 3, one).count(one) == 0
    assert taught(one, event(text("x"))).count(one) == 1


MEMBERS = st.fixed_dictionaries(
    {},
    optional={
        "id": st.sampled_from(["a", '"content":"x"']),
        "content": st.text(max_size=3),
        "usage": st.sampled_from([None, {"completion_tokens": 3}]),
        "error": st.sampled_from([None, "x"]),
        "choices": st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "index": st.sampled_from([0, 1]),
                    "text": st.text(max_size=3),
                    "delta": st.fixed_dictionaries(
                        {},
                        optional={
                            "role": st.sampled_from([None, "assistant"]),
                            "content": st.sampled_from(["", "x", '"content":"', "\\", None]),
                            "reasoning": st.sampled_from([None, "x"]),
                        },
                    ),
                    "finish_reason": st.sampled_from([None, "stop", "abort"]),
                    "stop_reason": st.sampled_from([None, "#"]),
                },
            ),
            max_size=2,
        ),
    },
)


@given(MEMBERS, st.lists(st.one_of(MEMBERS, st.text(max_size=4), st.binary(max_size=4)), max_size=3))
@example(chunk("a"), ["b", b'c"', chunk("d")])
def test_what_is_told_at_once_is_what_reading_it_tells(first: Any, then: list[Any]) -> None:
    one = event(first)
    steps = taught(one)
    shared = text_of(one)
    data = b"".join(
        event(item)
        if isinstance(item, dict)
        else one.replace(
            shared, b'"%s"' % (item if isinstance(item, bytes) else json.dumps(item)[1:-1].encode())
        )
        for item in then
    )
    if count := steps.count(data):
        assert ordinary(data)
        assert count == len(EventSplitter().feed(data))


def text_of(one: bytes) -> bytes:
    """The last string of an event, as it stands there."""
    parts = one.split(b'"')
    return b'"%s"' % parts[-2] if len(parts) > 2 else b"data"
