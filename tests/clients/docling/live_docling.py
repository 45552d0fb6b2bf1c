"""docling, with vision-language models: RGBA pictures, urllib3's retries, streams that it breaks off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import pdf
from tests.clients.frame import MODEL, RECEIPT, check_killed_at_work, check_snippet

if TYPE_CHECKING:
    from pathlib import Path

    from tests.clients.frame import Client, Watched


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is to be fetched from a hub."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def letter(tmp_path: Path) -> Path:
    """A PDF of two pages."""
    path = tmp_path / "letter.pdf"
    path.write_bytes(pdf.document(["Invoice number 20457", "Payment within thirty days"]))
    return path


def test_each_form_of_answer_becomes_a_document(client: Client, reading: Watched, letter: Path) -> None:
    had = client.run("read", reading.v1, MODEL, RECEIPT, letter)
    for preset in ("glm_ocr", "granite_docling", "chandra_ocr2"):
        receipt, document = had[preset]
        assert receipt["type"] == document["type"] == "DoclingDocument"
        assert [receipt["status"], document["status"]] == ["success"] * 2, (preset, receipt, document)
        assert [receipt["pages"], document["pages"]] == [1, 2]
        assert "CORNER BAKERY" in receipt["markdown"]
        assert document["markdown"].index("20457") < document["markdown"].index("thirty days")
    assert all("CORNER BAKERY" in had[key][0]["markdown"] for key in ("header", "options"))
    lines = reading.settled()
    assert [(line["route"], line["reason"], line["code"]) for line in lines] == [
        *[("text", "prompt", 200)] * 9,
        ("table", "header", 200),
        ("text", "prompt", 200),
    ]


def test_sixty_four_pages_at_once(client: Client, simulated: Watched, tmp_path: Path) -> None:
    document = tmp_path / "long.pdf"
    document.write_bytes(pdf.document(["."] * 64, size=(200, 200)))
    (had,) = client.run("at_once", simulated.v1, MODEL, document)
    assert (had["status"], had["pages"]) == ("success", 64)
    assert [line["code"] for line in simulated.settled()] == [200] * 64


def test_its_own_retry_meets_a_good_answer(client: Client, simulated: Watched) -> None:
    with simulated.failing("unavailable"):
        asking = client.start("one", simulated.v1, MODEL, RECEIPT)
        simulated.seen(code=503)
    (had,) = asking.result()
    assert had["status"] == "success", had
    assert had["markdown"].startswith("This text is simulated")
    codes = [line["code"] for line in simulated.settled()]
    assert set(codes[:-1]) == {503}
    assert codes[-1] == 200


def test_a_busy_gateway_is_asked_six_times(client: Client, simulated: Watched) -> None:
    with simulated.failing("unavailable"):
        (had,) = client.run("one", simulated.v1, MODEL, RECEIPT)
    assert had["status"] == "failure"
    assert [line["code"] for line in simulated.settled()] == [503] * 6


def test_it_tells_why_it_was_refused(client: Client, simulated: Watched) -> None:
    (had,) = client.run("one", simulated.v1, "nobody", RECEIPT)
    assert had["status"] == "failure"
    assert "use 'glm-ocr'" in had["errors"][0]
    assert [line["code"] for line in simulated.settled()] == [404]


def test_a_stream_that_it_breaks_off_frees_the_engine(client: Client, simulated: Watched) -> None:
    client.run("streamed", simulated.v1, MODEL, RECEIPT)
    assert [line["code"] for line in simulated.settled()] == [499]


def test_killed_it_frees_the_engine(client: Client, simulated: Watched) -> None:
    check_killed_at_work(client, simulated, "one")


def test_the_documented_snippet(client: Client, reading: Watched) -> None:
    check_snippet(client, reading)
