"""OpenAI's JavaScript client, in Node."""

from __future__ import annotations

from collections import Counter
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


def test_each_kind_of_answer_arrives(client: Client, reading: Watched) -> None:
    had = client.run("read", reading.v1, MODEL, RECEIPT)
    assert had["route"] == "text"
    assert had["text"] == had["streamed"] == "".join(had["pieces"]) == RECEIPT_TEXT
    assert len(had["pieces"]) > 3
    assert had["table"].startswith("<table>")
    assert had["fields"] == had["called"] == {"date": "2026-03-14", "total": "20.70"}
    assert had["refused"] == [True, "model_not_found"]
    assert [(line["route"], line["reason"], line["code"]) for line in reading.settled()] == [
        ("text", "prompt", 200),
        ("table", "header", 200),
        ("key-value", "structure", 200),
        ("key-value", "structure", 200),
        ("text", "prompt", 200),
        ("text", "prompt", 200),
        ("", "", 404),
    ]


def test_sixty_at_once(client: Client, simulated: Watched) -> None:
    assert client.run("at_once", simulated.v1, MODEL, RECEIPT) == 60
    assert Counter((line["route"], line["code"]) for line in simulated.settled()) == {
        ("text", 200): 20,
        ("key-value", 200): 20,
        ("table", 200): 20,
    }


def test_its_own_retry_meets_a_good_answer(client: Client, simulated: Watched) -> None:
    check_own_retry(client, simulated)


def test_it_gives_up_after_three_and_tells_why(client: Client, simulated: Watched) -> None:
    check_giving_up(client, simulated, requests=3)


def test_to_leave_the_loop_frees_the_engine(client: Client, simulated: Watched) -> None:
    assert client.run("abort", simulated.v1, MODEL, RECEIPT) == "left"
    assert [line["code"] for line in simulated.settled()] == [499]


def test_killed_in_mid_stream_it_frees_the_engine(client: Client, simulated: Watched) -> None:
    check_killed_in_mid_stream(client, simulated)


def test_responses(client: Client, reading: Watched) -> None:
    had = client.run("responses", reading.v1, MODEL, RECEIPT)
    assert had["text"] == RECEIPT_TEXT
    assert had["kinds"] == ["response.created", "response.completed"]
    assert [(line["path"], line["route"], line["code"]) for line in reading.settled()] == [
        ("/v1/responses", "text", 200),
        ("/v1/responses", "text", 200),
    ]


def test_the_documented_snippet(client: Client, reading: Watched) -> None:
    check_snippet(client, reading)
