from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.routing import Route

import gateway
from gateway import errors
from gateway.api.endpoints import Headers
from tests.support import chat, chunk, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conftest import Running

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}


async def test_alive_ready_and_which_routes(running: Running) -> None:
    assert (await running.http.get("/health")).json() == {"status": "ok"}
    reply = await running.http.get("/ready")
    assert (reply.status_code, reply.json()["routes"]) == (
        200,
        {"text": True, "key-value": True, "table": True},
    )
    running.plain.healthy = False
    await until(lambda: not running.up("plain"))
    reply = await running.http.get("/ready")
    assert (reply.status_code, reply.json()["routes"]["text"]) == (200, False)
    running.deep.healthy = False
    await until(lambda: not running.up("mtp3"))
    reply = await running.http.get("/ready")
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "2")


async def test_exactly_one_model_is_listed(running: Running) -> None:
    models = (await running.http.get("/v1/models")).json()["data"]
    assert [model["id"] for model in models] == ["glm-ocr"]


@pytest.mark.parametrize("given", ["my-id.1", "a" * 128])
async def test_a_sane_request_id_is_kept_and_passed_on(running: Running, given: str) -> None:
    reply = await running.http.post(CHAT, json=chat(), headers={"x-request-id": given})
    assert reply.headers.get_list("x-request-id") == [given]
    assert running.plain.headers[0]["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a" * 129, "two words", "x\u00e9".encode("latin-1"), '"><script>'])
async def test_any_other_is_replaced(running: Running, given: str | bytes) -> None:
    reply = await running.http.get("/health", headers=[("x-request-id", given)])
    assert len(reply.headers["x-request-id"]) == 32


async def test_errors_carry_an_id_and_what_is_known(running: Running) -> None:
    reply = await running.http.post(CHAT, json=chat(model="x"))
    assert reply.headers["x-request-id"]
    assert "x-ocr-route" not in reply.headers


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2", 404),
        ("GET", CHAT, 405),
        ("POST", "/health", 405),
        ("GET", "/v1/models/x/../../etc", 404),
    ],
)
async def test_unknown_endpoints_answer_in_openais_shape(
    running: Running, method: str, path: str, status: int
) -> None:
    reply = await running.http.request(method, path)
    assert reply.status_code == status
    assert reply.json()["error"]["code"] == "unknown_endpoint"


async def test_probes_by_head_and_wrong_methods(running: Running) -> None:
    for path in ("/health", "/ready", "/v1/models"):
        reply = await running.http.head(path)
        assert (reply.status_code, reply.content) == (200, b"")
    reply = await running.http.get(CHAT)
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")


async def test_a_scraper_with_a_broken_accept_header_gets_its_page(running: Running) -> None:
    accept = "application/openmetrics-text; version=abc"
    reply = await running.http.get("/metrics", headers={"accept": accept})
    assert (reply.status_code, "ocr_gateway_in_flight" in reply.text) == (200, True)


async def test_a_body_at_the_limit_is_taken_and_one_byte_more_is_not(running: Running) -> None:
    limit = running.gateway.state.fleet.config.limits.body_bytes
    body = b'{"messages":[{"role":"user","content":"%s"}]}'
    text = b"x" * (limit - len(body) + 2)
    assert (await running.http.post(CHAT, content=body % text, headers=JSON)).status_code == 200
    reply = await running.http.post(CHAT, content=body % (text + b"x"), headers=JSON)
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "body_too_large")
    assert len(running.plain.bodies) == 1


async def test_a_body_of_unknown_length_is_not_read_past_the_limit(running: Running) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 200_000_000:
            sent += 100_000
            yield b"x" * 100_000

    # The answer comes while the client still sends: read it off the wire as it is.
    reader, writer = await asyncio.open_connection("127.0.0.1", int(running.url.rpartition(":")[2]))
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"transfer-encoding: chunked\r\n\r\n"
    )
    reply = asyncio.create_task(reader.readuntil(b"\r\n"))
    async for data in endless():
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await writer.drain()
        if reply.done():
            break
    assert b"413" in await reply
    assert sent < 20_000_000
    writer.close()


async def test_a_client_that_leaves_while_sending_harms_nobody(running: Running) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", int(running.url.rpartition(":")[2]))
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: 900000\r\n\r\n{"
    )
    await writer.drain()
    writer.close()
    while await running.metric("ocr_gateway_requests_total", route="", code="499") != 1:
        pass
    assert (await running.http.post(CHAT, json=chat())).status_code == 200


async def test_the_openapi_document_has_every_endpoint_and_every_refusal(running: Running) -> None:
    document: dict[str, Any] = (await running.http.get("/openapi.json")).json()
    paths: dict[str, Any] = document["paths"]
    served = {route.path for route in running.gateway.api.routes if isinstance(route, Route)}
    assert paths.keys() == served - {"/openapi.json"}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    statuses = {str(kind.status) for kind in kinds if issubclass(kind, errors.GatewayError)}
    described = paths[CHAT]["post"]["responses"].keys() | paths["/status"]["get"]["responses"].keys()
    assert statuses <= described
    assert document["info"]["version"] == gateway.__version__


async def test_a_fault_of_our_own_is_a_500_without_details(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a detail")

    monkeypatch.setattr("gateway.request.receive.openai.parse_request", broken)
    reply = await running.http.post(CHAT, json=chat())
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "internal_error")
    assert len(reply.headers["x-request-id"]) == 32
    assert "a detail" not in reply.text
    assert "a detail" in caplog.text
    assert await running.metric("ocr_gateway_requests_total", code="500") == 1


async def test_a_fault_after_an_answer_was_begun_breaks_it_off(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr("gateway.request.stream.AnswerStream.__anext__", broken)
    with pytest.raises(httpx.RemoteProtocolError):
        await running.http.post(CHAT, json=chat(stream=True))
    assert await running.metric("ocr_gateway_in_flight", route="text") == 0


async def test_a_client_that_stops_reading_does_not_hold_its_engine_for_ever(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def flood(engine: Any, request: Any, send: Any) -> None:
        await send.start(kind="text/event-stream")
        await send.event(chunk("one"))
        while True:
            await send.event("x" * 100_000)
            await asyncio.sleep(0)  # once the connection is gone, send no longer waits for anything

    running.plain.behave = flood
    timeouts = running.gateway.state.fleet.config.routes["text"].timeouts
    monkeypatch.setitem(vars(timeouts), "total_s", 0.3)
    async with running.http.stream("POST", CHAT, json=chat(stream=True)) as reply:
        assert reply.status_code == 200
        await until(lambda: running.in_flight("text") == 0)


@given(
    st.lists(st.text(st.characters(max_codepoint=255)).map(lambda value: value.encode("latin-1")), max_size=2)
)
def test_whatever_id_comes_a_sane_one_goes(given_ids: list[bytes]) -> None:
    sent: list[Any] = []

    async def answers(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-request-id", b"another")]})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "headers": [(b"x-request-id", one) for one in given_ids]}
    state: Any = SimpleNamespace(closing=False)
    asyncio.run(Headers(answers, state)(scope, None, send))  # type: ignore[arg-type]
    (told,) = [value for name, value in sent[0]["headers"] if name == b"x-request-id"]
    assert re.fullmatch(rb"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}", told)
    assert told in given_ids or len(told) == 32


async def test_the_page_is_one_file_and_runs_nothing_but_what_stands_in_it(running: Running) -> None:
    page = await running.http.get("/")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert (page.headers["x-content-type-options"], page.headers["referrer-policy"]) == (
        "nosniff",
        "no-referrer",
    )
    told = page.headers["content-security-policy"]
    policy = dict(part.strip().partition(" ")[::2] for part in told.split(";"))
    assert (policy["default-src"], policy["connect-src"], policy["frame-ancestors"]) == (
        "'none'",
        "'self'",
        "'none'",
    )
    assert "unsafe" not in told
    for kind in ("script", "style"):
        (inner,) = re.findall(f"<{kind}>(.*?)</{kind}>", page.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        assert policy[f"{kind}-src"] == f"'sha256-{digest}'"
    assert re.findall(r'(?:src|href|action)="(?!#|data:)', page.text) == []


async def test_a_page_that_has_not_changed_is_not_sent_again(running: Running) -> None:
    etag = (await running.http.get("/")).headers["etag"]
    for known, status in ((etag, 304), (f'"x", W/{etag}', 304), ('"x"', 200)):
        reply = await running.http.get("/", headers={"if-none-match": known})
        assert (reply.status_code, reply.headers["etag"], not reply.content) == (status, etag, status == 304)
