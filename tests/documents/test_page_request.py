"""A page's request is sent again where nobody could take it, as long as the document has time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from gateway.documents import page_request
from gateway.errors import RateLimited
from gateway.state.quotas import QuotaUse
from tests import pdf
from tests.api.test_auth import guarded
from tests.conftest import fleet
from tests.documents.asking import (
    OCR,
    Reader,
    asked,
    refused,
    settings_of,
    told,
)
from tests.support import FakeEngine, _Sender, answer, completion, until

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.conftest import Running


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
        monkeypatch.setattr(page_request, "_sleep", at_once)
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
        monkeypatch.setattr(page_request, "_sleep", at_once)
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
