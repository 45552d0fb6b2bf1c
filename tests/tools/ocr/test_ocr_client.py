from __future__ import annotations

import contextlib
import json
import ssl
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from gateway.errors import ConfigError
from gateway.tools.ocr.ocr_client import ATTEMPTS, AllFailed, DocumentFailed, DocumentUpload, OcrClient
from tests.hosts import certified, hosted
from tests.support import served
from tests.tools.ocr import stub as stubs
from tests.tools.ocr.stub import Reply, Stub, document, fail, refuse, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from gateway.tools.ocr.document_result import DocumentResult


class Sleep:
    """Notes how long it was to last, and does not."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
async def stub() -> AsyncIterator[Stub]:
    async with serving() as running:
        yield running


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return document(tmp_path, "a.pdf", "pages=2")


async def read(
    stub: Stub,
    path: Path,
    request: DocumentUpload | None = None,
    *,
    key: str = "",
    sleep: Sleep | None = None,
) -> tuple[DocumentResult, list[tuple[int, int]]]:
    """The answer, and how many pages were expected and there whenever something came."""
    told: list[tuple[int, int]] = []
    wanted = request or DocumentUpload()
    async with OcrClient(stub.url, key, wanted, Random(1), sleep or Sleep()) as client:
        answer = await client.read(path, lambda answer: told.append((answer.expected, len(answer.pages))))
    return answer, told


async def test_a_document_is_sent_and_its_pages_come_one_by_one(stub: Stub, path: Path) -> None:
    answer, told = await read(stub, path)
    assert [page["index"] for page in answer.as_json()["pages"]] == [0, 1]
    assert answer.rest["usage_info"]["pages_processed"] == 2
    assert told == sorted(told)
    (asked,) = stub.asked
    assert asked["file"] == b"%PDF-1.7 pages=2"
    assert (asked["model"], asked["stream"], asked["name"]) == ("glm-ocr", "true", "document")
    assert "pages" not in asked
    assert "x-ocr-route" not in asked["headers"]


async def test_what_is_wished_is_asked(path: Path) -> None:
    schema = {"type": "object", "properties": {"total": {"type": "number"}}}
    async with serving("secret") as stub:
        answer, _ = await read(stub, path, DocumentUpload("table", (1,), schema), key="secret")
    (asked,) = stub.asked
    assert json.loads(asked["pages"]) == [1]
    assert asked["headers"]["x-ocr-route"] == "table"
    wanted = json.loads(asked["document_annotation_format"])
    assert wanted == {"type": "json_schema", "json_schema": {"name": "document", "schema": schema}}
    assert list(answer.pages) == [1]
    assert answer.rest["document_annotation"] == '{"total": 3}'


def test_a_format_that_is_whole_is_asked_as_it_is() -> None:
    whole = {"type": "json_schema", "json_schema": {"name": "bill", "schema": {}, "strict": True}}
    assert json.loads(DocumentUpload(schema=whole).fields()["document_annotation_format"]) == whole


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_what_may_help_is_tried_again_when_the_server_says(stub: Stub, path: Path, status: int) -> None:
    stub.script += [
        refuse(status, **{"Retry-After": "7"}),
        refuse(status),
        stubs.break_off,
        fail("engine_error"),
    ]
    sleep = Sleep()
    answer, told = await read(stub, path, sleep=sleep)
    assert len(answer.pages) == 2
    assert len(stub.asked) == 5
    assert 7.0 <= sleep.slept[0] <= 8.0
    for attempt, seconds in enumerate(sleep.slept[1:], start=1):
        assert 0.25 * 2**attempt <= seconds <= 0.75 * 2**attempt
    assert (0, 0) in told  # what had come counts no more


async def test_attempts_are_bounded(stub: Stub, path: Path) -> None:
    stub.script += [refuse(503, "no engine is up", "no_engine")] * ATTEMPTS
    with pytest.raises(
        DocumentFailed, match=rf"HTTP 503: no engine is up \(no_engine\); given up after attempt {ATTEMPTS}"
    ):
        await read(stub, path)
    assert len(stub.asked) == ATTEMPTS
    stub.script += [refuse(429, "rate limit", **{"Retry-After": "3600"})]
    with pytest.raises(DocumentFailed, match="rate limit; given up after attempt 1"):
        await read(stub, path)


@pytest.mark.parametrize(
    ("behave", "words"),
    [
        (
            refuse(400, "the document is encrypted", "encrypted"),
            r"HTTP 400: the document is encrypted \(encrypted\)",
        ),
        (refuse(413, "the body is too large"), "HTTP 413: the body is too large"),
        (fail("invalid_request_error", "no page could be read"), "no page could be read"),
    ],
)
async def test_what_would_not_help_is_not(
    stub: Stub, path: Path, behave: stubs.Behaviour, words: str
) -> None:
    stub.script.append(behave)
    with pytest.raises(DocumentFailed, match=words):
        await read(stub, path)
    assert len(stub.asked) == 1


async def garbled(stub: Stub, reply: Reply, data: bytes) -> None:
    await reply.begin([0])
    await reply.write(b"event: ocr.page\ndata: {\n\n")


async def shapeless(stub: Stub, reply: Reply, data: bytes) -> None:
    await reply.begin([0])
    await reply.event("ocr.page", ["no", "page"])


async def of_another_kind(stub: Stub, reply: Reply, data: bytes) -> None:
    await reply.json({"pages": []})


@pytest.mark.parametrize("behave", [garbled, shapeless, of_another_kind])
async def test_what_is_no_gateways_answer_is_told(stub: Stub, path: Path, behave: stubs.Behaviour) -> None:
    stub.script.append(behave)
    with pytest.raises(DocumentFailed, match=r"cannot be understood|not with events"):
        await read(stub, path)


@pytest.mark.parametrize(
    ("behave", "words"),
    [
        (refuse(401, "the API key is wrong"), "HTTP 401: the API key is wrong.*--key"),
        (refuse(403, "not for you"), "HTTP 403.*--key"),
        (refuse(404, "no such endpoint or method", "unknown_endpoint"), "has no POST /v1/ocr"),
    ],
)
async def test_what_no_document_would_get_past_stops_all(
    stub: Stub, path: Path, behave: stubs.Behaviour, words: str
) -> None:
    stub.script.append(behave)
    with pytest.raises(AllFailed, match=words):
        await read(stub, path)


async def test_a_document_that_has_gone_fails_alone(stub: Stub, path: Path) -> None:
    with pytest.raises(DocumentFailed, match="cannot be read: No such file"):
        await read(stub, path.with_name("none.pdf"))


async def test_nobody_there_is_told_with_what_to_start(path: Path) -> None:
    with pytest.raises(AllFailed, match=r"nobody answers at http://127\.0\.0\.1:9 .*ocr-gateway serve"):
        await read(Stub(url="http://127.0.0.1:9"), path)


async def test_what_is_wrong_with_tls_is_told_in_words(path: Path, tmp_path: Path) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certified(tmp_path, "localhost", "DNS:localhost"))
    async with hosted(tls) as behind_tls, serving() as plain:
        for url, words in (
            (f"https://localhost:{behind_tls.port}", r"no certificate that is trusted here \(self-signed"),
            (plain.url.replace("http", "https"), "does not speak TLS as expected.*begin with http://"),
            (f"http://localhost:{behind_tls.port}", "Server disconnected.*begin with https://"),
        ):
            with pytest.raises(AllFailed, match=words) as told:
                await read(Stub(url=url), path)
            assert "not permitted" not in str(told.value)


async def test_a_key_that_is_missing_is_told(path: Path) -> None:
    async with serving("secret") as stub:
        with pytest.raises(AllFailed, match=r"HTTP 401: there is no API key.*--key"):
            await read(stub, path)


async def test_a_server_that_goes_stops_all(path: Path) -> None:
    sleep = Sleep()
    async with contextlib.AsyncExitStack() as stack:
        stub = await stack.enter_async_context(serving())
        async with OcrClient(stub.url, "", DocumentUpload(), Random(1), sleep) as client:
            await stack.aclose()
            with pytest.raises(AllFailed, match="does not answer any more: Connection refused"):
                await client.read(path, lambda _: None)
    assert len(sleep.slept) == ATTEMPTS - 1


@pytest.mark.parametrize("body", [b"{}", b"<html>", b'{"data": []}', b"[]"])
async def test_a_server_that_is_no_gateway_is_told(path: Path, body: bytes) -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": body})

    async with served(answer) as url:
        with pytest.raises(AllFailed, match="lists no model"):
            await read(Stub(url=url), path)


async def test_a_page_that_is_not_found_is_told(path: Path) -> None:
    async with serving() as stub:
        with pytest.raises(AllFailed, match="GET /v1/models with HTTP 404"):
            await read(Stub(url=f"{stub.url}/elsewhere"), path)


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_a_base_url_may_end_as_openai_clients_have_it(end: str) -> None:
    assert OcrClient(f"https://gateway.example:8443/ocr{end}", "", DocumentUpload(), Random()).url == (
        "https://gateway.example:8443/ocr"
    )


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8000",
        "ftp://x",
        "http://",
        "http://x:99999",
        "http://x?y",
        "http://u:p@x",
        "http://[::1",
    ],
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--url") as told:
        OcrClient(url, "", DocumentUpload(), Random())
    assert "u:p" not in str(told.value)
