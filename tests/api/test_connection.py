"""What comes over a connection, byte by byte: what is a request, how long it may take, and how it ends."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import re
import socket
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.connection import CYCLE, ClientConnection, RequestCycle
from gateway.config import parse
from gateway.errors import BadRequest
from gateway.wire.http.messages import RequestReader
from gateway.wire.http.phases import ENDED
from tests.api.fed import LIMIT, empty_registry, fed, reads, takes
from tests.api.listening import BEGUN, CHAT, CONFIG, HEALTH, SMALL, Clock, Held, request
from tests.support import FakeEngine, chat, chunk, completion, hang, until

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from tests.api.listening import Client, Listening

pytestmark = pytest.mark.asyncio(loop_scope="module")
LOOP = uvloop.new_event_loop  # that of `serve`: how connections end is a matter of the loop's


class Long:
    """An engine whose answer is megabytes."""

    async def __call__(self, engine: FakeEngine, request: Any, send: Any) -> None:
        await send.json(completion("x" * 8_000_000))


class Endless:
    """An engine whose stream does not end."""

    async def __call__(self, engine: FakeEngine, request: Any, send: Any) -> None:
        await send.start(kind="text/event-stream")
        while True:
            await send.event(chunk("x" * 10_000))
            await asyncio.sleep(0)


def line(name: str, *lines: bytes) -> Any:
    """A parameter of a test: a request's lines, and what follows them."""
    return pytest.param(b"\r\n".join(lines), id=name)


POST = b"POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json"
HOST = b"host: x"
CHUNKED = b"transfer-encoding: chunked"
LENGTH = b"content-length: %d" % len(SMALL)
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(SMALL), SMALL)
# What a reader that is fooled takes for a second request.
HIDDEN = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        line("length and chunked", POST, HOST, b"content-length: 5", CHUNKED, b"", b"0\r\n\r\n" + HIDDEN),
        line("chunked and length", POST, HOST, CHUNKED, LENGTH, b"", CHUNKS + HIDDEN),
        line("length twice, the same", POST, HOST, LENGTH, LENGTH, b"", SMALL),
        line("length twice", POST, HOST, b"content-length: 0", LENGTH, b"", SMALL),
        line("a list of lengths", POST, HOST, b"content-length: 5, 5", b"", b"hello"),
        *(
            pytest.param(
                b"\r\n".join([POST, HOST, b"content-length:" + value, b"", SMALL]), id=f"length {value!r}"
            )
            for value in (b"+5", b"-5", b"0x5", b"5 5", b"5;a", b"", b" ", b"5_0", b"\xb25", b"9" * 30)
        ),
        line(
            "a length of thousands of digits",
            POST,
            HOST,
            b"content-length: " + b"0" * 5000 + b"%d" % len(SMALL),
            b"",
            SMALL,
        ),
        line("space before a colon", POST, HOST, b"content-length : 5", b"", b"hello"),
        line("space before a name", POST, HOST, b" content-length: 5", b"", b"hello"),
        line("a folded header", POST, HOST, b"x: a", b" b", LENGTH, b"", SMALL),
        line("a folded encoding", POST, HOST, b"transfer-encoding:", b" chunked", b"", CHUNKS),
        line("a first line that is folded", POST, b" host: x", b"", b""),
        pytest.param(b"\n".join([POST, HOST, LENGTH, b"", SMALL]), id="bare LF"),
        line("bare LF in the headers", POST, HOST + b"\n" + LENGTH, b"", SMALL),
        line("bare CR in a header", POST, HOST, b"a: b\rcontent-length: 5", b"", b"hello"),
        line("NUL in a value", POST, HOST, b"a: b\0c", LENGTH, b"", SMALL),
        line("NUL in a name", POST, HOST, b"a\0: b", LENGTH, b"", SMALL),
        line("latin-1 in a name", POST, HOST, b"\xe9: b", LENGTH, b"", SMALL),
        line("no name", POST, HOST, b": b", LENGTH, b"", SMALL),
        line("no colon", POST, HOST, b"abc", LENGTH, b"", SMALL),
        *(
            pytest.param(
                b"\r\n".join([POST, HOST, b"transfer-encoding: " + value, b"", CHUNKS]),
                id=f"encoding {value!r}",
            )
            for value in (
                b"identity",
                b"chunked, identity",
                b"identity, chunked",
                b"gzip, chunked",
                b",chunked",
                b"xchunked",
                b"chunkedx",
                b"chunked;q=1",
                b'"chunked"',
                b"chunked,chunked",
                b"chunked\t",
                b"\x0bchunked",
                b"",
            )
        ),
        line("chunked twice", POST, HOST, CHUNKED, CHUNKED, b"", CHUNKS),
        line("identity, then chunked", POST, HOST, b"transfer-encoding: identity", CHUNKED, b"", CHUNKS),
        line("chunked, then identity", POST, HOST, CHUNKED, b"transfer-encoding: identity", b"", CHUNKS),
        line("chunked in HTTP/1.0", POST.replace(b"1.1", b"1.0"), HOST, CHUNKED, b"", CHUNKS),
        line("no host", POST, LENGTH, b"", SMALL),
        line("two hosts", POST, HOST, b"host: y", LENGTH, b"", SMALL),
        line("HTTP/0.9", b"GET /health", b"", b""),
        line("HTTP/2 without asking", b"PRI * HTTP/2.0", b"", b"SM", b"", b""),
        line("HTTP/2.0", b"GET /health HTTP/2.0", HOST, b"", b""),
        line("HTTP/1.2", b"GET /health HTTP/1.2", HOST, b"", b""),
        line("a space in the target", b"GET /he alth HTTP/1.1", HOST, b"", b""),
        line("a tab in the target", b"GET /he\talth HTTP/1.1", HOST, b"", b""),
        line("latin-1 in the target", b"GET /he\xe9lth HTTP/1.1", HOST, b"", b""),
        line("NUL in the target", b"GET /he\0lth HTTP/1.1", HOST, b"", b""),
        line("a target of a host", b"GET x:80 HTTP/1.1", HOST, b"", b""),
        line("a target without a path", b"GET http://x HTTP/1.1", HOST, b"", b""),
        line("CONNECT", b"CONNECT x:80 HTTP/1.1", HOST, b"", HIDDEN),
        line("a method that is none", b"get /health HTTP/1.1", HOST, b"", b""),
        line("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    ],
)
async def test_what_is_not_one_plain_request_is_refused_and_nothing_of_it_is_seen(
    it: Listening, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    client = await it.connect()
    client.send(sent)
    assert await client.error() == (400, "bad_http")
    assert it.engine.bodies == []
    said = [record.getMessage() for record in caplog.records if record.name != "asyncio"]
    assert all(re.fullmatch("connections ended by the gateway: [0-9a-z_, ]+", text) for text in said)
    await it.gone()


@pytest.mark.parametrize(
    "chunks",
    [
        b"FFFFFFFFFFFFFFFFF\r\nabc",
        b"-1\r\nabc",
        b"+3\r\nabc\r\n0\r\n\r\n",
        b"0x3\r\nabc\r\n0\r\n\r\n",
        b"3 \r\nabc\r\n0\r\n\r\n",
        b"\r\nabc",
        b"3\nabc\n0\n\n",
        b"3\r\nabcd\r\n0\r\n\r\n",
        b"3\r\nabc0\r\n\r\n",
        b"3\r\rabc\r\n0\r\n\r\n",
        b"3;a\nb\r\nabc\r\n0\r\n\r\n",
        b"3\r\nabc\r\n0\r\ncontent-length: 5\r\n\r\n",
        b"3\r\nabc\r\n0\r\ntransfer-encoding: chunked\r\n\r\n",
        b"3;" + b"a" * 200_000 + b"\r\nabc\r\n0\r\n\r\n",
        b"3\r\nabc\r\n0\r\nx: " + b"a" * 200_000 + b"\r\n\r\n",
        b"3\r\nabc\r\n0\r\n" + b"x: y\r\n" * 50_000 + b"\r\n",
    ],
    ids=lambda chunks: repr(chunks[:24]),
)
async def test_bad_chunks_are_refused_and_counted_as_the_completion_they_end(
    it: Listening, caplog: pytest.LogCaptureFixture, chunks: bytes
) -> None:
    with caplog.at_level("INFO", "gateway.access"):
        client = await it.connect()
        client.send(b"\r\n".join([POST, HOST, CHUNKED, b"", chunks]))
        assert await client.error() == (400, "bad_http")
    (record,) = [record for record in caplog.records if record.name == "gateway.access"]
    assert record.fields["code"] == 400  # type: ignore[attr-defined]
    assert it.engine.bodies == []
    await it.gone()


@pytest.mark.parametrize(
    "chunks",
    [
        CHUNKS,
        CHUNKS.replace(b"0\r\n\r\n", b"000\r\n\r\n"),
        CHUNKS.replace(b"\r\n{", b';a="b"\r\n{'),
        CHUNKS[:-2] + b"x-ocr-route: table\r\nhost: y\r\nauthorization: Bearer z\r\n\r\n",
        b"".join(b"1\r\n%c\r\n" % byte for byte in SMALL) + b"0\r\n\r\n",
    ],
    ids=["one", "zeros", "an extension", "trailers", "one byte each"],
)
async def test_good_chunks_are_a_body_and_what_follows_them_is_no_header(
    it: Listening, chunks: bytes
) -> None:
    client = await it.connect()
    for _ in range(2):
        client.send(b"\r\n".join([POST, HOST, CHUNKED, b"", chunks]))
        status, headers, _ = await client.answer()
        assert (status, headers["x-ocr-route"]) == (200, "text")
    client.writer.close()
    assert [json.loads(body) for body in it.engine.bodies] == [json.loads(SMALL)] * 2


@pytest.mark.parametrize("cut", [1, 3, 17, 10_000])
async def test_a_request_may_come_in_any_pieces(it: Listening, cut: int) -> None:
    client = await it.connect()
    sent = request()
    for start in range(0, len(sent), cut):
        client.send(sent[start : start + cut])
        await asyncio.sleep(0)
    assert (await client.answer())[0] == 200
    client.writer.close()


@pytest.mark.parametrize(
    "second",
    [HIDDEN, request(), b"\x16junk", b"POST / HTTP/1.1\r\ncontent-length: 99\r\n\r\n", b"\r\n" * 50_000],
    ids=["a page", "a completion", "junk", "half a request", "empty lines"],
)
async def test_what_is_sent_behind_a_request_gets_no_answer_before_it_and_none_after(
    it: Listening, second: bytes
) -> None:
    held = Held()
    it.engine.behave = held
    client = await it.connect()
    client.send(request() + second)
    await until(lambda: it.engine.running)
    client.send(second)
    held.go_on.set()
    status, headers, _ = await client.answer()
    assert (status, headers["connection"]) == (200, "close")
    await client.ended()
    assert len(it.engine.bodies) == 1
    await it.gone()


@pytest.mark.parametrize("second", [b"", HIDDEN, request(b"x" * 100_000)], ids=["nothing", "page", "body"])
async def test_a_client_that_leaves_is_missed_whatever_it_sent_behind_its_request(
    it: Listening, second: bytes
) -> None:
    it.engine.behave = hang
    client = await it.connect()
    client.send(request() + second)
    await until(lambda: it.engine.running)
    client.writer.transport.abort()
    await until(lambda: it.engine.aborted)
    await it.gone()


@pytest.mark.parametrize(
    "offer",
    [
        (
            b"connection: Upgrade, HTTP2-Settings",
            b"upgrade: h2c",
            b"http2-settings: AAMAAABkAAQBAAAAAAIAAAAA",
        ),
        (b"upgrade: websocket", b"connection: keep-alive, upgrade", b"sec-websocket-key: x"),
        (b"upgrade: TLS/1.0", b"connection: upgrade"),
    ],
    ids=["h2c", "websocket", "TLS"],
)
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("apart", [False, True])
async def test_an_offer_of_another_protocol_is_declined_and_the_body_kept(
    it: Listening, offer: tuple[bytes, ...], chunked: bool, apart: bool
) -> None:
    client = await it.connect()
    for _ in range(2):
        top = b"\r\n".join([POST, HOST, *offer, CHUNKED if chunked else LENGTH, b"", b""])
        client.send(top)
        if apart:
            await until(lambda: it.connections.busy)
        client.send(CHUNKS if chunked else SMALL)
        status, headers, _ = await client.answer()
        assert (status, headers["x-ocr-route"]) == (200, "text")
        client.send(b"\r\n".join([b"GET /health HTTP/1.1", HOST, *offer, b"", b""]))
        assert (await client.answer())[0] == 200
    client.writer.close()
    assert [json.loads(body) for body in it.engine.bodies] == [json.loads(SMALL)] * 2


async def test_what_is_behind_an_offer_is_not_another_request(it: Listening) -> None:
    client = await it.connect()
    offer = b"connection: upgrade\r\nupgrade: h2c"
    client.send(b"\r\n".join([POST, HOST, offer, b"content-length: %d" % len(HIDDEN), b"", HIDDEN]))
    status, _, body = await client.answer()
    assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_json")
    client.send(HEALTH)
    assert (await client.answer())[0] == 200
    client.writer.close()


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://elsewhere/health", 200),
        ("/health?a=b&c", 200),
        ("//health", 404),
        ("/./health", 404),
        ("/v1/../health", 404),
        ("/v1/%2e%2e/health", 404),
        ("/%68ealth", 404),
        ("/v1%2fmodels", 404),
        ("/health;a=b", 404),
        ("/health/", 404),
        ("/health%00", 404),
        ("/health%0d%0aset-cookie:%20a=b", 404),
        ("*", 404),
    ],
)
async def test_a_path_is_what_it_says(it: Listening, target: str, status: int) -> None:
    client = await it.connect()
    client.send(f"GET {target} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    answered, headers, _ = await client.answer()
    assert (answered, "set-cookie" in headers) == (status, False)
    client.writer.close()


async def test_trace_gives_nothing_back(it: Listening) -> None:
    client = await it.connect()
    client.send(b"TRACE /health HTTP/1.1\r\nhost: x\r\ncookie: secret\r\n\r\n")
    status, _, body = await client.answer()
    assert status == 405
    assert b"secret" not in body
    client.writer.close()


@pytest.mark.parametrize(
    "value", ["a\xe9b".encode("latin-1"), b"a b", b"a" * 500, b"a,b", b"table\xa0", b"{{7*7}}", b"\tx\t"]
)
async def test_strange_header_values_reach_neither_the_engine_nor_the_answer(
    it: Listening, value: bytes
) -> None:
    client = await it.connect()
    client.send(
        request(
            SMALL,
            CHAT,
            b"x-request-id: " + value,
            b"connection: keep-alive, x-secret",
            b"x-secret: " + value,
            b"te: trailers",
            b"keep-alive: timeout=5",
            b"proxy-authorization: Basic eA==",
            b"cookie: a=b",
        )
    )
    status, headers, _ = await client.answer()
    assert status == 200
    assert value.decode("latin-1").strip() not in headers.values()
    (seen,) = it.engine.headers
    assert value.decode("latin-1").strip() not in seen.values()
    assert not seen.keys() & {"x-secret", "te", "keep-alive", "proxy-authorization", "cookie"}
    client.send(request(SMALL, CHAT, b"x-ocr-route: " + value))
    status, headers, _ = await client.answer()
    assert status == 400
    assert value.decode("latin-1").strip() not in headers.values()
    client.writer.close()


async def test_continue_is_said_once_to_those_who_wait_for_it(it: Listening) -> None:
    client = await it.connect()
    client.send(request(SMALL, CHAT, b"expect: 100-continue")[: -len(SMALL)])
    assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    it.later(29)
    client.send(SMALL)
    assert (await client.answer())[0] == 200
    client.writer.close()


async def test_a_body_that_is_announced_too_long_is_not_asked_for(it: Listening) -> None:
    client = await it.connect()
    client.send(request(b"", CHAT, b"expect: 100-continue", b"content-length: 999999999999", length=False))
    assert await client.error() == (413, "body_too_large")


async def test_http_1_0_gets_its_answer_and_no_continue(it: Listening) -> None:
    client = await it.connect()
    client.send(
        request(SMALL, CHAT, b"expect: 100-continue", b"connection: keep-alive").replace(b"1.1", b"1.0", 1)
    )
    status, headers, _ = await client.answer()
    assert (status, headers["connection"]) == (200, "close")
    await client.ended()


@pytest.mark.parametrize("head", [b"", b"connection: keep-alive"])
async def test_a_stream_to_http_1_0_ends_with_the_connection_and_has_no_chunks(
    it: Listening, head: bytes
) -> None:
    client = await it.connect()
    body = json.dumps(chat(image=None, stream=True)).encode()
    client.send(request(body, CHAT, head or b"x: y").replace(b"1.1", b"1.0", 1))
    status, headers = await client.head()
    assert (status, headers["connection"]) == (200, "close")
    assert not headers.keys() & {"transfer-encoding", "content-length"}
    async with asyncio.timeout(10):
        events = await client.reader.read()
    client.writer.close()
    lines = [line for line in events.split(b"\n") if line]
    assert len(lines) == 4
    assert all(line.startswith(b"data: ") for line in lines)
    assert lines[-1] == b"data: [DONE]"


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\na: " + b"a" * 40_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\na: " + b"a" * 40_000,
        b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a" * 40_000,
        b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 101 + b"\r\n",
        b"\r\n" * 20_000,
    ],
    ids=["target", "value", "endless value", "endless name", "too many", "empty lines"],
)
async def test_heads_are_bounded(it: Listening, sent: bytes) -> None:
    client = await it.connect()
    client.send(sent)
    assert await client.error() == (431, "headers_too_large")
    await it.gone()


async def test_header_bytes_follow_the_configuration(it: Listening) -> None:
    client = await it.connect()
    sent = b"GET /health HTTP/1.1\r\nhost: x\r\na: " + b"a" * 3000 + b"\r\n\r\n"
    client.send(sent)
    assert (await client.answer())[0] == 200
    await it.configure("{header_bytes: 2048}")
    client.send(sent)
    assert await client.error() == (431, "headers_too_large")


async def test_a_slow_body_ends_as_a_request_that_came_too_slowly(
    it: Listening, caplog: pytest.LogCaptureFixture
) -> None:
    client = await it.connect()
    with caplog.at_level("INFO", "gateway.access"):
        client.send(request(SMALL, CHAT)[:-5])
        await until(lambda: it.connections.busy)
        it.later(29)
        client.send(SMALL[-5:-4])
        await until(lambda: it.received() == len(SMALL) - 4)
        it.later(2)
        assert await client.error() == (408, "body_timeout")
    assert [record.fields["code"] for record in caplog.records if record.name == "gateway.access"] == [408]  # type: ignore[attr-defined]
    await it.gone()
    client = await it.connect()
    client.send(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
    assert b'code="408",pool="",route=""} 1.0' in (await client.answer())[2]
    client.writer.close()


async def test_a_large_body_has_the_time_that_it_takes_at_the_slowest_rate(it: Listening) -> None:
    body = json.dumps(chat(prompt="x" * 50_000, image=None)).encode()
    client = await it.connect()
    sent = request(body)
    client.send(sent[:-5000])
    await until(lambda: it.received() == len(body) - 5000)
    it.later(30 + 40_000 / 4096)
    client.send(sent[-5000:])
    assert (await client.answer())[0] == 200
    client.writer.close()


async def test_a_server_that_shuts_down_finishes_what_it_has_begun(it: Listening) -> None:
    it.engine.behave = held = Held()
    idle, busy = await it.connect(), await it.connect()
    busy.send(request())
    await until(lambda: it.engine.running and it.connections.idle)
    for one in list(it.connections.connections):
        one.shutdown()
    await idle.ended()
    held.go_on.set()
    status, headers, _ = await busy.answer()
    assert (status, headers["connection"]) == (200, "close")
    await busy.ended()


async def unread(it: Listening) -> Client:
    """A client whose answers fill all buffers between the gateway and it."""
    client = await it.connect(receive=2048)
    client.reader._transport.pause_reading()  # type: ignore[attr-defined]
    await until(lambda: it.connections.idle)
    (one,) = it.connections.idle
    while not one.transport.get_write_buffer_size():
        answered = it.connections.total_requests
        client.send(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
        await until(lambda: it.connections.total_requests > answered)  # noqa: B023
    return client


async def test_a_client_that_never_reads_its_pages_is_dropped_with_what_waits_for_it(it: Listening) -> None:
    client = await unread(it)
    it.later(0)
    it.later(29)
    assert it.connections.connections
    it.later(10)
    await it.gone()
    client.writer.transport.abort()
    assert it.connections.refused["answer_not_read"] == 1


async def test_a_client_that_reads_late_is_idle_once_it_has_read(it: Listening) -> None:
    client = await unread(it)
    it.later(0)
    it.later(29)
    client.reader._transport.resume_reading()  # type: ignore[attr-defined]
    (one,) = it.connections.busy
    await until(lambda: not one.transport.get_write_buffer_size())
    it.later(0)
    assert list(it.connections.idle) == [one]
    client.writer.transport.abort()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_never_reads_its_completion_is_dropped_and_the_engine_freed(
    it: Listening, stream: bool
) -> None:
    it.engine.behave = Endless() if stream else Long()
    client = await it.connect(receive=2048)
    client.reader._transport.pause_reading()  # type: ignore[attr-defined]
    client.send(request(json.dumps(chat(image=None, stream=stream)).encode()))
    await until(lambda: any(not one.writable.is_set() for one in it.connections.busy))
    it.later(0)
    it.later(31)
    await it.gone()
    await until(lambda: not it.engine.running)
    await until(lambda: not it.gateway.state.requests.open)
    client.writer.transport.abort()


async def test_an_answer_that_is_broken_off_is_not_kept_for_who_reads_it_slowly(it: Listening) -> None:
    (engine,) = it.gateway.state.engines()
    text = CONFIG.replace("{text: {}}", "{text: {timeouts: {total_s: 0.5}}}")
    text = text.replace("ENGINE", engine.url).replace("LIMITS", "{}")
    await it.gateway.reload(parse(text, "routes.yaml", Path(), {}))
    it.engine.behave = Long()
    client = await it.connect(receive=2048)
    client.reader._transport.pause_reading()  # type: ignore[attr-defined]
    client.send(request())
    await until(lambda: any(not one.writable.is_set() for one in it.connections.busy))
    await until(lambda: any(one.phase in ENDED for one in it.connections.busy))
    it.later(0)
    client.reader._transport.resume_reading()  # type: ignore[attr-defined]
    await client.reader.readexactly(1_000_000)
    client.reader._transport.pause_reading()  # type: ignore[attr-defined]
    it.later(31)
    await it.gone()
    client.writer.transport.abort()
    await it.configure("{}")


async def test_a_client_that_reads_slowly_but_steadily_gets_all_of_its_answer(it: Listening) -> None:
    it.engine.behave = Long()
    client = await it.connect()
    client.send(request())
    _, headers = await client.head()
    left = int(headers["content-length"])
    while left:
        left -= len(await client.reader.read(65536))
        it.later(4)  # 16 KiB/s
    client.writer.close()


async def test_a_refusal_reaches_a_client_that_sends_on_and_the_rest_is_bounded(it: Listening) -> None:
    await it.configure("{body_bytes: 1000000}")
    client = await it.connect()
    client.send(request(b"x" * 5_000_000))
    assert (await client.answer())[0] == 413
    assert await client.reader.read() == b""  # to the end of what is said, not a reset
    (one,) = it.connections.connections
    for _ in range(7):
        client.send(b"x" * 1000)
        it.later(4)
        await until(lambda: one.heard_at == it.clock.now)
        assert not one.transport.is_closing()
    it.later(4)
    await it.gone()
    client.writer.transport.abort()


def kept_of(one: Any) -> list[bytes]:
    """The long pieces of requests that a connection still holds."""
    kinds = (dict, list, tuple, bytes, bytearray, RequestCycle, RequestReader)
    found: dict[int, Any] = {}
    left = [one.cycle, one.reader]
    while left:
        held = left.pop()
        if isinstance(held, kinds) and id(held) not in found:
            found[id(held)] = held
            left += gc.get_referents(held)
    return [held for held in found.values() if isinstance(held, bytes | bytearray) and len(held) > 250]


async def test_what_waits_for_its_client_keeps_nothing_of_its_last_request(it: Listening) -> None:
    large = b"".join(b"x-%d: %s\r\n" % (number, b"v" * 300) for number in range(90))
    body = b"y" * 60_000
    sent = BEGUN + large + b"content-length: %d\r\n\r\n" % len(body) + body
    all_sent = (sent, sent[:-1], sent.replace(b"/health", CHAT.encode()), sent[:99] + b"\0")
    clients = [await it.connect() for _ in all_sent]
    for client, data in zip(clients, all_sent, strict=True):
        client.send(data)
        await client.answer()
    held = [*it.connections.idle, *it.connections.leaving]
    assert [kept_of(one) for one in held] == [[]] * 4
    assert [one.cycle for one in held] == [None] * 4
    it.engine.behave = Held()
    asking = await it.connect()
    asking.send(request(SMALL, CHAT, large[:-2]))
    await until(lambda: it.engine.running)
    (one,) = it.connections.busy
    assert kept_of(one) == []
    for client in (*clients, asking):
        client.writer.transport.abort()


PIECES = [
    *(
        b"GET / HTTP/1.1",
        b"POST /v1/chat/completions HTTP/1.1",
        b"CONNECT x:1 HTTP/1.1",
        b"\r\n",
        b"\r\n\r\n",
        b"\n",
    ),
    *(
        b"host: x\r\n",
        b"content-length: 5\r\n",
        b"transfer-encoding: chunked\r\n",
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
    ),
    *(b"connection: upgrade\r\nupgrade: h2c\r\n", b"expect: 100-continue\r\n", b"hello", b":", b" ", b"\0"),
]


@given(
    st.lists(st.binary(max_size=20) | st.sampled_from(PIECES), max_size=12), st.sampled_from([reads, takes])
)
async def test_whatever_comes_is_answered_or_ended(pieces: list[bytes], app: Any) -> None:
    sent, over = await fed(pieces, app)
    assert over
    assert sent == b"" or sent.startswith(b"HTTP/1.1 ")
    assert sent.count(b"HTTP/1.1 ") == sent.count(b"\r\n\r\n")


@given(st.lists(st.integers(1, len(request()) - 1), max_size=6))
async def test_how_a_request_is_cut_changes_nothing(cuts: list[int]) -> None:
    whole = request()
    places = [0, *sorted(cuts), len(whole)]
    pieces = [whole[start:end] for start, end in itertools.pairwise(places)]
    sent, _ = await fed(pieces)
    assert sent.startswith(b"HTTP/1.1 200 ")
    assert b"close" not in sent


@given(st.binary(max_size=LIMIT), st.booleans(), st.randoms())
async def test_a_body_taken_in_one_piece_is_what_was_sent_however_it_is_cut(
    body: bytes, chunked: bool, rng: random.Random
) -> None:
    def cut(data: bytes, most: int) -> Iterator[bytes]:
        while data:
            size = rng.randint(1, rng.choice([3, most]))
            yield data[:size]
            data = data[size:]

    body *= rng.choice([1, LIMIT // max(len(body), 1)])
    framing = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % len(body)
    framed = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in cut(body, LIMIT)) + b"0\r\n\r\n"
    sent, _ = await fed(
        [*cut(b"POST / HTTP/1.1\r\nhost: x\r\n%b\r\n\r\n" % framing + (framed if chunked else body), LIMIT)],
        takes,
    )
    assert sent.startswith(b"HTTP/1.1 200 ")
    assert sent.partition(b"\r\n\r\n")[2] == body


@pytest.mark.parametrize("piece", [1, 1000, LIMIT])
async def test_of_a_body_over_the_limit_no_more_is_kept(piece: int) -> None:
    head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    chunk = b"%x\r\n%b\r\n" % (piece, bytes(piece))
    sent, over = await fed([head, *[chunk] * (LIMIT // piece + 3)], takes)
    assert sent.startswith(b"HTTP/1.1 413 ")
    assert over


async def test_a_body_taken_in_one_piece_that_stops_coming_is_refused_in_time() -> None:
    sent, over = await fed([b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf"], takes)
    assert sent.startswith(b"HTTP/1.1 408 ")
    assert over


async def test_a_body_in_pieces_of_two_bytes_takes_no_more_memory_than_is_counted() -> None:
    pieces = 5000
    cycle: Any = RequestCycle.__new__(RequestCycle)
    cycle._parts, cycle.waiting_bytes, cycle._limit, cycle._keep = [], 0, 10 * pieces, lambda _: None
    cycle._changed = asyncio.Event()
    tracemalloc.start()
    try:
        for number in range(pieces):
            cycle.add(number.to_bytes(2, "big"), complete=False)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert b"".join(cycle._parts) == b"".join(number.to_bytes(2, "big") for number in range(pieces))
    assert most < 8 * 2 * pieces


async def test_what_is_raised_where_a_part_is_taken_is_what_the_application_gets() -> None:
    def refuse(_: int) -> None:
        raise BadRequest("too much", code="mine")

    got: list[BadRequest] = []

    async def takes_nothing(scope: Any, receive: Any, send: Any) -> None:
        try:
            await scope["extensions"][CYCLE].whole(LIMIT, lambda count: refuse(count) if count else None)
        except BadRequest as error:
            got.append(error)
        await send({"type": "http.response.start", "status": 400, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    sent, over = await fed(
        [b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n", b"half"], takes_nothing
    )
    assert sent.startswith(b"HTTP/1.1 400 ")
    assert ([(error.code, error.message) for error in got], over) == ([("mine", "too much")], True)


async def test_the_end_of_a_body_is_not_counted_as_a_part_of_it() -> None:
    counted: list[int] = []

    async def takes_all(scope: Any, receive: Any, send: Any) -> None:
        counted.append(len(await scope["extensions"][CYCLE].whole(LIMIT, counted.append)))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    sent, _ = await fed([head + b"3\r\nabc\r\n", b"2\r\nde\r\n", b"0\r\n\r\n"], takes_all)
    assert sent.startswith(b"HTTP/1.1 200 ")
    assert counted == [3, 2, 5]


class Recorder:
    """A transport that notes what it is told."""

    def __init__(self, closing: bool = False, peer: object = ("::1", 7, 0, 0)) -> None:
        self.told: list[str] = []
        self.closing = closing
        self.peer = peer

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.told.append(name)

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return 3

    def get_extra_info(self, _: str) -> object:
        return self.peer


def connected(app: Any = reads, **more: Any) -> tuple[ClientConnection, Recorder]:
    recorder = Recorder(**more)
    connection = ClientConnection(app, empty_registry(Clock()))
    connection.connection_made(recorder)  # type: ignore[arg-type]
    return connection, recorder


async def test_what_is_written_is_counted_whether_sent_or_not() -> None:
    client, recorder = connected()
    client.write(b"12345")
    client.write(b"678")
    unsent = client.transport.get_write_buffer_size()
    assert (client.written, unsent, recorder.told) == (8, 3, ["write", "write"])


async def test_reading_is_paused_and_resumed_once() -> None:
    client, recorder = connected()
    client.resume_reading()
    client.pause_reading()
    client.pause_reading()
    assert client.read_paused
    client.resume_reading()
    client.resume_reading()
    assert recorder.told == ["pause_reading", "resume_reading"]


async def test_an_answer_waits_until_writing_goes_on() -> None:
    client, recorder = connected()
    client.pause_writing()
    client.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    for _ in range(5):
        await asyncio.sleep(0)
    assert not client.writable.is_set()
    assert recorder.told == []
    client.resume_writing()
    for _ in range(5):
        await asyncio.sleep(0)
    assert client.writable.is_set()
    assert recorder.told == ["write"]


@pytest.mark.parametrize(
    ("half", "closing", "told"),
    [
        (False, False, ["close"]),
        (True, False, ["resume_reading", "write_eof"]),
        (True, True, ["close"]),  # its end cannot be sent any more
    ],
)
async def test_a_half_closed_connection_is_read_on(half: bool, closing: bool, told: list[str]) -> None:
    client, recorder = connected(closing=closing)
    client.read_paused = True
    client._end(linger=half)
    assert recorder.told == told


async def test_a_client_is_its_host_and_port_where_it_has_them() -> None:
    assert connected()[0].client == ("::1", 7)
    assert connected(peer="")[0].client is None
    assert connected(peer=None)[0].client is None


async def test_an_aborted_connection_is_gone_at_once() -> None:
    near, far = socket.socketpair()
    with far:
        _, client = await asyncio.get_running_loop().connect_accepted_socket(
            lambda: ClientConnection(reads, empty_registry(Clock())), near
        )
        client.write(b"x")
        client.abort()
        assert client.transport.is_closing()


GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
START = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
PART = {"type": "http.response.body", "body": b"h", "more_body": True}
REST = {"type": "http.response.body", "body": b"i"}


def says(*messages: dict[str, Any], fault: BaseException | None = None) -> Any:
    """An application that sends messages, whatever it is asked, and fails then where told."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)
        if fault:
            raise fault

    return app


async def test_an_answer_is_sent_as_asgi_has_it_and_more_requests_may_follow() -> None:
    sent, _ = await fed([GET, GET], says(START, PART, REST))
    assert sent == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi" * 2


@pytest.mark.parametrize(
    ("method", "version", "sent"),
    [
        (b"GET", b"1.1", b"transfer-encoding: chunked\r\n\r\n1\r\nh\r\n1\r\ni\r\n0\r\n\r\n"),
        (b"GET", b"1.0", b"connection: close\r\n\r\nhi"),
        (b"HEAD", b"1.1", b"\r\n"),
        (b"HEAD", b"1.0", b"connection: close\r\n\r\n"),
    ],
)
async def test_an_answer_of_unknown_length_is_framed_as_its_client_understands(
    method: bytes, version: bytes, sent: bytes
) -> None:
    head = b"%b / HTTP/%b\r\nhost: x\r\n\r\n" % (method, version)
    start = {"type": "http.response.start", "status": 200}
    assert (await fed([head], says(start, PART, REST)))[0] == b"HTTP/1.1 200 OK\r\n" + sent


@pytest.mark.parametrize(
    ("app", "trouble"),
    [
        (says(), "left without its whole answer"),
        (says(fault=KeyError("secret")), "failed unexpectedly"),
        (says(PART), "failed unexpectedly"),  # no answer has begun
        (says({**START, "headers": [(b"x", b"a\nb")]}), "failed unexpectedly"),
        (says(START), "left without its whole answer"),
    ],
    ids=["no answer", "a fault", "no start", "a header of two lines", "a start alone"],
)
async def test_what_gets_no_answer_is_a_fault_that_its_client_is_told(
    caplog: pytest.LogCaptureFixture, app: Any, trouble: str
) -> None:
    sent, over = await fed([GET], app)
    assert over
    assert trouble in caplog.text
    assert b"secret" not in sent
    if sent:
        assert sent.startswith(b"HTTP/1.1 500 ")
        assert json.loads(sent.partition(b"\r\n\r\n")[2])["error"]["code"] == "internal_error"
        assert b"connection: close\r\n" in sent


@pytest.mark.parametrize(
    ("app", "sent"),
    [
        (says(START, PART, fault=KeyError()), b"h"),
        (says(START, PART), b"h"),
        (says(START, PART, PART, PART, PART), b"hh"),
        (says(START, PART, {**REST, "body": b""}), b"h"),
        (says(START, PART, START, REST), b"h"),
        (says(START, PART, REST, REST), b"hi"),
    ],
    ids=["a fault", "no end", "too long", "too short", "two starts", "two ends"],
)
async def test_an_answer_that_goes_wrong_breaks_off(
    caplog: pytest.LogCaptureFixture, app: Any, sent: bytes
) -> None:
    answer, over = await fed([GET], app)
    assert answer.partition(b"\r\n\r\n")[2] == sent
    assert over
    assert "a request" in caplog.text


async def test_an_application_that_is_cancelled_tells_its_client_too() -> None:
    sent, over = await fed([GET], says(fault=asyncio.CancelledError()))
    assert sent.startswith(b"HTTP/1.1 500 ")
    assert over


@pytest.mark.parametrize("rest", [b"", b"llo", b"\0"])
async def test_an_answer_to_half_a_request_is_the_connections_last(rest: bytes) -> None:
    head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhe"
    sent, over = await fed([head, rest, GET], says(START, PART, REST))
    assert sent == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi"
    assert over


async def test_an_application_that_does_not_read_is_told_when_its_client_has_left() -> None:
    told: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        told.append((await receive())["type"])
        told.append((await receive())["type"])
        await send(START)
        await send(REST)

    sent, _ = await fed([GET], app)
    assert (told, sent) == (["http.request", "http.disconnect"], b"")
