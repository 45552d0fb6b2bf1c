"""Documents, seen from the client's and the engine's side."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
from typing import TYPE_CHECKING, Any

import pytest

from gateway.documents import endpoint
from tests import pdf
from tests.api.test_auth import OTHER, guarded
from tests.conftest import fleet
from tests.documents.asking import (
    OCR,
    PAGES,
    Reader,
    asked,
    images_of,
    nothing_left,
    prompts_of,
    refused,
    settings_of,
    told,
)
from tests.support import data_url, hang, picture, until

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.images.fair_limiter import FairLimiter
    from tests.conftest import Running


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


async def test_what_cannot_be_opened_is_refused_before_a_stream_begins(running: Running) -> None:
    assert (await refused(running.http, asked(b"%PDF-", stream=True)))["code"] == "invalid_document"


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


async def test_too_many_pages_are_refused_unless_chosen_from(running: Running) -> None:
    async with fleet(1, settings_of(documents={"max_pages": 2})) as gateway:
        assert (await refused(gateway.http, asked(PAGES)))["code"] == "too_many_pages"
        assert len((await told(gateway.http, asked(PAGES, pages="0-1")))["pages"]) == 2


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


async def test_a_document_needs_a_key_like_anything(tmp_path: Path) -> None:
    async with guarded(tmp_path, key=None) as gateway:
        assert (await gateway.http.post(OCR, json=asked())).status_code == 401


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_takes_everything_along(
    stream: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "gateway.access")
    opened: list[Any] = []

    class Noted(endpoint.OpenDocument):
        async def page(self, index: int) -> Any:
            opened.append(self.pid)
            return await super().page(index)

    monkeypatch.setattr(endpoint, "OpenDocument", Noted)
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
