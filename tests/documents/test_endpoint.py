"""Documents, seen from the client's and the engine's side."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from PIL import Image

from gateway.documents import endpoint
from gateway.errors import RateLimited
from gateway.model import LayoutGuess
from gateway.state.quotas import QuotaUse
from gateway.wire.mistral import page_tables
from tests import pdf
from tests.api.test_auth import OTHER, guarded
from tests.conftest import fleet
from tests.hosts import answer_of, hosted
from tests.support import FakeEngine, _Sender, answer, completion, data_url, encoded, hang, picture, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import httpx

    from gateway.images.fair_limiter import FairLimiter
    from tests.conftest import Running

OCR = "/v1/ocr"
PAGES = pdf.document([f"page {number}" for number in range(5)], broken={2})
TWO = pdf.document(["one", "two"])
SCHEMA = {"type": "json_schema", "json_schema": {"name": "bill", "schema": {"type": "object"}}}


@pytest.fixture(autouse=True)
def unsorted(monkeypatch: pytest.MonkeyPatch) -> None:
    """No page looks like anything, so that each goes to the default route."""

    async def guess(*_: Any, **__: Any) -> None:
        return None

    monkeypatch.setattr("gateway.images.inspector.ImageInspector.guess", guess)


def asked(data: bytes = TWO, **members: Any) -> dict[str, Any]:
    url = data_url(data, "application/pdf")
    return {"model": "glm-ocr", "document": {"type": "document_url", "document_url": url}, **members}


def settings_of(**sections: Any) -> str:
    documents = {"dpi": 36, **sections.pop("documents", {})}
    return yaml.safe_dump({"documents": documents, **sections})


async def told(
    http: httpx.AsyncClient, body: dict[str, Any], status: int = 200, **headers: str
) -> dict[str, Any]:
    reply = await http.post(
        OCR, json=body, headers={name.replace("_", "-"): v for name, v in headers.items()}
    )
    assert reply.status_code == status, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


async def refused(http: httpx.AsyncClient, body: dict[str, Any], status: int = 400) -> dict[str, Any]:
    error: dict[str, Any] = (await told(http, body, status))["error"]
    return error


@dataclass
class Reader:
    """An engine's behaviour: reads each page by its image's number among those that came, in any order."""

    texts: list[str] = field(default_factory=list)
    most: int = 0
    now: int = 0
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, engine: FakeEngine, request: dict[str, Any], send: _Sender) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await self.go_on.wait()
        self.now -= 1
        await send.json(completion(self.texts.pop(0) if self.texts else "hello world"))


def images_of(engine: FakeEngine) -> list[Image.Image]:
    """The images that an engine got."""
    urls = [
        part["image_url"]["url"]
        for request in engine.requests
        for part in request["messages"][0]["content"]
        if part["type"] == "image_url"
    ]
    import base64

    return [Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) for url in urls]


def prompts_of(engine: FakeEngine) -> list[str]:
    return [request["messages"][0]["content"][-1]["text"] for request in engine.requests]


def nothing_left(gateway: Any) -> bool:
    state = gateway.state
    held = state.memory.total or state.requests.open
    return not held and not any(route.in_flight for route in state.snapshot().routes.values())


# --- whole answers


async def test_a_document_is_read_page_by_page_and_a_broken_page_told_in_its_place(running: Running) -> None:
    reply = await running.http.post(OCR, json=asked(PAGES), headers={"x-request-id": "doc-1"})
    assert reply.status_code == 200, reply.text
    assert reply.headers["x-request-id"] == "doc-1"
    assert "x-ocr-route" not in reply.headers
    answer = reply.json()
    assert [page["index"] for page in answer["pages"]] == [0, 1, 2, 3, 4]
    assert [page["markdown"] for page in answer["pages"]] == ["hello world"] * 2 + [""] + ["hello world"] * 2
    assert answer["pages"][2]["error"]["code"] == "invalid_page"
    assert "error" not in answer["pages"][0]
    assert answer["pages"][0]["dimensions"] == {"width": 1700, "height": 2200, "dpi": 200}
    first = answer["pages"][0]["ocr"]
    assert {name: first[name] for name in ("route", "pool", "depth", "finish_reason")} == {
        "route": "text",
        "pool": "plain",
        "depth": 0,
        "finish_reason": "stop",
    }
    assert (answer["model"], answer["document_annotation"]) == ("glm-ocr", None)
    assert answer["usage_info"] == {"pages_processed": 4, "doc_size_bytes": len(PAGES)}
    ids = sorted(headers["x-request-id"] for headers in running.plain.headers)
    assert ids == ["doc-1-p0", "doc-1-p1", "doc-1-p3", "doc-1-p4"]
    assert prompts_of(running.plain) == ["Text Recognition:"] * 4
    assert all(image.format == "JPEG" and image.size == (1700, 2200) for image in images_of(running.plain))
    assert await running.metric("ocr_gateway_requests_total", route="text", code="200") == 4
    assert nothing_left(running.gateway)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
async def test_images_are_documents_too(running: Running, kind: str) -> None:
    out = io.BytesIO()
    frames = [picture("one"), picture("two")]
    frames[0].save(out, kind, **({"save_all": True, "append_images": frames[1:]} if kind == "TIFF" else {}))
    body = {"model": "glm-ocr", "document": {"type": "image_url", "image_url": data_url(out.getvalue())}}
    answer = await told(running.http, body)
    assert len(answer["pages"]) == (2 if kind == "TIFF" else 1)
    assert answer["pages"][0]["dimensions"] == {"width": 200, "height": 100, "dpi": 200}


async def test_pages_may_be_chosen(running: Running) -> None:
    answer = await told(running.http, asked(PAGES, pages="3-4,0"))
    assert [page["index"] for page in answer["pages"]] == [0, 3, 4]
    error = await refused(running.http, asked(PAGES, pages=[0, 5]))
    assert (error["param"], error["code"]) == ("pages", "page_out_of_range")
    assert "has 5, numbered from 0 to 4" in error["message"]


async def test_a_form_brings_a_file(running: Running) -> None:
    files = {"file": ("a.pdf", TWO, "application/pdf")}
    reply = await running.http.post(
        OCR, files=files, data={"model": "glm-ocr", "pages": "1", "stream": "false"}
    )
    assert reply.status_code == 200, reply.text
    assert [page["index"] for page in reply.json()["pages"]] == [1]


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

    monkeypatch.setattr("gateway.wire.mistral.ocr.lift_tables", noted)
    reader = Reader(["<table><tr><td>a</td></tr></table>" + "b" * 10_000])
    reader.go_on.set()
    running.plain.behave = reader
    (page,) = (await told(running.http, asked(pages=[0], table_format="markdown")))["pages"]
    assert page["tables"][0]["content"] == "| a |\n| --- |"
    assert threading.main_thread() not in threads


async def test_a_large_body_is_read_beside_the_event_loop(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "_INLINE_BYTES", 10)
    assert len((await told(running.http, asked()))["pages"]) == 2


# --- routes


@pytest.mark.parametrize(
    ("model", "headers", "reason"),
    [("glm-ocr:table", {}, "model"), ("glm-ocr", {"x_ocr_route": "table"}, "header")],
)
async def test_all_pages_take_the_route_that_the_client_chose(
    running: Running, model: str, headers: dict[str, str], reason: str
) -> None:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    reply = await running.http.post(OCR, json=asked(model=model), headers=names)
    assert reply.headers["x-ocr-route"] == "table"
    assert reply.headers["x-ocr-route-reason"] == reason
    assert prompts_of(running.deep) == ["Table Recognition:"] * 2
    assert [request["model"] for request in running.deep.requests] == ["glm-ocr"] * 2
    assert {page["ocr"]["reason"] for page in reply.json()["pages"]} == {reason}


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
    monkeypatch.setattr(running.gateway._documents.vision, "guess", guessed)
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


# --- streams


@dataclass
class Event:
    name: str
    data: dict[str, Any]


async def events(http: httpx.AsyncClient, body: dict[str, Any]) -> AsyncIterator[Event]:
    async with http.stream("POST", OCR, json={**body, "stream": True}) as reply:
        assert reply.status_code == 200, await reply.aread()
        assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
        name = ""
        async for line in reply.aiter_lines():
            kind, _, rest = line.partition(": ")
            if kind == "event":
                name = rest
            elif kind == "data":
                yield Event(name, json.loads(rest))
            elif kind == "":
                yield Event(line.strip(": "), {})


async def test_a_stream_tells_of_each_page_as_it_is_done(running: Running) -> None:
    seen = [event async for event in events(running.http, asked(PAGES)) if event.name]
    assert seen[0] == Event("ocr.document", {"model": "glm-ocr", "pages": [0, 1, 2, 3, 4]})
    assert {event.name for event in seen[1:-1]} == {"ocr.page"}
    assert sorted(event.data["index"] for event in seen[1:-1]) == [0, 1, 2, 3, 4]
    assert [event.data["index"] for event in seen[1:-1] if "error" in event.data] == [2]
    assert seen[-1] == Event(
        "ocr.done",
        {
            "model": "glm-ocr",
            "document_annotation": None,
            "usage_info": {"pages_processed": 4, "doc_size_bytes": len(PAGES)},
        },
    )
    await until(lambda: nothing_left(running.gateway))


async def test_a_page_is_told_while_others_are_read(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "_SILENT_S", 0.01)
    go_on = asyncio.Event()

    async def slowly(engine: FakeEngine, request: dict[str, Any], send: _Sender) -> None:
        if len(engine.bodies) > 1:
            await go_on.wait()
        await send.json(completion("hello"))

    running.plain.behave = slowly
    names = []
    async for event in events(running.http, asked()):
        names.append(event.name)
        if event.name == "ocr.page":
            await until(lambda: len(running.plain.bodies) == 2)
        if event.name == "wait" and "ocr.page" in names:
            go_on.set()
    kept = [name for name in names if name not in ("", "wait")]
    assert kept == ["ocr.document", "ocr.page", "ocr.page", "ocr.done"]
    assert "wait" in names


async def test_a_client_that_reads_no_pages_has_no_more_of_them_read(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []

    class Full(endpoint._Feed):
        async def put(self, event: bytes | None) -> None:
            told.append(event)
            if len(told) > 1:
                await asyncio.Event().wait()
            await super().put(event)

    monkeypatch.setattr(endpoint, "_Feed", Full)
    body = asked(pdf.document(["x"] * 12), stream=True)
    async with running.http.stream("POST", OCR, json=body):
        at_once = running.gateway.state.fleet.config.documents.concurrency
        await until(lambda: len(told) == 1 + at_once)
        for _ in range(100):
            await asyncio.sleep(0.001)
        assert running.plain.running == 0
        assert len(running.plain.requests) == at_once


async def test_a_stream_whose_pages_all_fail_ends_with_the_error_and_counts_as_failed(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway.access")
    seen = [
        event async for event in events(running.http, asked(pdf.document(["x"], broken={0}))) if event.name
    ]
    assert [event.name for event in seen] == ["ocr.document", "ocr.page", "error"]
    assert seen[-1].data["error"]["code"] == "invalid_page"
    await until(lambda: nothing_left(running.gateway))
    (line,) = [record.fields for record in caplog.records if record.name == "gateway.access"]  # type: ignore[attr-defined]
    assert (line["code"], line["error"]) == (400, "invalid_page")
    page, _ = await running.gateway._metrics.page("")
    assert b'ocr_gateway_requests_total{code="400",pool="",route=""} 1.0' in page


async def test_what_cannot_be_opened_is_refused_before_a_stream_begins(running: Running) -> None:
    assert (await refused(running.http, asked(b"%PDF-", stream=True)))["code"] == "invalid_document"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_fault_of_the_gateways_own_is_told_as_one(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    monkeypatch.setattr(endpoint.ocr, "page_object", lambda *_: 1 / 0)
    if stream:
        last = [event async for event in events(running.http, asked()) if event.name][-1]
        error = last.data["error"]
    else:
        error = await refused(running.http, asked(), 500)
    assert error["code"] == "internal_error"
    assert "ZeroDivisionError" not in error["message"]
    assert any(record.exc_info for record in caplog.records)
    await until(lambda: nothing_left(running.gateway))


# --- refusals


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (asked(model="other"), 404, "model_not_found"),
        (asked(model="glm-ocr:nowhere"), 400, "unknown_route"),
        (asked(b"PK\x03\x04"), 400, "invalid_document"),
        (asked(b"%PDF-1.4 cut"), 400, "invalid_document"),
        (asked(pdf.document([])), 400, "invalid_document"),
        (asked(pdf.document(["x"] * 3, broken={0, 1, 2})), 400, "invalid_page"),
        (asked(extract_header=True), 400, "unsupported_parameter"),
        ({}, 400, None),
    ],
)
async def test_what_cannot_be_read_is_refused_and_counted_once(
    running: Running, caplog: pytest.LogCaptureFixture, body: dict[str, Any], status: int, code: str | None
) -> None:
    caplog.set_level(logging.INFO, "gateway.access")
    assert (await refused(running.http, body, status))["code"] == code
    assert running.plain.bodies == []
    assert await running.metric("ocr_gateway_requests_total", route="", code=str(status)) == 1
    lines = [record.fields for record in caplog.records if record.getMessage() == "request"]  # type: ignore[attr-defined]
    assert [(line["path"], line["code"]) for line in lines] == [(OCR, status)]
    assert nothing_left(running.gateway)


async def test_only_json_and_forms_are_read(running: Running) -> None:
    reply = await running.http.post(OCR, content=TWO, headers={"content-type": "application/pdf"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "bad_content_type")
    assert (await running.http.get(OCR)).status_code == 405


async def test_too_many_pages_are_refused_unless_chosen_from(running: Running) -> None:
    async with fleet(1, settings_of(documents={"max_pages": 2})) as gateway:
        assert (await refused(gateway.http, asked(PAGES)))["code"] == "too_many_pages"
        assert len((await told(gateway.http, asked(PAGES, pages="0-1")))["pages"]) == 2


async def test_a_body_over_the_limit_is_refused(running: Running) -> None:
    assert (await refused(running.http, asked(TWO + bytes(10**6)), 413))["code"] == "body_too_large"


async def test_memory_that_is_full_refuses_a_document_and_comes_back() -> None:
    async with fleet(1, settings_of(limits={"inflight_bytes": 200_000})) as gateway:
        assert (await refused(gateway.http, asked(TWO + bytes(150_000)), 503))["code"] == "memory_full"
        assert len((await told(gateway.http, asked()))["pages"]) == 2
        assert nothing_left(gateway.gateway)


async def test_pages_wait_for_memory_that_others_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_LOOK_S", 0)
    async with fleet(1, settings_of(limits={"inflight_bytes": 1_000_000})) as gateway:
        state = gateway.gateway.state
        held = state.memory.claim("another")
        held.add(490_000)
        looks = 0
        original = endpoint._as_text

        def big(page: Any) -> int:
            nonlocal looks
            looks += 1
            if looks == 5:
                held.close()
            return original(page) + 400_000

        monkeypatch.setattr(endpoint, "_as_text", big)
        assert (await told(gateway.http, asked(pages=0)))["pages"][0]["markdown"] == "hello world"
        assert looks >= 5
        assert nothing_left(gateway.gateway)


async def test_a_page_for_which_there_is_no_memory_in_time_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_ROOM_S", 0)
    monkeypatch.setattr(endpoint, "_as_text", lambda _: 10**9)
    async with fleet(1, settings_of(limits={"inflight_bytes": 1_000_000})) as gateway:
        assert (await refused(gateway.http, asked(), 503))["code"] == "memory_full"


async def test_of_more_documents_than_may_be_open_the_others_wait_and_are_refused_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with fleet(1, settings_of(documents={"at_once": 1})) as gateway:
        reader = gateway.engines[0].behave = Reader()
        first = asyncio.create_task(told(gateway.http, asked()))
        await until(lambda: reader.now)
        second = asyncio.create_task(told(gateway.http, asked()))
        await until(lambda: gateway.gateway._documents and gateway.gateway._documents._turns.waiting)
        monkeypatch.setattr(endpoint, "_PATIENCE_S", 0)
        reply = await gateway.http.post(OCR, json=asked())
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "documents_busy")
        assert reply.headers["retry-after"] == "5"
        reader.go_on.set()
        assert len((await first)["pages"]) == len((await second)["pages"]) == 2


async def test_one_clients_documents_leave_a_turn_to_others(tmp_path: Path) -> None:
    async with guarded(tmp_path, documents={"dpi": 36, "at_once": 2}) as gateway:
        reader = gateway.engine.behave = Reader()

        def turns() -> FairLimiter:
            assert gateway.gateway._documents
            return gateway.gateway._documents._turns

        hogs = [asyncio.create_task(gateway.http.post(OCR, json=asked(pages=0))) for _ in range(3)]
        await until(lambda: reader.now == 1 and turns().waiting == 2)
        other = {"authorization": f"Bearer {OTHER}"}
        late = asyncio.create_task(gateway.http.post(OCR, json=asked(pages=0), headers=other))
        await until(lambda: reader.now == 2)
        assert turns().waiting == 2
        reader.go_on.set()
        assert {reply.status_code for reply in await asyncio.gather(*hogs, late)} == {200}


# --- engines that fail


async def test_a_page_that_nobody_could_take_is_tried_again() -> None:
    async def busy_once(engine: FakeEngine, request: dict[str, Any], send: _Sender) -> None:
        if len(engine.bodies) == 1:
            await send.json({"error": {"message": "engine overloaded", "type": "x", "code": 429}}, 429)
        else:
            await answer(engine, request, send)

    async with fleet(1, settings_of()) as gateway:
        gateway.engines[0].behave = busy_once
        page = (await told(gateway.http, asked(pages=0)))["pages"][0]
        assert page["markdown"] == "hello world"
        assert gateway.took() == [2]


async def test_it_is_given_up_after_three(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(engine: FakeEngine, request: dict[str, Any], send: _Sender) -> None:
        await send.json({"detail": "no"}, 502)

    waits: list[float] = []
    sleep = asyncio.sleep

    async def at_once(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    settings = settings_of(retry={"per_request": 0}, breaker={"failures": 1000})
    async with fleet(1, settings) as gateway:
        gateway.engines[0].behave = broken
        monkeypatch.setattr(endpoint, "_pause", at_once)
        assert (await refused(gateway.http, asked(pages=0), 502))["code"] == "engine_error"
        assert gateway.took() == [3]
        assert waits == [1, 2]


async def test_an_engines_own_refusal_is_the_pages_and_not_tried_again(running: Running) -> None:
    async def picky(engine: FakeEngine, request: dict[str, Any], send: _Sender) -> None:
        error = {"message": "encoder cache", "type": "BadRequestError", "param": None, "code": 400}
        await send.json(
            {"error": error} if len(engine.bodies) == 1 else completion("hello"),
            400 if len(engine.bodies) == 1 else 200,
        )

    running.plain.behave = picky
    pages = (await told(running.http, asked()))["pages"]
    (failed,) = [page for page in pages if "error" in page]
    assert failed["error"] == {
        "message": "encoder cache",
        "type": "invalid_request_error",
        "param": None,
        "code": "engine_refused",
    }
    assert failed["ocr"]["pool"] == "plain"
    assert len(running.plain.bodies) == 2


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


# --- bounds, keys, leaving, stopping


async def test_so_many_pages_are_in_flight_and_one_more_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[int] = []

    class Renderer(endpoint.Renderer):
        async def page(self, index: int) -> Any:
            page = await super().page(index)
            rendered.append(index)
            return page

    monkeypatch.setattr(endpoint, "Renderer", Renderer)
    async with fleet(1, settings_of(documents={"concurrency": 3})) as gateway:
        reader = gateway.engines[0].behave = Reader()
        reading = asyncio.create_task(told(gateway.http, asked(pdf.document(["x"] * 12))))
        await until(lambda: reader.now == 3 and len(rendered) == 4)
        await gateway.http.get("/health")
        assert rendered == [0, 1, 2, 3]
        reader.go_on.set()
        assert len((await reading)["pages"]) == 12
        assert reader.most == 3


async def test_a_keys_own_limit_delays_a_document_and_does_not_fail_it(tmp_path: Path) -> None:
    limits = {"limits": {"team-a": {"concurrent": 2}}}
    async with guarded(tmp_path, auth=limits, documents={"dpi": 36}) as gateway:
        reader = gateway.engine.behave = Reader()
        reading = asyncio.create_task(gateway.http.post(OCR, json=asked(pdf.document(["x"] * 6))))
        await until(lambda: reader.now == 2)
        reader.go_on.set()
        reply = await reading
        assert [page["markdown"] for page in reply.json()["pages"]] == ["hello world"] * 6
        assert reader.most == 2
        quotas = gateway.gateway.state.quotas
        assert quotas.requests["team-a", 200] == 6
        assert quotas.requests["team-a", 429] == 0


async def test_a_page_over_a_keys_rate_waits_as_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    sleep, enter = asyncio.sleep, QuotaUse.admit

    async def at_once(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    def limited(self: QuotaUse) -> None:
        if len(waits) < 5:
            raise RateLimited("too many", code="rate_limit_exceeded", retry_after=7)
        enter(self)

    async with guarded(tmp_path, documents={"dpi": 36}) as gateway:
        monkeypatch.setattr(endpoint, "_pause", at_once)
        monkeypatch.setattr(QuotaUse, "admit", limited)
        reply = await gateway.http.post(OCR, json=asked(pages=0))
        assert reply.json()["pages"][0]["markdown"] == "hello world"
        assert waits == [7] * 5


async def test_a_limit_that_outlasts_the_document_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limited(self: QuotaUse) -> None:
        raise RateLimited("too many", code="rate_limit_exceeded", retry_after=30)

    async with guarded(tmp_path, documents={"dpi": 36, "total_s": 1}) as gateway:
        monkeypatch.setattr(QuotaUse, "admit", limited)
        reply = await gateway.http.post(OCR, json=asked(pages=0))
        assert (reply.status_code, reply.headers["retry-after"]) == (429, "30")


async def test_a_document_needs_a_key_like_anything(tmp_path: Path) -> None:
    async with guarded(tmp_path, key=None) as gateway:
        assert (await gateway.http.post(OCR, json=asked())).status_code == 401


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_takes_everything_along(
    stream: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "gateway.access")
    opened: list[Any] = []

    class Renderer(endpoint.Renderer):
        async def page(self, index: int) -> Any:
            opened.append(self.pid)
            return await super().page(index)

    monkeypatch.setattr(endpoint, "Renderer", Renderer)
    async with fleet(1, settings_of()) as gateway:
        gateway.engines[0].behave = hang
        with contextlib.suppress(asyncio.CancelledError):
            reading = asyncio.create_task(
                gateway.http.post(OCR, json=asked(pdf.document(["x"] * 3), stream=stream))
            )
            await until(lambda: gateway.engines[0].running == 3)
            reading.cancel()
            await reading
        await until(lambda: gateway.engines[0].aborted == 3)
        await until(lambda: nothing_left(gateway.gateway))
        assert not alive(opened[0])
        (line,) = [record.fields for record in caplog.records if record.getMessage() == "document"]  # type: ignore[attr-defined]
        assert line["code"] == 499


def alive(pid: int) -> bool:
    import os

    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_document_begun_before_the_gateway_drains_is_finished(running: Running) -> None:
    reader = running.plain.behave = Reader()
    reading = asyncio.create_task(told(running.http, asked(pdf.document(["x"] * 12, size=(50, 50)))))
    await until(lambda: reader.now == 8)
    running.gateway.state.requests.draining = True
    assert running.gateway.state.requests.open == 9
    assert (await refused(running.http, asked(), 503))["code"] == "shutting_down"
    reader.go_on.set()
    assert [page["markdown"] for page in (await reading)["pages"]] == ["hello world"] * 12
    running.gateway.state.requests.draining = False


async def test_the_log_has_a_line_for_each_page_and_one_for_the_document(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    secret = "Zanzibar"
    await told(running.http, asked(pdf.document([secret, secret], broken={1})), x_request_id="doc")
    lines = [record for record in caplog.records if record.name == "gateway.access"]
    assert [(line.getMessage(), line.fields["request_id"], line.fields["code"]) for line in lines] == [  # type: ignore[attr-defined]
        ("request", "doc-p0", 200),
        ("document", "doc", 200),
    ]
    assert lines[1].fields.items() >= {"pages": 2, "failed": 1}.items()  # type: ignore[attr-defined]
    assert secret not in caplog.text


# --- annotations and remote documents


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


async def test_a_document_may_be_fetched_from_a_listed_host() -> None:
    async with hosted(**{"a.pdf": answer_of(TWO)}) as host:
        listed = {"allow_hosts": [f"localhost:{host.port}"], "allow_networks": ["127.0.0.0/8", "::1/128"]}
        async with fleet(1, settings_of(remote_images=listed)) as gateway:
            here = f"http://localhost:{host.port}/a.pdf"
            body = {"model": "glm-ocr", "document": {"type": "document_url", "document_url": here}}
            assert len((await told(gateway.http, body))["pages"]) == 2
            for url in ("http://elsewhere.example/a.pdf", "http://user@localhost/a.pdf"):
                body["document"]["document_url"] = url  # type: ignore[index]
                error = await refused(gateway.http, body)
                assert (error["param"], error["code"]) == ("document.document_url", "remote_image_refused")


async def test_an_image_that_hides_another_is_read_by_its_first(running: Running) -> None:
    animated = encoded(
        picture("x", (64, 64)), "GIF", "P", save_all=True, append_images=[picture("y", (64, 64))]
    )
    body = {"model": "glm-ocr", "document": {"image_url": data_url(animated, "image/gif")}}
    assert len((await told(running.http, body))["pages"]) == 1
