"""Pages are rendered and read, several at once, each by a route of its own; annotations."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from gateway.documents import endpoint, read_pages
from gateway.model import LayoutGuess
from gateway.wire.mistral import page_tables
from tests import pdf
from tests.conftest import fleet
from tests.documents.asking import (
    PAGES,
    SCHEMA,
    Reader,
    asked,
    nothing_left,
    prompts_of,
    refused,
    settings_of,
    told,
)
from tests.support import FakeEngine, _Sender, answer, completion, data_url, encoded, hang, picture, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Running


async def test_tables_may_be_taken_out(running: Running) -> None:
    async def table(engine: FakeEngine, request: dict[str, Any], send: _Sender) -> None:
        await send.json(completion("a|b\n-|-\n1|2\n"))

    running.plain.behave = table
    answer = await told(running.http, asked(pages=0, table_format="html"))
    assert answer["pages"][0]["markdown"] == "[tbl-0.html](tbl-0.html)\n"
    assert answer["pages"][0]["tables"][0]["format"] == "html"


async def test_the_tables_of_a_long_page_are_taken_out_beside_the_event_loop(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set()
    lift = page_tables.lift_tables

    def noted(*args: Any) -> Any:
        threads.add(threading.current_thread())
        return lift(*args)

    monkeypatch.setattr("gateway.wire.mistral.page_result.lift_tables", noted)
    reader = Reader(["<table><tr><td>a</td></tr></table>" + "b" * 10_000])
    reader.go_on.set()
    running.plain.behave = reader
    (page,) = (await told(running.http, asked(pages=[0], table_format="markdown")))["pages"]
    assert page["tables"][0]["content"] == "| a |\n| --- |"
    assert threading.main_thread() not in threads


async def test_a_route_without_a_prompt_gets_the_default_routes(running: Running) -> None:
    await told(running.http, asked(model="glm-ocr:key-value"))
    assert prompts_of(running.deep) == ["Text Recognition:"] * 2


@pytest.mark.parametrize(
    ("guess", "route", "reason"),
    [
        (LayoutGuess("table", 0.9), "table", "image"),
        (LayoutGuess("key-value", 0.9), "text", "default"),
        (LayoutGuess("table", 0.1), "text", "default"),
        (None, "text", "default"),
    ],
)
async def test_else_each_page_is_sorted_by_its_image_to_routes_with_a_prompt(
    running: Running, monkeypatch: pytest.MonkeyPatch, guess: LayoutGuess | None, route: str, reason: str
) -> None:
    async def guessed(*_: Any, **__: Any) -> LayoutGuess | None:
        return guess

    assert running.gateway._documents
    monkeypatch.setattr(running.gateway._documents._vision, "guess", guessed)
    answer = await told(running.http, asked(pages=0))
    page = answer["pages"][0]["ocr"]
    assert (page["route"], page["reason"]) == (route, reason)
    engine = running.deep if route == "table" else running.plain
    assert prompts_of(engine) == ["Table Recognition:" if route == "table" else "Text Recognition:"]
    assert await running.metric("ocr_gateway_sort_decisions_total", route=route, reason=reason) == 1


async def test_a_route_that_goes_while_a_document_is_read_costs_the_pages_that_wait(tmp_path: Path) -> None:
    reader = Reader()
    async with fleet(1, settings_of(documents={"concurrency": 1})) as gateway:
        gateway.engines[0].behave = reader
        reading = asyncio.create_task(told(gateway.http, asked(model="glm-ocr:table")))
        await until(lambda: reader.now)
        config = gateway.gateway.state.fleet.config
        await gateway.gateway.reload(config.model_copy(update={"routes": {"text": config.routes["text"]}}))
        reader.go_on.set()
        answer = await reading
        assert answer["pages"][0]["markdown"] == "hello world"
        assert answer["pages"][1]["error"]["code"] == "unknown_route"


async def test_pages_wait_for_memory_that_others_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_pages, "_LOOK_S", 0)
    async with fleet(1, settings_of(limits={"inflight_bytes": 1_000_000})) as gateway:
        state = gateway.gateway.state
        held = state.memory.claim("another")
        held.add(490_000)
        looks = 0
        original = read_pages._sent_bytes

        def big(page: Any) -> int:
            nonlocal looks
            looks += 1
            if looks == 5:
                held.close()
            return original(page) + 400_000

        monkeypatch.setattr(read_pages, "_sent_bytes", big)
        assert (await told(gateway.http, asked(pages=0)))["pages"][0]["markdown"] == "hello world"
        assert looks >= 5
        assert nothing_left(gateway.gateway)


async def test_a_page_for_which_there_is_no_memory_in_time_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_pages, "_ROOM_S", 0)
    monkeypatch.setattr(read_pages, "_sent_bytes", lambda _: 10**9)
    async with fleet(1, settings_of(limits={"inflight_bytes": 1_000_000})) as gateway:
        assert (await refused(gateway.http, asked(), 503))["code"] == "memory_full"


async def test_a_document_has_its_time() -> None:
    async with fleet(1, settings_of(documents={"total_s": 1.5, "concurrency": 1})) as gateway:

        async def once(engine: FakeEngine, request: dict[str, Any], send: _Sender) -> None:
            await (answer if len(engine.bodies) == 1 else hang)(engine, request, send)

        gateway.engines[0].behave = once
        pages = (await told(gateway.http, asked(pdf.document(["x"] * 4))))["pages"]
        assert pages[0]["markdown"] == "hello world"
        assert {page["error"]["code"] for page in pages[1:]} == {"document_timeout"}
        await until(lambda: gateway.engines[0].aborted == 1)
        assert nothing_left(gateway.gateway)


async def test_so_many_pages_are_in_flight_and_one_more_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[int] = []

    class Noted(endpoint.OpenDocument):
        async def page(self, index: int) -> Any:
            page = await super().page(index)
            rendered.append(index)
            return page

    monkeypatch.setattr(endpoint, "OpenDocument", Noted)
    async with fleet(1, settings_of(documents={"concurrency": 3})) as gateway:
        reader = gateway.engines[0].behave = Reader()
        reading = asyncio.create_task(told(gateway.http, asked(pdf.document(["x"] * 12))))
        await until(lambda: reader.now == 3 and len(rendered) == 4)
        await gateway.http.get("/health")
        assert rendered == [0, 1, 2, 3]
        reader.go_on.set()
        assert len((await reading)["pages"]) == 12
        assert reader.most == 3


async def test_an_annotation_is_one_more_request_with_the_first_pages(running: Running) -> None:
    body = asked(PAGES, document_annotation_format=SCHEMA, document_annotation_prompt="the bill")
    answer = await told(running.http, body)
    assert answer["document_annotation"] == "hello world"
    assert len(running.plain.bodies) == 4
    (request,) = running.deep.requests
    assert request["response_format"] == SCHEMA
    kinds = [part["type"] for part in request["messages"][0]["content"]]
    assert kinds == ["image_url"] * 2 + ["text"]  # of the three that a request may have one is broken
    assert prompts_of(running.deep) == ["the bill"]
    assert running.deep.headers[0]["x-request-id"].endswith("-annotation")
    assert await running.metric("ocr_gateway_requests_total", route="key-value", code="200") == 1
    assert nothing_left(running.gateway)


async def test_an_annotation_that_fails_costs_no_page(running: Running) -> None:
    async def refuse(engine: FakeEngine, request: dict[str, Any], send: _Sender) -> None:
        await send.json({"error": {"message": "bad schema", "type": "x", "code": 400}}, 400)

    running.deep.behave = refuse
    answer = await told(running.http, asked(document_annotation_format=SCHEMA))
    assert [page["markdown"] for page in answer["pages"]] == ["hello world"] * 2
    assert answer["document_annotation"] is None
    assert answer["document_annotation_error"]["message"] == "bad schema"
    assert prompts_of(running.deep) == ["Fill in the JSON schema from the document."]


async def test_without_a_key_value_route_an_annotation_is_sorted_as_any() -> None:
    async with fleet(1, settings_of()) as gateway:
        answer = await told(gateway.http, asked(pages=0, document_annotation_format=SCHEMA))
        assert answer["document_annotation"] == "hello world"


async def test_an_image_that_hides_another_is_read_by_its_first(running: Running) -> None:
    animated = encoded(
        picture("x", (64, 64)), "GIF", "P", save_all=True, append_images=[picture("y", (64, 64))]
    )
    body = {"model": "glm-ocr", "document": {"image_url": data_url(animated, "image/gif")}}
    assert len((await told(running.http, body))["pages"]) == 1
