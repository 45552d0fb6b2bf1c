"""Mistral's client, for documents: POST /v1/ocr."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import pdf
from tests.clients.frame import MODEL, RECEIPT, check_snippet, wait

if TYPE_CHECKING:
    from pathlib import Path

    from tests.clients.frame import Client, Watched


@pytest.fixture
def letter(tmp_path: Path) -> Path:
    """A PDF of two pages."""
    path = tmp_path / "letter.pdf"
    path.write_bytes(pdf.document(["Invoice number 20457", "Payment within thirty days"]))
    return path


def test_documents_arrive_in_its_own_type(client: Client, reading: Watched, letter: Path) -> None:
    had = client.run("read", reading.url, MODEL, RECEIPT, letter)
    image, document, second = had["image"], had["pdf"], had["second"]
    assert image["type"] == document["type"] == "OCRResponse"
    assert image["model"] == MODEL
    assert [index for index, _ in image["pages"]] == [0]
    assert "20.70" in image["pages"][0][1]
    assert had["dimensions"]["width"] > 100
    assert had["fields"] == {"date": "2026-03-14", "total": "20.70"}
    assert "tbl-0.html" in had["table"][0]
    assert had["table"][1][0].startswith("<table>")
    assert (document["processed"], [index for index, _ in document["pages"]]) == (2, [0, 1])
    assert "20457" in document["pages"][0][1]
    assert "thirty days" in document["pages"][1][1]
    assert second["pages"] == document["pages"][1:]
    lines = reading.settled()
    assert {line["code"] for line in lines} == {200}
    assert {"key-value", "table"} <= {line["route"] for line in lines}


def test_eight_documents_at_once(client: Client, simulated: Watched, letter: Path) -> None:
    had = client.run("at_once", simulated.url, MODEL, RECEIPT, letter)
    assert [document["processed"] for document in had] == [2] * 8
    assert [line["code"] for line in simulated.settled()] == [200] * 16


def test_what_cannot_be_had_is_refused_in_words(client: Client, simulated: Watched, letter: Path) -> None:
    had = client.run("refused", simulated.url, MODEL, RECEIPT, letter)
    assert [status for status, _ in had] == [400] * 3
    assert had[1][1] == "unsupported_parameter"


def test_a_busy_engine_is_asked_again(client: Client, simulated: Watched, letter: Path) -> None:
    with simulated.failing("unavailable"):
        asking = client.start("one", simulated.url, MODEL, RECEIPT, letter)
        simulated.seen(code=503)
    had = asking.result()
    assert had["processed"] == 1
    assert had["pages"][0][1].startswith("This text is simulated")
    assert simulated.settled()[-1]["code"] == 200


def test_it_gives_up_once_the_gateway_has(client: Client, simulated: Watched, letter: Path) -> None:
    with simulated.failing("unavailable"):
        told = client.start("leave", simulated.url, MODEL, RECEIPT, letter).failed()
    assert "the engine takes no more work now" in told
    assert [line["code"] for line in simulated.settled()] == [503] * 6


def test_its_time_limit_ends_every_page(client: Client, simulated: Watched, letter: Path) -> None:
    with simulated.failing("slow", factor=100_000):
        told = client.start("hasty", simulated.url, MODEL, RECEIPT, letter).failed()
    assert "ReadTimeout" in told
    assert {line["code"] for line in simulated.settled()} <= {499}


def test_killed_it_frees_the_engine(client: Client, simulated: Watched, letter: Path) -> None:
    with simulated.failing("slow", factor=100_000):
        asking = client.start("leave", simulated.url, MODEL, RECEIPT, letter)
        assert asking.said() == "asking"
        wait(simulated.running, "a request in an engine")
        asking.kill()
        wait(lambda: not simulated.running(), "engines without a request")
    assert {line["code"] for line in simulated.settled()} == {499}


def test_the_documented_snippet(client: Client, reading: Watched) -> None:
    check_snippet(client, reading)
