"""Headers that every answer has, methods, and the endpoints that engines answer."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.application import Application
from gateway.state.requests import OpenRequests
from tests.support import chat, chunk, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conftest import Running

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("given", ["my-id.1", "a" * 128])
async def test_a_sane_request_id_is_kept_and_passed_on(running: Running, given: str) -> None:
    reply = await running.http.post(CHAT, json=chat(), headers={"x-request-id": given})
    assert reply.headers.get_list("x-request-id") == [given]
    assert running.plain.headers[0]["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a" * 129, "two words", "x\u00e9".encode("latin-1"), '"><script>'])
async def test_any_other_is_replaced(running: Running, given: str | bytes) -> None:
    reply = await running.http.get("/health", headers=[("x-request-id", given)])
    assert len(reply.headers["x-request-id"]) == 32


async def test_probes_by_head_and_wrong_methods(running: Running) -> None:
    for path in ("/health", "/ready", "/v1/models"):
        reply = await running.http.head(path)
        assert (reply.status_code, reply.content) == (200, b"")
    reply = await running.http.get(CHAT)
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")


@given(
    st.lists(st.text(st.characters(max_codepoint=255)).map(lambda value: value.encode("latin-1")), max_size=2)
)
def test_whatever_id_comes_a_sane_one_goes(given_ids: list[bytes]) -> None:
    sent: list[Any] = []

    async def answers(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-request-id", b"another")]})

    async def send(message: Any) -> None:
        sent.append(message)

    scope: Any = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "headers": [(b"x-request-id", one) for one in given_ids],
    }
    state: Any = SimpleNamespace(requests=OpenRequests())
    keys: Any = SimpleNamespace(check=lambda _: None)
    asyncio.run(Application(answers, {}, keys, state)(scope, None, send))  # type: ignore[arg-type]
    (told,) = [value for name, value in sent[0]["headers"] if name == b"x-request-id"]
    assert re.fullmatch(rb"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}", told)
    assert told in given_ids or len(told) == 32


async def test_errors_carry_an_id_and_what_is_known(running: Running) -> None:
    reply = await running.http.post(CHAT, json=chat(model="x"))
    assert reply.headers["x-request-id"]
    assert "x-ocr-route" not in reply.headers


async def test_a_body_at_the_limit_is_taken_and_one_byte_more_is_not(running: Running) -> None:
    limit = running.gateway.state.fleet.config.limits.body_bytes
    body = b'{"messages":[{"role":"user","content":"%s"}]}'
    text = b"x" * (limit - len(body) + 2)
    assert (await running.http.post(CHAT, content=body % text, headers=JSON)).status_code == 200
    reply = await running.http.post(CHAT, content=body % (text + b"x"), headers=JSON)
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "body_too_large")
    assert len(running.plain.bodies) == 1


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "identity, gzip", "x"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/ocr"])
async def test_a_compressed_body_is_refused_by_what_it_is_and_counted(
    running: Running, path: str, encoding: str
) -> None:
    body = gzip.compress(json.dumps(chat()).encode())
    reply = await running.http.post(path, content=body, headers={**JSON, "content-encoding": encoding})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (
        415,
        "bad_content_encoding",
        "content-encoding",
    )
    assert "without Content-Encoding" in error["message"]
    assert await running.metric("ocr_gateway_requests_total", code="415") == 1


@pytest.mark.parametrize("encoding", ["identity", "Identity", ""])
async def test_a_body_as_it_is_may_say_so(running: Running, encoding: str) -> None:
    reply = await running.http.post(CHAT, json=chat(), headers={"content-encoding": encoding})
    assert reply.status_code == 200


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
