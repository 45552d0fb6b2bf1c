"""Chandra (chandra-ocr): OpenAI's client with retries of its own on top, for failures and for repetition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests import pdf
from tests.clients.frame import MODEL, RECEIPT, check_killed_at_work, check_snippet

if TYPE_CHECKING:
    from pathlib import Path

    from tests.clients.frame import Client, Line, Watched


def sorted_and_answered(lines: list[Line]) -> list[tuple[str, str, int]]:
    return [(line["route"], line["reason"], line["code"]) for line in lines]


def test_both_of_its_prompts_are_text(client: Client, reading: Watched) -> None:
    for had in client.run("read", reading.v1, MODEL, RECEIPT):
        assert had["type"] == "BatchOutputItem"
        assert had["error"] is False
        assert had["markdown"].splitlines()[0].strip() == "CORNER BAKERY"
        assert "Total 20.70" in had["markdown"]
        assert [label for label, _ in had["chunks"]] == ["Text"]
        assert had["tokens"] > 5
    assert sorted_and_answered(reading.settled()) == [("text", "prompt", 200)] * 2


def test_its_command_reads_a_pdf(client: Client, reading: Watched, tmp_path: Path) -> None:
    document = tmp_path / "letter.pdf"
    document.write_bytes(pdf.document(["Invoice number 20457", "Payment within thirty days"]))
    had = client.run("convert", reading.v1, MODEL, document)
    assert had["pages"] == 2
    assert had["markdown"].index("20457") < had["markdown"].index("thirty days")
    assert sorted_and_answered(reading.settled()) == [("text", "prompt", 200)] * 2


def test_sixty_four_at_once(client: Client, simulated: Watched) -> None:
    assert client.run("at_once", simulated.v1, MODEL, RECEIPT) == [False] * 64
    assert sorted_and_answered(simulated.settled()) == [("text", "prompt", 200)] * 64


def test_what_repeats_itself_is_asked_seven_times(client: Client, reading: Watched, tmp_path: Path) -> None:
    document = tmp_path / "list.pdf"
    document.write_bytes(pdf.document(["\n".join(["Carried over"] * 12)]))
    assert client.run("one", reading.v1, MODEL, document)["markdown"].count("Carried over") == 12
    assert sorted_and_answered(reading.settled()) == [("text", "prompt", 200)] * 7


def test_its_own_retry_meets_a_good_answer(client: Client, simulated: Watched) -> None:
    with simulated.failing("unavailable"):
        asking = client.start("one", simulated.v1, MODEL, RECEIPT)
        simulated.seen(code=503)
    had = asking.result()
    assert had["error"] is False
    assert had["tokens"] > 5
    codes = [line["code"] for line in simulated.settled()]
    assert codes[0] == 503
    assert codes[-1] == 200


def test_one_retry_of_its_own_is_six_requests(client: Client, simulated: Watched) -> None:
    with simulated.failing("unavailable"):
        assert client.run("one", simulated.v1, MODEL, RECEIPT, 1)["error"] is True
    assert [line["code"] for line in simulated.settled()] == [503] * 6


def test_killed_it_frees_the_engine(client: Client, simulated: Watched) -> None:
    check_killed_at_work(client, simulated, "one")


def test_the_documented_snippet(client: Client, reading: Watched) -> None:
    check_snippet(client, reading)
