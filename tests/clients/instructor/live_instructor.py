"""instructor: fields as pydantic models, by tools, JSON and JSON schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.clients.frame import MODEL, RECEIPT, check_snippet, wait

if TYPE_CHECKING:
    from tests.clients.frame import Client, Watched

FIELDS = {"date": "2026-03-14", "total": "20.70"}


def test_each_mode_gets_its_fields(client: Client, reading: Watched) -> None:
    had = client.run("read", reading.v1, MODEL, RECEIPT)
    assert had == dict.fromkeys(("TOOLS", "JSON", "JSON_SCHEMA", "MD_JSON"), FIELDS)
    assert [(line["route"], line["reason"], line["code"]) for line in reading.settled()] == 4 * [
        ("key-value", "structure", 200)
    ]


def test_its_own_pictures(client: Client, reading: Watched) -> None:
    assert client.run("picture", reading.v1, MODEL, RECEIPT) == FIELDS
    assert [line["route"] for line in reading.settled()] == ["key-value"]


def test_fields_as_they_come(client: Client, reading: Watched) -> None:
    had = client.run("partial", reading.v1, MODEL, RECEIPT)
    assert had["steps"] > 1
    assert had["last"] == FIELDS


def test_a_required_field_that_the_page_lacks_is_told(client: Client, reading: Watched) -> None:
    told = client.run("lacking", reading.v1, MODEL, RECEIPT)
    assert "the page has no value for `vat_numb" in told
    assert {(line["route"], line["code"]) for line in reading.settled()} == {("key-value", 400)}


def test_many_at_once(client: Client, reading: Watched) -> None:
    assert client.run("at_once", reading.v1, MODEL, RECEIPT) == 16 * [FIELDS]
    assert {line["code"] for line in reading.settled()} == {200}


def test_it_gives_up_after_three_and_tells_why(client: Client, simulated: Watched) -> None:
    with simulated.failing("unavailable"):
        told = client.start("leave", simulated.v1, MODEL, RECEIPT).failed()
    assert "the engine takes no more work now" in told
    assert [line["code"] for line in simulated.settled()] == [503] * 3


def test_killed_it_frees_the_engine(client: Client, simulated: Watched) -> None:
    with simulated.failing("slow", factor=100_000):
        asking = client.start("leave", simulated.v1, MODEL, RECEIPT)
        assert asking.said() == "asking"
        wait(simulated.running, "a request in an engine")
        asking.kill()
        wait(lambda: not simulated.running(), "engines without a request")
    assert [(line["route"], line["code"]) for line in simulated.settled()] == [("key-value", 499)]


def test_the_documented_snippet(client: Client, reading: Watched) -> None:
    check_snippet(client, reading)
