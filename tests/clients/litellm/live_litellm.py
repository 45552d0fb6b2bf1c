"""LiteLLM's SDK: chat as its providers `openai` and `hosted_vllm`, documents as `mistral`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import pdf
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
    from pathlib import Path

    from tests.clients.frame import Client, Watched


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it asks the internet for prices when it is imported."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")


def test_each_kind_of_answer_arrives_in_its_own_type(client: Client, reading: Watched) -> None:
    had = client.run("read", reading.v1, MODEL, RECEIPT)
    assert had["type"] == "ModelResponse"
    assert had["text"] == had["hosted"] == "".join(had["pieces"]) == RECEIPT_TEXT
    assert had["tokens"] > 5
    assert had["table"].startswith("<table>")
    assert had["fields"] == {"date": "2026-03-14", "total": "20.70"}
    assert [(line["route"], line["reason"], line["code"]) for line in reading.settled()] == [
        ("text", "prompt", 200),
        ("text", "prompt", 200),
        ("table", "header", 200),
        ("key-value", "structure", 200),
        ("text", "prompt", 200),
    ]


def test_forty_at_once(client: Client, simulated: Watched) -> None:
    assert client.run("at_once", simulated.v1, MODEL, RECEIPT) == 40
    assert [(line["route"], line["code"]) for line in simulated.settled()] == [("text", 200)] * 40


def test_its_own_retry_meets_a_good_answer(client: Client, simulated: Watched) -> None:
    check_own_retry(client, simulated)


def test_it_gives_up_after_three_and_tells_why(client: Client, simulated: Watched) -> None:
    check_giving_up(client, simulated, requests=3)


def test_num_retries_multiplies(client: Client, simulated: Watched) -> None:
    with simulated.failing("unavailable"):
        client.start("hurried", simulated.v1, MODEL, RECEIPT).failed()
    assert [line["code"] for line in simulated.settled()] == [503] * 7


def test_it_tells_why_it_was_refused(client: Client, simulated: Watched) -> None:
    assert "use 'glm-ocr'" in client.run("refused", simulated.v1, MODEL, RECEIPT)
    assert [line["code"] for line in simulated.settled()] == [404]


def test_killed_in_mid_stream_it_frees_the_engine(client: Client, simulated: Watched) -> None:
    check_killed_in_mid_stream(client, simulated)


def test_documents(client: Client, reading: Watched, tmp_path: Path) -> None:
    document = tmp_path / "letter.pdf"
    document.write_bytes(pdf.document(["Invoice number 20457", "Payment within thirty days"]))
    had = client.run("ocr", reading.v1, MODEL, RECEIPT, document)
    assert had["image"]["type"] == had["file"]["type"] == "OCRResponse"
    assert [index for index, _ in had["image"]["pages"]] == [0]
    assert "20.70" in had["image"]["pages"][0][1]
    assert had["file"]["processed"] == 2
    assert [index for index, _ in had["file"]["pages"]] == [0, 1]
    assert "20457" in had["file"]["pages"][0][1]
    assert "thirty days" in had["file"]["pages"][1][1]
    assert {line["code"] for line in reading.settled()} == {200}


def test_the_documented_snippet(client: Client, reading: Watched) -> None:
    check_snippet(client, reading)
