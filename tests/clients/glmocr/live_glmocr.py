"""GLM-OCR's pipeline: it asks `hello` first, reads with 32 threads, and retries twice by Retry-After."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from bench.serving import SHARED
from tests.clients.frame import MODEL, RECEIPT, RECEIPT_TEXT, check_killed_at_work, check_snippet

if TYPE_CHECKING:
    from tests.clients.frame import Client, Driven, Watched

PAGES = sorted((SHARED / "images").glob("t*/*"))


def test_text_tables_and_fields(client: Client, reading: Watched) -> None:
    had = client.run("read", reading.v1, MODEL, RECEIPT)
    assert had["types"] == ["PipelineResult", "PipelineResult"]
    assert had["text"].split("\n\n") == RECEIPT_TEXT.split("\n")
    assert [region["label"] for region in had["regions"][0]] == ["text"]
    assert had["table"].startswith("<table>")
    assert (had["fields"], had["code"]) == ({"date": "2026-03-14", "total": "20.70"}, 200)
    lines = reading.settled()
    assert [(line["route"], line["reason"], line["code"]) for line in lines] == [
        ("text", "default", 200),  # hello
        ("text", "prompt", 200),
        ("text", "default", 200),
        ("table", "prompt", 200),
        ("key-value", "prompt", 200),
    ]
    assert lines[0]["waited"] is None


def test_128_pages_in_one_call(client: Client, simulated: Watched) -> None:
    assert client.run("at_once", simulated.v1, MODEL, RECEIPT) == 128
    lines = simulated.settled()
    assert Counter((line["reason"], line["code"]) for line in lines) == {
        ("default", 200): 1,
        ("prompt", 200): 128,
    }
    assert {line["route"] for line in lines if line["reason"] == "prompt"} == {"text"}


@pytest.mark.skipif(not PAGES, reason="no images of pages")
def test_real_pages(client: Client, simulated: Watched) -> None:
    assert client.run("labelled", simulated.v1, MODEL, *PAGES) == len(PAGES)
    lines = [line for line in simulated.settled() if line["reason"] == "prompt"]
    assert Counter((line["route"], line["code"]) for line in lines) == Counter(
        (page.parent.name, 200) for page in PAGES
    )


@pytest.fixture
def greeted(client: Client, simulated: Watched) -> Driven:
    """A client whose `hello` was answered: it does not retry that, but waits for 10 s."""
    os.mkfifo(client.cwd / "go")
    asking = client.start("told", simulated.v1, MODEL, RECEIPT)
    assert asking.said() == "greeted"
    return asking


def test_its_own_retries_meet_good_answers(client: Client, greeted: Driven, simulated: Watched) -> None:
    with simulated.failing("unavailable"):
        (client.cwd / "go").write_bytes(b"")
        simulated.seen(10, code=503)
    answers = greeted.result()
    assert len(answers) == 10
    assert all(answer.startswith("This") for answer in answers)
    assert Counter(line["code"] for line in simulated.settled())[200] == 11


def test_what_failed_is_left_out(client: Client, greeted: Driven, simulated: Watched) -> None:
    with simulated.failing("unavailable"):
        (client.cwd / "go").write_bytes(b"")
        assert greeted.result() == [""] * 10
        codes = [line["code"] for line in simulated.settled()]
    assert codes == [200, *[503] * 30]


def test_it_gives_up_with_the_gateways_words(client: Client, simulated: Watched) -> None:
    with simulated.failing("unavailable"):
        had = client.run("one", simulated.v1, MODEL, RECEIPT)
        codes = [line["code"] for line in simulated.settled()]
    assert had["code"] == 503
    assert codes == [503] * 3


def test_killed_it_frees_the_engine(client: Client, simulated: Watched) -> None:
    check_killed_at_work(client, simulated)


def test_the_documented_snippet(client: Client, reading: Watched) -> None:
    check_snippet(client, reading)
