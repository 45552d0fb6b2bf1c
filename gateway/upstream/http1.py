"""HTTP/1.1 to engines: connections that carry one request and its answer at a time, and those kept for more.

Our own, for its price (bench/results/costs.md): aiohttp took 270 us of CPU a request of 1 kB, 35 us an event
of a stream, this takes 90 and 18, with the kernel's reads and writes. httptools parses, and refuses what is
not well-formed.
"""

from __future__ import annotations

import asyncio
import functools
import math
import socket
import ssl
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, cast

import aiohappyeyeballs
import httptools

from gateway.errors import EngineFailed
from gateway.upstream.unread import watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from gateway.model import Buffer

# vLLM closes idle connections after 5 s; ours must be gone before, or a request meets a closed one. An engine
# whose event loop has stood still for a while closes first, and reads what has arrived after.
KEEP_ALIVE_S = 2.0
# How often idle connections are looked through; those that would be too old by the next time are closed.
_SWEEP_S = KEEP_ALIVE_S / 8
# What a head may have, trailers included.
_HEAD_BYTES, _HEADERS = 65_536, 128
# What there may be beside a body: sizes of chunks, which may be of a byte each, and extensions nobody reads.
_FRAMING_BYTES, _FRAMING = 8 * 1024 * 1024, 8
# Answers of status 1xx before the one that counts; behind so many nothing more is read until time is up.
_HINTS = 64
# Of an answer so many bytes wait to be taken, and what one read brings; then the engine has to wait.
_UNTAKEN_BYTES = 256 * 1024
# What is kept of a header that an engine sends.
_HEADER_CHARS = 256
# As RFC 8305 has it, and so long are a name's addresses remembered.
_NEXT_ADDRESS_S, _ADDRESSES_S = 0.25, 10.0

_IDLE, _HEAD, _BODY, _DONE = range(4)
_NO_BODY = (101, 204, 304)
_DIED, _GARBAGE = "engine_died", "engine_garbage"


class Origin(NamedTuple):
    """Whom connections lead to."""

    tls: bool
    host: str
    port: int


class _NoHttp(Exception):
    """What came is no answer, or none that is wanted."""


class Connection(asyncio.Protocol):
    """A connection to an engine, and the answer that comes over it.

    Attributes:
        origin: whom it leads to.
        kept_at: when it was last given back, on the event loop's clock.
        status: the answer's HTTP status; this and the next are there once `head` has returned.
        content_type: as sent, but printable characters only.
        retry_after: the like; empty where there is none.
    """

    __slots__ = (
        *(
            "_body",
            "_chunked",
            "_end",
            "_ends_by_close",
            "_fault",
            "_has_unread",
            "_head",
            "_headers",
            "_hints",
        ),
        *("_keep", "_length", "_loop", "_parser", "_parts", "_paused", "_phase", "_pool", "_raw", "_taken"),
        *("_timer", "_timer_at", "_transport", "_waiter", "content_type", "kept_at", "origin", "retry_after"),
        "status",
    )

    def __init__(self, origin: Origin, pool: Pool) -> None:
        """Prepare for a transport; the pool hears when it is there and when it is gone."""
        self.origin = origin
        self.kept_at = 0.0
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._phase = _IDLE
        self._keep = self._paused = False
        self._parts: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self._has_unread: Callable[[], bool] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = self._end = math.inf

    # --- for who asks

    def send(self, pieces: Iterable[Buffer]) -> None:
        """Send a request; what cannot be sent at once is sent while its answer is waited for."""
        self._phase = _HEAD
        self._fault = ""
        self._keep = self._chunked = self._length = self._ends_by_close = False
        self._raw = self._body = self._taken = self._head = self._headers = self._hints = 0
        self.status, self.content_type, self.retry_after = 0, "", ""
        if self._transport.is_closing():
            self._fail(_DIED)
        else:
            self._transport.writelines(pieces)

    async def head(self, end: float) -> None:
        """Wait for the answer's head, until `end` on the event loop's clock.

        Raises:
            EngineFailed: the connection was closed, or this is no HTTP.
            TimeoutError: it did not come in time.
        """
        while self._phase == _HEAD:
            if self._fault:
                raise self._error()
            await self._change(end)

    async def more(self, end: float) -> bytes:
        """Return what of the body has come since, waiting for something until `end`; nothing behind the last.

        Raises:
            EngineFailed: the engine broke off, or what came is no HTTP.
            TimeoutError: nothing came in time.
        """
        while not self._parts:
            if self._phase == _DONE:
                return b""
            if self._fault:
                raise self._error()
            await self._change(end)
        parts = self._parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self._taken = self._body
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return data

    def rest(self, now: float) -> bool:
        """Be ready for another request, if the last one and its answer are over to the byte; tell whether."""
        if self._phase != _DONE or not self._keep or self._paused or self._transport.get_write_buffer_size():
            return False
        self._phase, self.kept_at = _IDLE, now
        self._parts.clear()
        return True

    def is_quiet(self) -> bool:
        """Whether nothing has come since its last answer, be it only to the socket, and be it an end."""
        if self._transport.is_closing():
            return False
        self._has_unread = self._has_unread or watch(self._transport)
        return not self._has_unread()

    def close(self) -> None:
        """Close it, at once and with whatever is under way."""
        self._transport.abort()

    # --- for the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self._pool.made(self)

    def data_received(self, data: bytes) -> None:
        """Parse what has come."""
        if self._phase == _IDLE or self._phase == _DONE:  # unasked
            self._keep = False
            self.close()
            return
        self._raw += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._keep = False
            if self._phase != _DONE:  # what is wrong behind the answer is not the answer's
                self._fail(_GARBAGE)
        if self._phase == _HEAD:
            if self._raw > _HEAD_BYTES:
                self._fail(_GARBAGE)
            return
        if self._raw - (1 + _FRAMING) * self._body > _FRAMING_BYTES and self._phase == _BODY:
            self._fail(_GARBAGE)
        if self._body - self._taken > _UNTAKEN_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        """Take the end for the body's, where that has no other."""
        if self._phase == _BODY and self._ends_by_close and not self._fault:
            self._phase, self._keep = _DONE, False
            self._wake()
        self._over()
        self.close()  # else what is not sent yet would be first

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell who waits, and the pool."""
        self._over()
        if self._timer:
            self._timer.cancel()
        del self._parser  # which holds methods of this
        self._pool.lost(self)

    # --- for the parser

    def on_message_begin(self) -> None:
        """Refuse what comes behind the answer."""
        if self._phase == _DONE:
            raise _NoHttp

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header or a trailer."""
        self._head += len(name) + len(value) + 4
        self._headers += 1
        if self._head > _HEAD_BYTES or self._headers > _HEADERS:
            raise _NoHttp
        if self._phase != _HEAD:
            return
        name = name.lower()
        if name == b"content-type":
            self.content_type = self.content_type or _printable(value)
        elif name == b"content-length":
            self._length = True
        elif name == b"transfer-encoding":
            if self._chunked or value.lower() != b"chunked":
                raise _NoHttp
            self._chunked = True
        elif name == b"retry-after":
            self.retry_after = self.retry_after or _printable(value)

    def on_headers_complete(self) -> None:
        """Begin the body, unless another head follows."""
        self.status = self._parser.get_status_code()
        if self.status < 200 and self.status != 101:
            self._hints += 1
            self._raw = self._head = self._headers = 0
            self._chunked = self._length = False
            self.content_type = self.retry_after = ""
            if self._hints > _HINTS:
                self._paused = True
                self._transport.pause_reading()
            return
        self._keep = self.status != 101 and self._parser.should_keep_alive()
        self._ends_by_close = not (self._length or self._chunked) and self.status not in _NO_BODY
        self._phase = _BODY

    def on_body(self, part: bytes) -> None:
        """Keep a part of the body."""
        self._parts.append(part)
        self._body += len(part)

    def on_message_complete(self) -> None:
        """Note that the answer is complete."""
        if self._phase == _BODY:
            self._phase = _DONE

    # --- inside

    async def _change(self, end: float) -> None:
        """Wait until something has changed; what comes without an end does not put the end off.

        One timer serves all waits: it is set anew only where it would come too late, and looks again where it
        comes too early. asyncio's timeout took 6 us a wait (bench/results/costs.md).
        """
        if self._loop.time() >= end:
            raise TimeoutError
        self._end = end
        if end < self._timer_at:
            if self._timer:
                self._timer.cancel()
            self._set_timer()
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _set_timer(self) -> None:
        self._timer_at = self._end
        self._timer = self._loop.call_at(self._end, self._ring)

    def _ring(self) -> None:
        self._timer, self._timer_at = None, math.inf
        if self._waiter is None or self._waiter.done():
            return
        if self._loop.time() < self._end:
            self._set_timer()
        else:
            self._waiter.set_exception(TimeoutError())

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, fault: str) -> None:
        self._fault = fault
        self.close()
        self._wake()

    def _over(self) -> None:
        if self._phase == _HEAD or self._phase == _BODY:
            self._fault = self._fault or _DIED
            self._wake()

    def _error(self) -> EngineFailed:
        if self._fault == _GARBAGE:
            return EngineFailed("the engine's answer is no HTTP", code=_GARBAGE)
        if self._phase == _HEAD:
            return EngineFailed("the engine closed the connection without an answer", code=_DIED)
        return EngineFailed("the engine broke off its answer", code=_DIED)


class Pool:
    """Connections, in use and kept; it belongs to the running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._open: set[Connection] = set()
        self._none_open = asyncio.Event()
        self._none_open.set()
        self._kept: dict[Origin, deque[Connection]] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._lookups: dict[Origin, tuple[float, asyncio.Future[Any]]] = {}

    def take(self, origin: Origin) -> Connection | None:
        """Return a kept connection, the one most recently used; None where there is none."""
        kept = self._kept.get(origin)
        oldest = self._loop.time() - KEEP_ALIVE_S
        while kept:
            connection = kept.pop()
            if connection.kept_at > oldest and connection.is_quiet():
                return connection
            connection.close()
        return None

    def give(self, connection: Connection) -> None:
        """Keep a connection for another request, if it is fit for one; else close it."""
        if not connection.rest(self._loop.time()):
            connection.close()
            return
        self._kept.setdefault(connection.origin, deque()).append(connection)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)

    async def connect(self, origin: Origin) -> Connection:
        """Return a new connection.

        Raises:
            OSError: there is none to be had.
        """
        tls = _tls() if origin.tls else None
        sock = await aiohappyeyeballs.start_connection(
            await self._addresses(origin), happy_eyeballs_delay=_NEXT_ADDRESS_S
        )
        connection = Connection(origin, self)
        try:
            await self._loop.create_connection(
                lambda: connection,
                sock=sock,
                ssl=tls,
                server_hostname=origin.host.rstrip(".") if tls else None,
            )
        except BaseException:
            # The loop closes the socket: to do so again would fail, and hide what has happened. It need not
            # tell the connection, though it may have told it of its beginning.
            self.lost(connection)
            raise
        return connection

    def made(self, connection: Connection) -> None:
        """Count a connection."""
        self._open.add(connection)
        self._none_open.clear()

    def lost(self, connection: Connection) -> None:
        """Count it no more."""
        self._open.discard(connection)
        if not self._open:
            self._none_open.set()

    async def close(self) -> None:
        """Close all connections."""
        if self._sweeper:
            self._sweeper.cancel()
        for _, lookup in self._lookups.values():
            lookup.cancel()
        for connection in self._open:
            connection.close()
        await self._none_open.wait()

    async def _addresses(self, origin: Origin) -> Any:
        """Return a host's addresses; of all that ask for a name's at a time, one does."""
        try:
            return socket.getaddrinfo(
                origin.host, origin.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
            )
        except socket.gaierror:
            pass
        until, lookup = self._lookups.get(origin, (0.0, None))
        if lookup is None or self._loop.time() >= until:
            lookup = asyncio.ensure_future(
                self._loop.getaddrinfo(
                    origin.host, origin.port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
                )
            )
            lookup.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._lookups[origin] = self._loop.time() + _ADDRESSES_S, lookup
        try:
            return await asyncio.shield(lookup)
        except OSError:
            self._lookups.pop(origin, None)
            raise

    def _sweep(self) -> None:
        self._sweeper = None
        oldest = self._loop.time() + _SWEEP_S - KEEP_ALIVE_S
        for origin, kept in list(self._kept.items()):
            while kept and kept[0].kept_at <= oldest:
                kept.popleft().close()
            if not kept:
                del self._kept[origin]
        if self._kept:
            self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)


@functools.cache
def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _printable(value: bytes) -> str:
    """A header's value that can be passed on; a broken engine's control characters could not be."""
    text = value[:_HEADER_CHARS].decode("latin-1")
    return text if text.isprintable() else "".join(filter(str.isprintable, text))
