"""A document's answer as a stream: as pages are done, while nothing is, and at its end."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from gateway.documents import answer_document
from tests import pdf
from tests.documents.asking import (
    OCR,
    PAGES,
    Event,
    asked,
    events,
    nothing_left,
    refused,
)
from tests.support import FakeEngine, _Sender, completion, until

if TYPE_CHECKING:
    from tests.conftest import Running


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
    monkeypatch.setattr(answer_document, "_SILENT_S", 0.01)
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

    class Full(answer_document.EventFeed):
        async def put(self, event: bytes | None) -> None:
            told.append(event)
            if len(told) > 1:
                await asyncio.Event().wait()
            await super().put(event)

    monkeypatch.setattr(answer_document, "EventFeed", Full)
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


@pytest.mark.parametrize("stream", [True, False])
async def test_a_fault_of_the_gateways_own_is_told_as_one(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    monkeypatch.setattr("gateway.wire.mistral.page_object", lambda *_: 1 / 0)
    if stream:
        last = [event async for event in events(running.http, asked()) if event.name][-1]
        error = last.data["error"]
    else:
        error = await refused(running.http, asked(), 500)
    assert error["code"] == "internal_error"
    assert "ZeroDivisionError" not in error["message"]
    assert any(record.exc_info for record in caplog.records)
    await until(lambda: nothing_left(running.gateway))
