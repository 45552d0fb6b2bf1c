"""MinerU's client of its model: it finds the model out, sends 100 at once, and retries by Retry-After."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import httpx
import pytest

from bench.serving import SHARED
from tests.clients.frame import MODEL, RECEIPT, RECEIPT_TEXT, check_snippet, wait

if TYPE_CHECKING:
    from tests.clients.frame import Client, Watched

PAGES = sorted((SHARED / "images").glob("t*/*"))


def test_pages_and_parts_of_pages(client: Client, reading: Watched) -> None:
    had = client.run("read", reading.v1, MODEL, RECEIPT)
    assert had["model"] == MODEL  # not named: the only entry of /v1/models
    assert (had["type"], had["text"]) == ("ExtractStr", RECEIPT_TEXT)
    assert had["table"].startswith("<table>")
    assert [block[:2] for block in had["blocks"]] == [["ContentBlock", "title"], ["ContentBlock", "table"]]
    assert had["blocks"][0][2] == "CORNER BAKERY"
    assert "20.70" in had["blocks"][1][2]
    assert had["layout"] == ["ExtractResult", 0]  # no other model answers with its boxes
    lines = [line for line in reading.settled() if line["path"] == "/v1/chat/completions"]
    assert [(line["route"], line["reason"], line["code"]) for line in lines] == [
        ("text", "prompt", 200),
        ("text", "prompt", 200),
        ("table", "prompt", 200),
        ("table", "prompt", 200),
        ("text", "prompt", 200),
        ("text", "prompt", 200),
    ]


def test_a_name_that_chooses_the_route(client: Client, reading: Watched) -> None:
    had = client.run("alias", reading.url, MODEL, RECEIPT)  # it adds /v1 by itself
    assert "'glm-ocr:table' not found" in had["refused"]
    assert had["read"] == RECEIPT_TEXT
    (line,) = [line for line in reading.settled() if line["path"] == "/v1/chat/completions"]
    assert (line["route"], line["reason"], line["code"]) == ("table", "model", 200)


def test_what_is_cut_short_is_told(client: Client, reading: Watched) -> None:
    had = client.run("truncated", reading.v1, MODEL, RECEIPT)
    assert had["error"] == "The response was truncated due to length limit."


def test_200_pages_in_one_batch(client: Client, simulated: Watched) -> None:
    assert client.run("at_once", simulated.v1, MODEL, RECEIPT) == 200
    lines = [line for line in simulated.settled() if line["path"] == "/v1/chat/completions"]
    assert Counter((line["route"], line["code"]) for line in lines) == {
        ("text", 200): 100,
        ("table", 200): 100,
    }


@pytest.mark.skipif(not PAGES, reason="no images of pages")
def test_real_pages(client: Client, simulated: Watched) -> None:
    assert client.run("labelled", simulated.v1, MODEL, *PAGES) == len(PAGES)
    lines = [line for line in simulated.settled() if line["path"] == "/v1/chat/completions"]
    assert Counter((line["route"], line["code"]) for line in lines) == Counter(
        (page.parent.name, 200) for page in PAGES
    )


def test_its_own_retries_meet_good_answers(client: Client, simulated: Watched) -> None:
    with simulated.failing("unavailable"):
        asking = client.start("few", simulated.v1, MODEL, RECEIPT)
        simulated.seen(10, code=503)
    answers = asking.result()
    assert len(answers) == 10
    assert all(answer.startswith("This") for answer in answers)
    codes = Counter(line["code"] for line in simulated.settled() if line["route"])
    assert codes[200] == 10
    assert set(codes) == {200, 503}


def test_an_engine_that_shuts_down_costs_it_nothing(client: Client, simulated: Watched) -> None:
    # The engine says 500, which MinerU never retries.
    httpx.post(f"{simulated.engines[0].url}/faults", json={"kind": "drain"}).raise_for_status()
    assert len(client.run("few", simulated.v1, MODEL, RECEIPT)) == 10
    assert [line["code"] for line in simulated.settled() if line["route"]] == [200] * 10


def test_it_gives_up_with_the_gateways_words(client: Client, simulated: Watched) -> None:
    with simulated.failing("unavailable"):
        had = client.run("refused", simulated.v1, MODEL, RECEIPT)
        codes = [line["code"] for line in simulated.settled() if line["route"]]
    assert had["error"] == "HttpResponseError"
    assert "503" in had["text"]
    assert codes == [503] * 4


def test_killed_it_frees_the_engine(client: Client, simulated: Watched) -> None:
    with simulated.failing("slow", factor=1000):
        asking = client.start("leave", simulated.v1, MODEL, RECEIPT)
        wait(simulated.running, "the engine works")
        asking.kill()
        assert [line["code"] for line in simulated.settled() if line["route"]] == [499]


def test_the_documented_snippet(client: Client, reading: Watched) -> None:
    check_snippet(client, reading)
