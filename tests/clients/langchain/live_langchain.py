"""LangChain's ChatOpenAI, with pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.clients.frame import (
    MODEL,
    RECEIPT,
    RECEIPT_TEXT,
    check_giving_up,
    check_killed_in_mid_stream,
    check_own_retry,
    check_snippet,
)

if TYPE_CHECKING:
    from tests.clients.frame import Client, Watched


def test_each_kind_of_answer_arrives_in_its_own_type(client: Client, reading: Watched) -> None:
    had = client.run("read", reading.v1, MODEL, RECEIPT)
    assert had["type"] == "AIMessage"
    assert had["text"] == had["block"] == "".join(had["pieces"]) == RECEIPT_TEXT
    assert had["tokens"] > 5
    assert had["finish_reason"] == "stop"
    assert had["table"].startswith("<table>")
    assert had["fields"] == had["called"] == {"date": "2026-03-14", "total": "20.70"}
    assert [(line["route"], line["reason"], line["code"]) for line in reading.settled()] == [
        ("text", "prompt", 200),
        ("text", "prompt", 200),
        ("table", "header", 200),
        ("key-value", "structure", 200),
        ("key-value", "structure", 200),
        ("text", "prompt", 200),
    ]


def test_a_batch(client: Client, simulated: Watched) -> None:
    assert client.run("batch", simulated.v1, MODEL, RECEIPT) == [True] * 24
    assert [(line["route"], line["code"]) for line in simulated.settled()] == [("text", 200)] * 24


def test_its_own_retry_meets_a_good_answer(client: Client, simulated: Watched) -> None:
    check_own_retry(client, simulated)


def test_it_gives_up_after_three_and_tells_why(client: Client, simulated: Watched) -> None:
    check_giving_up(client, simulated, requests=3)


def test_a_pdf_is_refused_in_words(client: Client, simulated: Watched) -> None:
    assert client.run("refused", simulated.v1, MODEL, RECEIPT) == [
        "OpenAIInvalidRequestError",
        "unsupported_content_part",
    ]
    assert [line["code"] for line in simulated.settled()] == [400]


def test_its_time_limit_frees_the_engine(client: Client, simulated: Watched) -> None:
    with simulated.failing("slow", factor=100_000):
        assert client.run("timed_out", simulated.v1, MODEL, RECEIPT) == "OpenAITimeoutError"
    assert {line["code"] for line in simulated.settled()} == {499}


def test_killed_in_mid_stream_it_frees_the_engine(client: Client, simulated: Watched) -> None:
    check_killed_in_mid_stream(client, simulated)


def test_responses(client: Client, reading: Watched) -> None:
    assert client.run("responses", reading.v1, MODEL, RECEIPT) == RECEIPT_TEXT
    assert [(line["path"], line["route"]) for line in reading.settled()] == [("/v1/responses", "text")]


def test_the_documented_snippet(client: Client, reading: Watched) -> None:
    check_snippet(client, reading)
