"""How a document comes: as JSON or a form, in it or by URL, and with which route."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.documents import receive_document
from tests.conftest import fleet
from tests.documents.asking import (
    OCR,
    TWO,
    asked,
    nothing_left,
    prompts_of,
    refused,
    settings_of,
    told,
)
from tests.hosts import answer_of, hosted

if TYPE_CHECKING:
    from tests.conftest import Running


async def test_a_form_brings_a_file(running: Running) -> None:
    files = {"file": ("a.pdf", TWO, "application/pdf")}
    reply = await running.http.post(
        OCR, files=files, data={"model": "glm-ocr", "pages": "1", "stream": "false"}
    )
    assert reply.status_code == 200, reply.text
    assert [page["index"] for page in reply.json()["pages"]] == [1]


async def test_a_large_body_is_read_beside_the_event_loop(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receive_document, "_INLINE_BYTES", 10)
    assert len((await told(running.http, asked()))["pages"]) == 2


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


async def test_only_json_and_forms_are_read(running: Running) -> None:
    reply = await running.http.post(OCR, content=TWO, headers={"content-type": "application/pdf"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "bad_content_type")
    assert (await running.http.get(OCR)).status_code == 405


async def test_a_body_over_the_limit_is_refused(running: Running) -> None:
    assert (await refused(running.http, asked(TWO + bytes(10**6)), 413))["code"] == "body_too_large"


async def test_memory_that_is_full_refuses_a_document_and_comes_back() -> None:
    async with fleet(1, settings_of(limits={"inflight_bytes": 200_000})) as gateway:
        assert (await refused(gateway.http, asked(TWO + bytes(150_000)), 503))["code"] == "memory_full"
        assert len((await told(gateway.http, asked()))["pages"]) == 2
        assert nothing_left(gateway.gateway)


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
