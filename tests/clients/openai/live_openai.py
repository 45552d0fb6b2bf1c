"""OpenAI's Python client: ordinary, streamed, asynchronous, with schemas and tools, and the Responses API."""

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


def test_each_kind_of_answer_arrives_in_its_own_type(client: Client, reading: Watched) -> None:
    had = client.run("read", reading.v1, MODEL, RECEIPT)
    assert (had["model"], had["route"]) == (MODEL, "text")
    assert had["types"] == ["ChatCompletion", "Receipt"]
    assert had["text"] == had["streamed"] == "".join(had["pieces"]) == RECEIPT_TEXT
    assert had["finish_reason"] == "stop"
    assert len(had["pieces"]) > 3
    assert had["tokens"][0] == had["tokens"][1] > 5
    assert had["table"].startswith("<table>")
    assert had["fields"] == had["called"] == {"date": "2026-03-14", "total": "20.70"}
    assert [(kind, code) for kind, code, _ in had["refused"]] == [
        ("NotFoundError", "model_not_found"),
        ("BadRequestError", "unknown_route"),
        ("BadRequestError", "unsupported_content_part"),
    ]
    lines = reading.settled()
    assert [(line["route"], line["reason"], line["code"]) for line in lines[:6]] == [
        ("text", "prompt", 200),
        ("table", "header", 200),
        ("key-value", "structure", 200),
        ("key-value", "structure", 200),
        ("text", "prompt", 200),
        ("text", "prompt", 200),
    ]
    assert [line["request_id"] for line in lines[6:]] == [id for _, _, id in had["refused"]]


def test_sixty_at_once(client: Client, simulated: Watched) -> None:
    had = client.run("at_once", simulated.v1, MODEL, RECEIPT)
    assert had["answers"] == 60
    assert had["streamed"].startswith("This text is simulated")
    lines = simulated.settled()
    assert Counter((line["route"], line["code"]) for line in lines) == {
        ("text", 200): 21,
        ("key-value", 200): 20,
        ("table", 200): 20,
    }


def test_its_own_retry_meets_a_good_answer(client: Client, simulated: Watched) -> None:
    check_own_retry(client, simulated)


def test_it_gives_up_after_three_and_tells_why(client: Client, simulated: Watched) -> None:
    check_giving_up(client, simulated, requests=3)


def test_a_stream_that_breaks_off_is_an_error_to_it(client: Client, simulated: Watched) -> None:
    with simulated.failing("die_mid_stream", after_tokens=5):
        had = client.run("broken", simulated.v1, MODEL, RECEIPT)
    assert (had["error"], had["code"]) == ("APIError", "engine_died")
    assert had["pieces"] > 0


def test_killed_in_mid_stream_it_frees_the_engine(client: Client, simulated: Watched) -> None:
    check_killed_in_mid_stream(client, simulated)


def test_responses(client: Client, reading: Watched) -> None:
    had = client.run("responses", reading.v1, MODEL, RECEIPT)
    assert had["type"] == "Response"
    assert had["text"] == had["streamed"] == RECEIPT_TEXT
    assert had["fields"] == {"date": "2026-03-14", "total": "20.70"}
    assert had["kinds"] == ["response.created", "response.completed"]
    assert had["tokens"] > 5
    assert [(line["path"], line["route"], line["code"]) for line in reading.settled()] == [
        ("/v1/responses", "text", 200),
        ("/v1/responses", "key-value", 200),
        ("/v1/responses", "text", 200),
    ]


def test_the_documented_snippet(client: Client, reading: Watched) -> None:
    check_snippet(client, reading)
