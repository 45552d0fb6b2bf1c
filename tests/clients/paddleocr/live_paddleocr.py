"""PaddleOCR-VL with its model behind the gateway: 200 at once, and names that it makes up."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from bench.serving import SHARED
from tests.clients.frame import MODEL, RECEIPT, RECEIPT_TEXT, check_killed_at_work, check_snippet

if TYPE_CHECKING:
    from tests.clients.frame import Client, Watched

PAGES = sorted((SHARED / "images").glob("t*/*"))


def test_text_and_tables(client: Client, reading: Watched) -> None:
    had = client.run("read", reading.v1, MODEL, RECEIPT)
    assert (had["type"], had["text"]) == ("PaddleOCRVLResult", RECEIPT_TEXT)
    assert "<table" in had["table"]
    assert [(line["route"], line["reason"], line["code"]) for line in reading.settled()] == [
        ("text", "prompt", 200),
        ("table", "prompt", 200),
    ]


def test_the_name_that_it_makes_up_is_refused_with_the_right_one(client: Client, reading: Watched) -> None:
    had = client.run("unnamed", reading.v1, MODEL, RECEIPT)
    assert had["error"] == "RuntimeError"
    assert "PaddleOCR-VL-1.6-0.9B" in had["text"]
    assert MODEL in had["text"]
    (line,) = reading.settled()
    assert line["code"] == 404


def test_200_at_once(client: Client, simulated: Watched) -> None:
    assert client.run("at_once", simulated.v1, MODEL, RECEIPT) == 200  # the first entry of /v1/models
    lines = [line for line in simulated.settled() if line["path"] == "/v1/chat/completions"]
    assert Counter((line["route"], line["code"]) for line in lines) == {
        ("text", 200): 100,
        ("table", 200): 100,
    }


@pytest.mark.skipif(not PAGES, reason="no images of pages")
def test_real_pages(client: Client, simulated: Watched) -> None:
    assert client.run("labelled", simulated.v1, MODEL, *PAGES) == len(PAGES)
    assert Counter((line["route"], line["code"]) for line in simulated.settled()) == Counter(
        (page.parent.name, 200) for page in PAGES
    )


def test_its_own_retries_meet_good_answers(client: Client, simulated: Watched) -> None:
    with simulated.failing("unavailable"):
        asking = client.start("few", simulated.v1, MODEL, RECEIPT)
        simulated.seen(10, code=503)
    answers = asking.result()
    assert len(answers) == 10
    assert all(answer.startswith("This") for answer in answers)
    assert {line["code"] for line in simulated.settled()} == {200, 503}


def test_it_gives_up_with_the_gateways_words(client: Client, simulated: Watched) -> None:
    with simulated.failing("unavailable"):
        had = client.run("refused", simulated.v1, MODEL, RECEIPT)
        codes = [line["code"] for line in simulated.settled()]
    assert had["error"] == "RuntimeError"
    assert "Error code: 503" in had["text"]
    assert codes == [503] * 3


def test_killed_it_frees_the_engine(client: Client, simulated: Watched) -> None:
    check_killed_at_work(client, simulated)


def test_the_documented_snippet(client: Client, reading: Watched) -> None:
    check_snippet(client, reading)
