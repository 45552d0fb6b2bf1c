from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import ssl
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import EngineFailed
from gateway.upstream import http1
from gateway.upstream.http1 import KEEP_ALIVE_S, Connection, ConnectionPool, Origin, has_unread
from tests.hosts import answer_of, certified
from tests.support import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator
    from pathlib import Path

ENGINE = Origin(tls=False, host="engine", port=1)


class Wire(asyncio.Transport):
    """What a connection believes to be its transport."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.sent = b""
        self.unsent = 0
        self.closed = self.paused = False
        connection.connection_made(self)

    def writelines(self, pieces: Iterable[Any]) -> None:
        self.sent += b"".join(pieces)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class Counted(ConnectionPool):
    """A pool that connects nowhere."""


class Told:
    """What a connection makes of what comes: all that who asked can see."""

    def __init__(self, parts: Iterable[bytes], *, ends: bool = True, unsent: int = 0) -> None:
        self.status = 0
        self.body = b""
        self.code: str | None = None
        self.again = False
        asyncio.run(self._tell(parts, ends, unsent))

    async def _tell(self, parts: Iterable[bytes], ends: bool, unsent: int) -> None:
        connection = Connection(ENGINE, Counted())
        wire = Wire(connection)
        wire.unsent = unsent
        connection.send([b"x"])
        for part in parts:
            if not wire.closed:
                connection.data_received(part)
        if ends and not wire.closed:
            connection.eof_received()
        try:
            async with asyncio.timeout(5):
                await connection.head(math.inf)
                self.status = connection.status
                self.content_type, self.retry_after = connection.content_type, connection.retry_after
                while data := await connection.more(math.inf):
                    self.body += data
        except EngineFailed as error:
            self.code = error.code
        self.again = connection.reset(0.0)
        connection.connection_lost(None)

    @property
    def seen(self) -> tuple[object, ...]:
        return self.status, self.body, self.code


def chunked(*parts: bytes, last: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + last


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
SIZED = HEAD + b"Content-Length: 5\r\n\r\n"
GOOD = {
    "sized": (SIZED + b"a\r\nbc", b"a\r\nbc"),
    "empty": (HEAD + b"Content-Length: 0\r\n\r\n", b""),
    "chunks": (CHUNKED + chunked(b"data: 1\n\n", b"\r\n0\r\n\r\n"), b"data: 1\n\n\r\n0\r\n\r\n"),
    "extensions-and-trailers": (
        CHUNKED + b'3;a="b";c\r\nabc\r\n' + chunked(last=b"0;x\r\nContent-Type: y\r\nZ: 1\r\n\r\n"),
        b"abc",
    ),
    "hints": (
        b"HTTP/1.1 103 Hints\r\nContent-Type: z\r\n\r\nHTTP/1.1 100 Go\r\n\r\n" + SIZED + b"12345",
        b"12345",
    ),
}
CLOSED = {
    "says-close": (HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\nab", b"ab"),
    "1.0": (SIZED.replace(b"1.1", b"1.0") + b"12345", b"12345"),
    "until-close": (HEAD + b"\r\nuntil the end", b"until the end"),
    "1.0-until-close": (b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\nx", b"x"),
    "another-behind": (SIZED + b"12345" + SIZED + b"67890", b"12345"),
    "nonsense-behind": (CHUNKED + chunked(b"abc") + b"junk", b"abc"),
}


def split(data: bytes, places: Iterable[int]) -> Iterator[bytes]:
    start = 0
    for place in [*sorted(place for place in places if place < len(data)), len(data)]:
        if place > start:
            yield data[start:place]
            start = place


@pytest.mark.parametrize("name", [*GOOD, *CLOSED])
def test_an_answer_is_the_same_however_it_is_split(name: str) -> None:
    data, body = {**GOOD, **CLOSED}[name]
    for place in range(len(data)):
        told = Told(split(data, [place]), ends=name in CLOSED)
        assert (*told.seen, told.content_type) == (200, body, None, "text/event-stream")
        assert told.again is (name in GOOD)
    told = Told((bytes([byte]) for byte in data), ends=name in CLOSED)
    assert (*told.seen, told.again) == (200, body, None, name in GOOD)


BODIES = st.lists(st.binary(min_size=1, max_size=9), max_size=6)
PLACES = st.lists(st.integers(0, 400), max_size=9)
NAMES = st.from_regex(r"[A-Za-z-]{1,9}", fullmatch=True)
VALUES = st.from_regex(r"[!-~\x80-\xff]([ -~\t\x80-\xff]{0,9}[!-~])?", fullmatch=True)
FRAMING = {
    "content-length",
    "transfer-encoding",
    "connection",
    "upgrade",
    "te",
    "trailer",
    "proxy-connection",
}
HEADERS = st.lists(st.tuples(NAMES.filter(lambda name: name.lower() not in FRAMING), VALUES), max_size=9)


@given(BODIES, HEADERS, HEADERS, st.sampled_from(["length", "chunks", "end"]), PLACES)
def test_any_headers_chunks_and_trailers_are_read(
    parts: list[bytes],
    headers: list[tuple[str, str]],
    trailers: list[tuple[str, str]],
    framing: str,
    places: list[int],
) -> None:
    def lines(of: list[tuple[str, str]]) -> bytes:
        return b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in of)

    body = b"".join(parts)
    head = b"HTTP/1.1 404 No\r\nContent-Type: a/b; c\x85\r\n" + lines(headers)
    data = {
        "length": head + b"Content-Length: %d\r\n\r\n" % len(body) + body,
        "chunks": head
        + b"Transfer-Encoding: Chunked\r\n\r\n"
        + chunked(*parts, last=b"0\r\n" + lines(trailers) + b"\r\n"),
        "end": head + b"\r\n" + body,
    }[framing]
    told = Told(split(data, places), ends=framing == "end")
    assert (*told.seen, told.content_type) == (404, body, None, "a/b; c")
    assert told.again is (framing != "end")


@given(
    st.sampled_from([data for data, _ in [*GOOD.values(), *CLOSED.values()]]),
    st.integers(0, 200),
    st.binary(max_size=40),
    st.integers(0, 40),
    PLACES,
)
def test_what_is_broken_neither_hangs_nor_brings_more_than_its_framing(
    data: bytes, place: int, other: bytes, gone: int, places: list[int]
) -> None:
    broken = data[:place] + other + data[place + gone :]
    told, at_once = Told(split(broken, places)), Told([broken])
    assert told.code in (None, "engine_died", "engine_garbage")
    assert len(told.body) <= len(broken)
    # What is not complete may end sooner or later.
    assert told.seen == at_once.seen or (told.status, told.code) == (at_once.status, at_once.code)
    if b"ransfer" not in broken:
        assert told.body in broken


@pytest.mark.parametrize(
    "broken",
    [
        b"\x16\x03\x01 nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b'{"an": "answer"}',
        HEAD + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\n12345",
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b"12345"),
        HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + chunked(b"12345"),
        HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b"12345"),
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + chunked(b"12345"),
        HEAD + b"Transfer-Encoding: identity\r\n\r\n12345",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 5, 5\r\n\r\n12345",
        HEAD + b"Content-Length: 1" + b"0" * 30 + b"\r\n\r\n",
        HEAD + b"X: a\x00b\r\n\r\n",
        HEAD + b"X: a\rY: b\r\n\r\n",
        HEAD + b" folded: x\r\n\r\n",
        HEAD + b"X: " + b"x" * 70_000,
        HEAD + b"X: " + b"x" * 70_000 + b"\r\nContent-Length: 0\r\n\r\n",
        HEAD + b"X: y\r\n" * 128 + b"Content-Length: 0\r\n\r\n",
    ],
)
def test_a_head_that_is_none_is_told_from_a_connection_that_broke(broken: bytes) -> None:
    told = Told([broken], ends=False)
    assert (told.status, told.code, told.again) == (0, "engine_garbage", False)
    assert Told([HEAD + b"X"]).code == Told([]).code == "engine_died"


@pytest.mark.parametrize(
    "wrong", [b"xyz\r\n", b"1" + b"0" * 20 + b"\r\n", b"-1\r\n", b"2\r\nabc", b"0\r\nX: " + b"x" * 9_000_000]
)
def test_framing_that_breaks_ends_the_body_behind_what_was_whole(wrong: bytes) -> None:
    told = Told([CHUNKED + b"3\r\nabc\r\n", wrong], ends=False)
    assert told.code == "engine_garbage"
    assert told.body.startswith(b"abc")
    assert len(told.body) <= 5


@pytest.mark.parametrize(
    "cut", [SIZED + b"1234", CHUNKED + b"3\r\nabc\r\n", CHUNKED + b"a\r\nabc", CHUNKED + b"3\r\nabc\r\n0\r\n"]
)
def test_a_body_that_breaks_off_is_not_complete(cut: bytes) -> None:
    told = Told([cut])
    assert (told.status, told.code, told.again) == (200, "engine_died", False)
    assert told.body in (b"1234", b"abc")


def test_framing_may_be_more_than_the_body_but_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    extension = b"1;" + b"y" * 4_000_000 + b"\r\nx\r\n0\r\n\r\n"
    assert Told([CHUNKED, extension]).body == b"x"
    endless = Told([CHUNKED, b"1;", *[b"y" * 1_000_000] * 10], ends=False)
    assert (endless.body, endless.code) == (b"", "engine_garbage")
    trailers = Told([CHUNKED, b"0\r\n", *[b"X: y\r\n" * 50] * 3], ends=False)
    assert trailers.code == "engine_garbage"
    monkeypatch.setattr(http1, "_FRAMING_BYTES", 1000)
    assert Told([CHUNKED, *[b"1\r\nx\r\n" * 100] * 50, b"0\r\n\r\n"]).body == b"x" * 5000


@pytest.mark.parametrize(
    "status", [b"101 Up\r\nUpgrade: x\r\nConnection: upgrade", b"101 Up", b"204 No", b"304 No"]
)
def test_statuses_without_a_body_have_none(status: bytes) -> None:
    for body in ([], [b"BODY"]):
        told = Told([b"HTTP/1.1 " + status + b"\r\n\r\n", *body], ends=False)
        assert told.seen == (int(status[:3]), b"", None)
        assert told.again is not (status[:3] == b"101" or bool(body))


def test_a_request_that_is_not_all_sent_has_no_successor() -> None:
    assert Told([GOOD["sized"][0]], ends=False, unsent=1).again is False


@pytest.mark.parametrize(
    ("sent", "told"),
    [(b"7", "7"), (b"\xe9\x85\x07 x", None), (b"caf\xe9", "caf\xe9"), (b"x" * 300, "x" * 256), (b"", "")],
)
def test_of_headers_only_printable_characters_are_kept_and_the_first_of_its_name(
    sent: bytes, told: str | None
) -> None:
    head = b"HTTP/1.1 429 No\r\nRetry-After: " + sent + b"\r\nContent-Length: 0\r\n"
    if told is None:
        assert Told([head + b"\r\n"], ends=False).code == "engine_garbage"
    else:
        more = b"Retry-After: 9\r\n" if sent else b""
        assert Told([head + more + b"\r\n"], ends=False).retry_after == told


async def begun() -> tuple[Connection, Wire]:
    connection = Connection(ENGINE, Counted())
    wire = Wire(connection)
    connection.send([b"a", memoryview(b"bc"), bytearray(b"d")])
    assert wire.sent == b"abcd"
    return connection, wire


async def test_an_engine_waits_while_much_of_its_answer_lies_untaken() -> None:
    connection, wire = await begun()
    connection.data_received(HEAD + b"Content-Length: 700000\r\n\r\n")
    for paused in (False, True):
        connection.data_received(b"x" * 200_000)
        assert wire.paused is paused
    assert len(await connection.more(math.inf)) == 400_000
    assert not wire.paused
    connection.data_received(b"x" * 300_000)
    assert wire.paused
    assert not connection.reset(0)  # nobody would hear what comes now
    connection.connection_lost(None)


async def test_after_many_hints_nothing_more_is_read() -> None:
    connection, wire = await begun()
    connection.data_received(b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000)
    assert wire.paused
    with pytest.raises(TimeoutError):
        await connection.head(asyncio.get_running_loop().time() + 0.001)
    connection.connection_lost(None)


async def test_what_comes_unasked_closes_an_idle_connection() -> None:
    connection, wire = await begun()
    connection.data_received(GOOD["sized"][0])
    assert await connection.more(math.inf) == b"a\r\nbc"
    assert connection.reset(0)
    assert not wire.closed
    connection.data_received(b"x")
    assert wire.closed
    connection.send([b"again"])
    with pytest.raises(EngineFailed, match="closed the connection without an answer"):
        await connection.head(math.inf)
    connection.connection_lost(None)


async def test_waits_end_in_time_whether_the_one_before_was_longer_or_shorter() -> None:
    now = asyncio.get_running_loop().time
    connection, _ = await begun()
    waiting = asyncio.create_task(connection.head(now() + 0.01))
    await asyncio.sleep(0)
    connection.data_received(CHUNKED)
    await waiting
    waiting = asyncio.create_task(connection.more(now() + 1000))
    await asyncio.sleep(0.05)  # the first wait's end passes, and ends nothing
    connection.data_received(b"1\r\nx\r\n")
    assert await waiting == b"x"
    for seconds in (0.01, 0.01, 0, -1):
        with pytest.raises(TimeoutError):
            await connection.more(now() + seconds)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(connection.more(now() + 1000), 0.01)
    connection.data_received(b"1\r\ny\r\n")
    assert await connection.more(now() + 1000) == b"y"
    connection.connection_lost(None)


async def test_who_waits_hears_of_the_end() -> None:
    for exc in (None, ConnectionResetError()):
        connection, _ = await begun()
        connection.data_received(CHUNKED)
        waiting = asyncio.create_task(connection.more(math.inf))
        await asyncio.sleep(0)
        connection.connection_lost(exc)
        with pytest.raises(EngineFailed, match="broke off"):
            await waiting


# --- over a network


@contextlib.asynccontextmanager
async def pool() -> AsyncIterator[ConnectionPool]:
    opened = ConnectionPool()
    try:
        yield opened
    finally:
        await opened.close()


@contextlib.asynccontextmanager
async def serving(host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> AsyncIterator[Origin]:
    """Answers each request in a read."""

    open_now = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now
        open_now += 1
        with contextlib.suppress(OSError):
            while await reader.read(65536):
                writer.write(answer_of(b"hello"))
        writer.close()
        open_now -= 1

    server = await asyncio.start_server(serve, host, 0, ssl=tls)
    try:
        yield Origin(tls is not None, host, server.sockets[0].getsockname()[1])
    finally:
        server.close()
        await until(lambda: not open_now)


async def used(connection: Connection) -> Connection:
    """A connection with an answer read to its end."""
    connection.send([b"GET / HTTP/1.1\r\n\r\n"])
    await connection.head(math.inf)
    assert await connection.more(math.inf) == b"hello"
    return connection


async def test_the_connection_used_last_is_used_next() -> None:
    async with serving() as origin, pool() as connections:
        first, second = [await used(await connections.connect(origin)) for _ in range(2)]
        connections.give_back(first)
        connections.give_back(second)
        assert connections.take(origin) is second
        assert connections.take(origin) is first
        assert connections.take(origin) is None


async def test_connections_are_kept_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as origin, pool() as connections:
        assert KEEP_ALIVE_S < 5
        old, new = [await used(await connections.connect(origin)) for _ in range(2)]
        connections.give_back(old)
        old.kept_at -= KEEP_ALIVE_S
        connections.give_back(new)
        new.kept_at -= KEEP_ALIVE_S
        assert connections.take(origin) is None
        third = await used(await connections.connect(origin))
        monkeypatch.setattr(http1, "KEEP_ALIVE_S", 0.2)
        monkeypatch.setattr(http1, "_SWEEP_S", 0.02)
        connections.give_back(third)
        await until(lambda: not (connections._kept or connections._open))


async def test_a_connection_that_was_not_used_to_its_end_is_closed() -> None:
    async with serving() as origin, pool() as connections:
        connection = await connections.connect(origin)
        connection.send([b"GET / HTTP/1.1\r\n\r\n"])
        connections.give_back(connection)
        await until(lambda: not connections._open)
        assert connections.take(origin) is None


async def test_names_and_both_kinds_of_addresses_lead_somewhere() -> None:
    for host in ("localhost", "127.0.0.1", "::1"):
        try:
            async with serving(host) as origin, pool() as connections:
                await used(await connections.connect(origin))
        except OSError:  # no IPv6 here
            assert host == "::1"


async def test_a_name_is_looked_up_once_for_all_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as origin, pool() as connections:
        asked = 0
        found = asyncio.Event()

        async def look_up(host: str, port: int, **_: object) -> list[Any]:
            nonlocal asked
            asked += 1
            await found.wait()
            if host == "nowhere":
                raise socket.gaierror(socket.EAI_NONAME, "not known")
            # The first refuses, the second is it.
            return [
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ("127.0.0.2", origin.host)
            ]

        monkeypatch.setattr(connections._loop, "getaddrinfo", look_up)
        named = origin._replace(host="engine.test")
        left = asyncio.create_task(connections.connect(named))
        several = [asyncio.create_task(connections.connect(named)) for _ in range(3)]
        await asyncio.sleep(0)
        left.cancel()
        found.set()
        for connection in await asyncio.gather(*several):
            await used(connection)
        await connections.connect(named)
        assert asked == 1
        for tries in (2, 3):
            with pytest.raises(socket.gaierror):
                await connections.connect(origin._replace(host="nowhere"))
            assert asked == tries


async def test_a_pool_that_closes_gives_up_what_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    async with pool() as connections:
        monkeypatch.setattr(connections._loop, "getaddrinfo", never)
        connecting = asyncio.create_task(connections.connect(Origin(tls=False, host="engine.test", port=1)))
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await connecting


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certified(tmp_path_factory.mktemp("tls"), "engine", "DNS:localhost", "IP:127.0.0.1")


async def test_an_engine_behind_tls_is_the_one_named_or_none(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    named: list[str | None] = []
    tls.sni_callback = lambda _, name, __: named.append(name)
    async with serving(tls=tls) as origin, pool() as connections:
        http1._tls.cache_clear()
        with pytest.raises(ssl.SSLCertVerificationError):
            await connections.connect(origin)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        http1._tls.cache_clear()
        connection = await used(await connections.connect(origin._replace(host="localhost")))
        connections.give_back(connection)
        assert connections.take(origin._replace(host="localhost")) is connection
        await used(await connections.connect(origin))
        monkeypatch.setattr(connections, "_addresses", lambda _: addresses_of(origin))
        with pytest.raises(ssl.SSLCertVerificationError):
            await connections.connect(origin._replace(host="another"))
    assert "localhost" in named
    http1._tls.cache_clear()


async def addresses_of(origin: Origin) -> Any:
    return socket.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)


async def test_what_is_no_tls_is_no_connection() -> None:
    async with serving() as origin, pool() as connections:
        with pytest.raises(ssl.SSLError):
            await connections.connect(origin._replace(tls=True))


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("after", range(10))
def test_a_connection_that_is_given_up_while_it_is_made_leaves_nothing_behind(
    new_loop: Callable[[], asyncio.AbstractEventLoop], after: int
) -> None:
    """That it is given up is heard, and the pool's end waits for nothing that never comes."""

    async def scene() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            opened = ConnectionPool()
            origin = Origin(tls=False, host="127.0.0.1", port=listener.getsockname()[1])
            asking = asyncio.create_task(opened.connect(origin))
            for _ in range(after):
                await asyncio.sleep(0)
            if asking.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await asking
            async with asyncio.timeout(10):
                await opened.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scene())


async def test_bytes_and_the_end_are_seen_before_they_are_read() -> None:
    ours, theirs = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=ours)
    transport = writer.transport
    transport.pause_reading()  # type: ignore[attr-defined]
    assert not has_unread(transport)
    theirs.send(b"x")
    assert has_unread(transport)
    ours.recv(1)
    assert not has_unread(transport)
    theirs.close()
    assert has_unread(transport)
    transport.abort()
