from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
import ssl
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from gateway.errors import EngineFailed, EngineTooSlow, Unavailable
from gateway.model import Engine
from gateway.upstream import client as client_module
from gateway.upstream.client import EngineClient, EngineResponse, _opening
from tests.faults.hostile import FAULTS, PROMPT, Hostile, Point
from tests.hosts import answer_of, certified, hosted
from tests.support import FakeEngine, _Sender, hang, served, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BODY = b'{"a":[' + b"1," * 800_000 + b"1]}"


async def post(client: EngineClient, url: str, *reading: Any, **limits: float | None) -> tuple[int, bytes]:
    bounds: dict[str, Any] = {"connect_s": 2, "first_event_s": None, "deadline": 20.0, **limits}
    bounds["deadline"] += asyncio.get_running_loop().time()
    engine = Engine("e", url, "p", 0, api_key="k1")
    headers = {"X-Request-Id": "r1"}
    sending = client.send(engine, "/v1/chat/completions", (BODY,), headers, **bounds)
    with contextlib.closing(await sending) as answer:
        return answer.status, await answer.read(*reading)


@contextlib.asynccontextmanager
async def opened(client: EngineClient, engine: Hostile) -> AsyncIterator[EngineResponse]:
    deadline = asyncio.get_running_loop().time() + 20
    body = json.dumps({"messages": [{"content": PROMPT.decode()}]}).encode()
    sending = client.send(
        Engine("e", engine.url, "p", 0),
        "/v1/chat/completions",
        (body,),
        {},
        connect_s=2,
        first_event_s=None,
        deadline=deadline,
    )
    with contextlib.closing(await sending) as answer:
        yield answer


async def ask(client: EngineClient, engine: Hostile) -> tuple[int, bytes]:
    async with opened(client, engine) as answer:
        return answer.status, await answer.read(1_000_000, lambda _: None)


async def test_a_large_body_arrives_as_it_is_with_the_engines_key() -> None:
    engine = FakeEngine()
    async with served(engine) as url, EngineClient() as client:
        status, body = await post(client, url)
    assert (status, body[:1]) == (200, b"{")
    assert engine.bodies == [BODY]
    assert engine.headers[0]["authorization"] == "Bearer k1"
    assert engine.headers[0]["x-request-id"] == "r1"
    assert "user-agent" not in engine.headers[0]


async def test_no_connection_is_told_from_a_connection_that_broke() -> None:
    async def die(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.start()
        await send.body(b"{")
        raise ConnectionError

    # Bound and not listening: nobody else can come to have the port.
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        async with EngineClient() as client:
            with pytest.raises(EngineFailed) as refused:
                await post(client, f"http://127.0.0.1:{closed.getsockname()[1]}")
    async with EngineClient() as client:
        assert refused.value.code == "engine_unreachable"
        async with served(FakeEngine(die)) as url:
            with pytest.raises(EngineFailed) as died:
                await post(client, url)
        assert died.value.code == "engine_died"


@contextlib.asynccontextmanager
async def closed_port() -> AsyncIterator[str]:
    with socket.socket() as closed:  # bound and not listening: nobody else can come to have the port
        closed.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{closed.getsockname()[1]}"


@contextlib.asynccontextmanager
async def unknown_name() -> AsyncIterator[str]:
    async def none(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.upstream.http1.ConnectionPool._addresses", none)
        yield "http://engine.example:8000"


@contextlib.asynccontextmanager
async def bad_certificate() -> AsyncIterator[str]:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    with tempfile.TemporaryDirectory() as folder:
        tls.load_cert_chain(certified(Path(folder), "localhost", "DNS:localhost"))
        async with hosted(tls) as host:
            yield f"https://localhost:{host.port}"


@contextlib.asynccontextmanager
async def no_tls() -> AsyncIterator[str]:
    async with served(FakeEngine()) as url:
        yield url.replace("http:", "https:")


@contextlib.asynccontextmanager
async def hangs_up() -> AsyncIterator[str]:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize(
    ("failing", "words", "detail", "advice"),
    [
        (closed_port, "it refuses connections", "Connection refused", "check that it runs"),
        (unknown_name, "its name cannot be resolved", "Name or service not known", "check the name"),
        (bad_certificate, "it has no certificate that is trusted here", "self-signed", "SSL_CERT_FILE"),
        (no_tls, "it does not speak TLS as expected", "", "begin with http://"),
        (hangs_up, "it closes new connections", "", "check its log"),
    ],
)
def test_why_there_is_no_connection_is_told_and_logged_once(
    failing: Any, words: str, detail: str, advice: str, loop: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with failing() as url, EngineClient() as client:
            for _ in range(3):
                with pytest.raises(EngineFailed) as failed:
                    await post(client, url)
                assert failed.value.message == f"no connection to the engine: {words}"
                assert failed.value.code == "engine_unreachable"
                with pytest.raises(EngineFailed, match=words):
                    await client.check_health(Engine("e", url, "p", 0), 5)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())
    (logged,) = [record.getMessage() for record in caplog.records if record.name.startswith("gateway")]
    assert logged.startswith(f"no connection to engine e: {words}")
    assert detail in logged
    assert advice in logged


async def test_waits_are_bounded_and_say_which_bound() -> None:
    async def stall(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.start(kind="text/event-stream")
        await send.event("x")
        await hang(engine, request, send)

    async with (
        served(FakeEngine(hang)) as silent,
        served(FakeEngine(stall)) as stalled,
        EngineClient() as client,
    ):
        for url, limits, code in (
            (silent, {"first_event_s": 0.05}, "engine_slow"),
            (silent, {"deadline": 0.05}, "total_timeout"),
            (stalled, {"deadline": 0.2}, "total_timeout"),
        ):
            with pytest.raises(EngineTooSlow) as late:
                await post(client, url, **limits)
            assert late.value.code == code


async def _exhaust(answer: EngineResponse, idle_s: float) -> None:
    until = answer.first_event_by
    while await answer.more(until):
        until = asyncio.get_running_loop().time() + idle_s


@pytest.mark.parametrize("first", [True, False])
async def test_a_stream_must_begin_and_go_on(first: bool) -> None:
    async def stall(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.start(kind="text/event-stream")
        if not first:
            await send.event("x")
        await hang(engine, request, send)

    fake = FakeEngine(stall)
    async with served(fake) as url, EngineClient() as client:
        engine = Engine("e", url, "p", 0)
        deadline = asyncio.get_running_loop().time() + 20
        limits = {"connect_s": 2, "first_event_s": 0.5 if first else 20, "deadline": deadline}
        sending = client.send(engine, "/v1/completions", (b"{}",), {}, **limits)
        with contextlib.closing(await sending) as answer, pytest.raises(EngineTooSlow, match="sent nothing"):
            await asyncio.wait_for(_exhaust(answer, 20 if first else 0.05), 10)
        await until(lambda: fake.aborted == 1)


async def test_an_answer_is_bounded_and_counted_before_it_is_kept() -> None:
    kept: list[int] = []
    async with served(FakeEngine()) as url, EngineClient() as client:
        with pytest.raises(EngineFailed, match="longer than 100 bytes"):
            await post(client, url, 100, kept.append)
        assert sum(kept) <= 100
        _, body = await post(client, url, 10_000, kept.append)
    assert sum(kept) >= len(body)


async def test_a_host_that_takes_no_connection_is_too_slow(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        # The queue of connections nobody accepts is full after these; the next connect is left waiting.
        waiting = [socket.socket() for _ in range(4)]
        for connection in waiting:
            connection.setblocking(False)
            connection.connect_ex(address)
        async with EngineClient() as client:
            with pytest.raises(EngineTooSlow) as late:
                await post(client, f"http://127.0.0.1:{address[1]}", connect_s=0.1)
            # Where this machine stood still meanwhile, it is not said to be the engine's fault.
            async with asyncio.timeout(60):
                while "engine f: connecting to it takes too long; check its address" not in caplog.text:
                    with pytest.raises(EngineTooSlow):
                        await client.check_health(Engine("f", f"http://127.0.0.1:{address[1]}", "p", 0), 0.1)
        for connection in waiting:
            connection.close()
    assert late.value.code == "connect_timeout"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS])
async def test_want_of_sockets_is_not_the_engines_fault(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    async def none_left(*_: object, **__: object) -> None:
        raise OSError(number, "too many")

    monkeypatch.setattr("aiohappyeyeballs.start_connection", none_left)
    async with EngineClient() as client:
        with pytest.raises(Unavailable) as refused:
            await post(client, "http://127.0.0.1:9")
        assert refused.value.code == "no_sockets"
        assert await client.healthy(Engine("e", "http://127.0.0.1:9", "p", 0), 5) is None


async def test_leaving_early_aborts_the_engines_work() -> None:
    fake = FakeEngine(hang)
    async with served(fake) as url, EngineClient() as client:
        request = asyncio.create_task(post(client, url))
        await until(lambda: fake.running == 1)
        request.cancel()
        await until(lambda: fake.aborted == 1)
        assert fake.running == 0


async def test_health_is_yes_no_or_silence() -> None:
    async def health(fake: FakeEngine) -> bool | None:
        async with served(fake) as url:
            return await client.healthy(Engine("e", url, "p", 0), 5)

    async with EngineClient() as client:
        assert await health(FakeEngine()) is True
        assert await health(FakeEngine(healthy=False)) is False
        with socket.create_server(("127.0.0.1", 0)) as listener:
            engine = Engine("e", f"http://127.0.0.1:{listener.getsockname()[1]}", "p", 0)
            assert await client.healthy(engine, 0.05) is None
        assert await client.healthy(engine, 5) is False


async def test_a_pools_own_authorities_take_the_place_of_the_systems(tmp_path: Path) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certified(tmp_path, "localhost", "DNS:localhost"))
    ours = (tmp_path / "host.crt").read_text()
    (tmp_path / "other").mkdir()
    other = certified(tmp_path / "other", "localhost", "DNS:localhost").with_suffix(".crt").read_text()
    async with hosted(tls, health=answer_of(b"{}")) as host, EngineClient() as client:
        engine = Engine("e", f"https://localhost:{host.port}", "p", 0, authorities=ours)
        for _ in range(2):
            await client.check_health(engine, 5)
            # Not even over the connection that is kept.
            for wrong in ("", other):
                with pytest.raises(EngineFailed, match="no certificate that is trusted here"):
                    await client.check_health(replace(engine, authorities=wrong), 5)


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (204, "HTTP 204, not 200"),
        (301, "HTTP 301, not 200: give the address that it redirects to"),
        (400, "HTTP 400, not 200: check whether its URL should begin with https://"),
        (401, "HTTP 401, not 200: it, or what is in front of it, must let /health through without a key"),
        (404, "HTTP 404, not 200: check its address, port and path prefix"),
        (503, "HTTP 503, not 200"),
    ],
)
async def test_a_health_check_tells_what_was_answered_and_what_to_check(status: int, told: str) -> None:
    async def engine(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"location", b"http://u:planted@elsewhere/")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async with served(engine) as url, EngineClient() as client:
        with pytest.raises(EngineFailed) as failed:
            await client.check_health(Engine("e", url, "p", 0), 5)
    assert told in failed.value.message
    assert "planted" not in failed.value.message


async def test_an_answer_in_tls_is_told_as_that() -> None:
    server = await asyncio.start_server(
        lambda _, writer: (writer.write(b"\x15\x03\x03\x00\x02\x02\x46"), writer.close()), "127.0.0.1", 0
    )
    async with server, EngineClient() as client:
        with pytest.raises(
            EngineFailed, match="no HTTP but TLS: its URL should begin with https://"
        ) as failed:
            await client.check_health(
                Engine("e", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "p", 0), 5
            )
    assert failed.value.code == "engine_garbage"


async def test_a_page_is_read_whole() -> None:
    page = b"x 1\n" * 100_000
    async with served(FakeEngine(metrics=page)) as url, EngineClient() as client:
        assert await client.page(Engine("e", url, "p", 0), "/metrics", 5) == page


@pytest.mark.parametrize(("key", "status"), [("k1", 200), ("k2", 401), ("", 401)])
async def test_a_page_is_asked_for_with_the_engines_key(key: str, status: int) -> None:
    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        allowed = (b"authorization", b"Bearer k1") in scope["headers"]
        await send({"type": "http.response.start", "status": 200 if allowed else 401, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async with served(guarded) as url, EngineClient() as client:
        page = client.page(Engine("e", url, "p", 0, api_key=key), "/v1/models", 5)
        if status == 200:
            assert await page == b"{}"
        else:
            with pytest.raises(EngineFailed, match="/v1/models with HTTP 401"):
                await page


async def test_a_page_that_is_not_there_is_a_failure_and_a_redirect_is_not_followed() -> None:
    async def moved(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"location", f"{url}/metrics".encode())]
        await send({"type": "http.response.start", "status": 302, "headers": headers})
        await send({"type": "http.response.body"})

    async with served(FakeEngine(metrics=b"x 1\n")) as url, served(moved) as away, EngineClient() as client:
        for base, path, status in ((url, "/version", 404), (away, "/metrics", 302)):
            with pytest.raises(EngineFailed, match=f"{path} with HTTP {status}"):
                await client.page(Engine("e", base, "p", 0), path, 5)


async def test_a_page_is_bounded_in_bytes_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.upstream.client.MAX_PAGE_BYTES", 100)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with served(FakeEngine(metrics=b"x" * 101)) as url, EngineClient() as client:
            with pytest.raises(EngineFailed, match="over 100 bytes"):
                await client.page(Engine("e", url, "p", 0), "/metrics", 5)
            mute = Engine("e", f"http://127.0.0.1:{silent.getsockname()[1]}", "p", 0)
            with pytest.raises(EngineTooSlow, match=r"took over 0\.1 s"):
                await client.page(mute, "/metrics", 0.1)


async def test_a_page_that_breaks_off_is_not_a_page() -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        raise ConnectionError

    async with served(broken) as url, EngineClient() as client:
        with pytest.raises(EngineFailed, match="broke off"):
            await client.page(Engine("e", url, "p", 0), "/metrics", 5)


async def test_a_gateway_that_stood_still_does_not_take_the_engine_for_slow() -> None:
    def stand_still(times: int) -> None:
        time.sleep(0.3)
        if times:
            asyncio.get_running_loop().call_soon(stand_still, times - 1)

    async with served(FakeEngine()) as url, EngineClient() as client:
        asyncio.get_running_loop().call_soon(stand_still, 3)
        assert (await post(client, url, connect_s=0.2))[0] == 200


async def test_what_comes_unasked_is_not_the_next_clients_answer() -> None:
    stranger = FAULTS["late-answer"]
    async with Hostile() as engine, EngineClient() as client:
        engine.suffer(stranger)
        assert PROMPT in (await ask(client, engine))[1]
        engine.seen(PROMPT).set()
        # Neither where it has been read by now, nor where it is still with the kernel.
        for pause in (0.0, 0.05):
            await asyncio.sleep(pause)
            assert PROMPT in (await ask(client, engine))[1]


@pytest.mark.parametrize("fault", ["bad-chunk-size", "huge-chunk-size"])
async def test_broken_framing_ends_the_wait_for_more(fault: str) -> None:
    async with Hostile() as engine, EngineClient() as client:
        engine.suffer(FAULTS[fault], Point.STREAM_BEGUN)
        async with opened(client, engine) as answer:
            assert b"delta" in await answer.more(None)
            engine.seen(PROMPT).set()
            with pytest.raises(EngineFailed) as died:
                await answer.more(None)
    assert died.value.code == "engine_garbage"


@pytest.mark.parametrize("fault", ["no-http", "http-0.9", "two-lengths", "giant-header", "endless-headers"])
async def test_what_is_no_http_is_told_from_a_connection_that_broke(fault: str) -> None:
    async with Hostile() as engine, EngineClient() as client:
        engine.suffer(FAULTS[fault])
        with pytest.raises(EngineFailed) as garbage:
            await ask(client, engine)
    assert garbage.value.code == "engine_garbage"


async def test_nothing_is_decompressed() -> None:
    async with Hostile() as engine, EngineClient() as client:
        engine.suffer(FAULTS["gzip-bomb"])
        assert len((await ask(client, engine))[1]) < 1_000_000


async def test_of_a_refusal_no_more_is_read_than_its_words_and_not_for_long() -> None:
    async with Hostile() as engine, EngineClient() as client:
        for fault, least in (("503-endless", 1000), ("503-silent", 0), ("503-broken", 0)):
            engine.suffer(FAULTS[fault])
            async with opened(client, engine) as answer:
                assert least <= len(await answer.read_start(1000, 0.05)) < 1_000_000


# --- what our own client must see to


@contextlib.asynccontextmanager
async def scripted(*scripts: Any) -> AsyncIterator[tuple[EngineClient, Engine]]:
    """A client, and an engine whose connections behave as told, the last script for all that are left."""
    left = list(scripts)
    tasks = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await (left.pop(0) if len(left) > 1 else left[0])(reader, writer)
        writer.close()
        tasks.discard(asyncio.current_task())

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        async with EngineClient() as client:
            yield client, Engine("e", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "p", 0)
    finally:
        server.close()
        await until(lambda: not tasks)


@contextlib.asynccontextmanager
async def sent(
    client: EngineClient, engine: Engine, *body: Any, **limits: Any
) -> AsyncIterator[EngineResponse]:
    bounds = {"connect_s": 2, "first_event_s": None, **limits}
    bounds["deadline"] = asyncio.get_running_loop().time() + bounds.get("deadline", 20)
    sending = client.send(engine, "/v1/completions", body or (b"{}",), {"X-Request-Id": "r1"}, **bounds)
    with contextlib.closing(await sending) as answer:
        yield answer


async def test_a_body_goes_out_piece_by_piece_as_one() -> None:
    got = bytearray()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.extend(await reader.readuntil(b"\r\n\r\n"))
        got.extend(await reader.readexactly(7))
        writer.write(answer_of(b"well"))

    async with scripted(echo) as (client, engine):
        async with sent(client, engine, b"abc", memoryview(b"xdex")[1:3], bytearray(b"fg")) as answer:
            assert (answer.status, await answer.read()) == (200, b"well")
        with pytest.raises(RuntimeError):
            await answer.more(None)
    host = engine.url.removeprefix("http://")
    assert got.decode().splitlines() == [
        "POST /v1/completions HTTP/1.1",
        f"Host: {host}",
        "Accept-Encoding: identity",
        "Content-Length: 7",
        "X-Request-Id: r1",
        "",
        "abcdefg",
    ]


of_each_url = pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://engine", "engine"),
        ("https://engine:443", "engine"),
        ("https://engine:80", "engine:80"),
        ("http://[::1]:8000", "[::1]:8000"),
    ],
)


@of_each_url
def test_an_engine_behind_a_prefix_is_asked_there(url: str, host: str) -> None:
    origin, head = _opening("POST", f"{url}/team/ocr", "/v1/chat/completions", "")
    assert head.decode().split("\r\n")[:2] == [
        "POST /team/ocr/v1/chat/completions HTTP/1.1",
        f"Host: {host}",
    ]
    assert origin == _opening("POST", url, "/x", "")[0]


@of_each_url
def test_an_engine_is_named_as_its_url_does(url: str, host: str) -> None:
    origin, head = _opening("GET", url, "/x", "k1")
    assert head.decode().split("\r\n")[:2] == ["GET /x HTTP/1.1", f"Host: {host}"]
    assert head.endswith(b"Authorization: Bearer k1\r\n")
    assert (origin.tls, "[" in origin.host) == (url.startswith("https"), False)


@pytest.mark.parametrize("value", ["a\r\nX: b", "a\nb", "a\rb", "a\0"])
async def test_a_header_is_one_line_and_no_fault_tells_a_key(value: str) -> None:
    async with EngineClient() as client:
        with pytest.raises(ValueError, match="line break") as wrong:
            await client.page(Engine("e", "http://127.0.0.1:9", "p", 0, api_key=value), "/x", 1)
        assert value not in str(wrong.value)


async def test_connections_serve_again_and_again() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while await reader.readuntil(b"\r\n\r\n{}"):
            writer.write(answer_of(b"x"))

    async with scripted(serve) as (client, engine):
        for _ in range(5):
            async with sent(client, engine) as answer:
                assert await answer.read() == b"x"
    assert connections == 1


async def test_an_answer_that_comes_before_the_body_is_sent_is_read() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer_of(b"no", "413 Too Large"))
        await asyncio.Event().wait()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(refuse(reader, writer))
        await until(lambda: done or task.done())
        task.cancel()

    done = False
    async with scripted(serve) as (client, engine):
        async with sent(client, engine, bytes(50_000_000)) as answer:
            assert (answer.status, await answer.read()) == (413, b"no")
        done = True


async def test_a_body_that_an_engine_does_not_take_is_bounded_in_time() -> None:
    async with Hostile() as engine, EngineClient() as client, engine.stopped():
        for limits, code in (({"deadline": 0.05}, "total_timeout"), ({"first_event_s": 0.05}, "engine_slow")):
            with pytest.raises(EngineTooSlow) as late:
                async with sent(client, Engine("e", engine.url, "p", 0), bytes(50_000_000), **limits):
                    pass
            assert late.value.code == code


async def test_what_never_ends_is_over_with_the_requests_time() -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"5\r\nhello\r\n" * 1000)
            await writer.drain()

    async with scripted(flood) as (client, engine), sent(client, engine, deadline=0.1) as answer:
        with pytest.raises(EngineTooSlow) as late:
            await _exhaust(answer, 20)
        assert late.value.code == "total_timeout"


async def test_connecting_takes_no_longer_than_the_request_may(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("aiohappyeyeballs.start_connection", never)
    async with EngineClient() as client:
        engine = Engine("e", "http://127.0.0.1:9", "p", 0)
        for limits, code in (({"deadline": 0.05}, "total_timeout"), ({"first_event_s": 0.05}, "engine_slow")):
            with pytest.raises(EngineTooSlow) as late:
                async with sent(client, engine, **limits):
                    pass
            assert late.value.code == code
        assert await client.healthy(engine, 0.05) is None


async def test_a_question_is_asked_again_where_a_kept_connection_dies_of_it() -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer_of(b""))
        await reader.readuntil(b"\r\n\r\n")

    async with scripted(once) as (client, engine):
        for _ in range(3):
            assert await client.healthy(engine, 5) is True

    async def at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async with scripted(once, at_once) as (client, engine):
        assert await client.healthy(engine, 5) is True
        assert await client.healthy(engine, 5) is False
    async with scripted(once, at_once) as (client, engine):
        assert await client.page(engine, "/x", 5) == b""
        with pytest.raises(EngineFailed) as died:
            async with sent(client, engine):
                pass
        assert died.value.code == "engine_died"


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("after_ms", [0, 1, 2, 5, 10, 50])
async def test_a_request_that_meets_a_closing_connection_is_sent_over_a_new_one(
    after_ms: int, reset: bool
) -> None:
    """An engine closes each connection a moment after its answer, and does not say so."""
    heard = 0

    async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heard
        await reader.readuntil(b"{}")
        heard += 1
        writer.write(answer_of(b"done"))
        await asyncio.sleep(after_ms / 1000)
        if reset:
            writer.transport.abort()

    async with scripted(closes) as (client, engine):
        for pause_ms in [*range(12), after_ms, after_ms] * 3:
            async with sent(client, engine) as answer:
                assert await answer.read() == b"done"
            await asyncio.sleep(pause_ms / 1000)
        assert heard == 42


async def test_what_an_engine_may_have_died_of_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[bytes] = []

    async def first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for partial in (b"", b"HTTP/1.1 200 OK\r\n"):
            heard.append(await reader.readuntil(b"{}"))
            writer.write(partial or answer_of(b""))

    async with scripted(first) as (client, engine):
        async with sent(client, engine):
            pass
        with pytest.raises(EngineFailed, match="without an answer"):  # a part of an answer had come
            async with sent(client, engine):
                pass
        assert len(heard) == 2

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"{}"))
        writer.write(answer_of(b""))
        heard.append(await reader.readuntil(b"{}"))

    monkeypatch.setattr(client_module, "_STALE_S", 0.0)
    heard.clear()
    async with scripted(late) as (client, engine):
        async with sent(client, engine):
            pass
        with pytest.raises(EngineFailed, match="without an answer"):
            async with sent(client, engine):
                pass
        assert len(heard) == 2
