"""HTTP/1.1 to engines: connections that carry one request and response at a time, and a pool that keeps them.

It is our own for its price (bench/results/costs.md): aiohttp took 270 us of CPU for a request of 1 kB and
35 us for an event of a stream; this takes 90 and 18, with the kernel's reads and writes. httptools parses,
and refuses what is not well-formed.
"""

from __future__ import annotations

import asyncio
import functools
import math
import select
import socket
import ssl
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, cast

import aiohappyeyeballs
import httptools

from gateway.errors import EngineFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from gateway.model import Buffer


def has_unread(transport: asyncio.BaseTransport) -> bool:
    """Return whether unread bytes, or the peer's end of the connection, wait in a transport's socket."""
    return unread_check(transport)()


def unread_check(transport: asyncio.BaseTransport) -> Callable[[], bool]:
    """Return a function that says so each time it is called, for as long as the transport is open."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return lambda: bool(poll.poll(0))


# vLLM closes idle connections after 5 s. Ours must be gone before, or a request meets a closed one: an engine
# whose event loop has stood still for a while closes first, and reads what has arrived afterwards.
KEEP_ALIVE_S = 2.0
# How often idle connections are checked; those that would be too old at the next check are closed.
_SWEEP_S = KEEP_ALIVE_S / 8
# Limits of a head, trailers included.
_HEAD_BYTES, _HEADERS = 65_536, 128
# Bytes on the wire that are not body (chunk sizes and extensions): so many, and so many more a byte of body,
# since a chunk may have a single byte.
_FRAMING_BYTES, _FRAMING = 8 * 1024 * 1024, 8
# Responses of status 1xx before the final one; after so many nothing more is read until time is up.
_HINTS = 64
# Above so many bytes of a body that nobody has taken yet, reading pauses, and the engine has to wait.
_UNTAKEN_BYTES = 256 * 1024
# What is kept of a header that an engine sends.
_HEADER_CHARS = 256
# The delay before a name's next address is tried as well (RFC 8305), and how long addresses are remembered.
_NEXT_ADDRESS_S, _ADDRESSES_S = 0.25, 10.0

_IDLE, _HEAD, _BODY, _DONE = range(4)
_NO_BODY = (101, 204, 304)
_DIED, _GARBAGE = "engine_died", "engine_garbage"
# How TLS begins, here the alert by which a server answers what is none.
_TLS_ALERT = b"\x15\x03"


class Origin(NamedTuple):
    """Where connections lead; `authorities` as an Engine's."""

    tls: bool
    host: str
    port: int
    authorities: str = ""


class _NotHttp(Exception):
    """What came is not a well-formed response, or comes after its end."""


class Connection(asyncio.Protocol):
    """A connection to an engine, and the response that comes over it.

    Attributes:
        origin: where it leads.
        kept_at: when it was last given back to the pool, on the event loop's clock.
        status: the response's HTTP status; this and the next two are set once `head` has returned.
        content_type: as sent, but printable characters only.
        retry_after: likewise; empty where there is none.
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
            "_is_tls",
        ),
        *("_keep", "_length", "_loop", "_parser", "_parts", "_paused", "_phase", "_pool", "_raw", "_taken"),
        *("_timer", "_timer_at", "_transport", "_waiter", "content_type", "kept_at", "origin", "retry_after"),
        "status",
    )

    def __init__(self, origin: Origin, pool: ConnectionPool) -> None:
        """Wait for a transport; the pool is told when it opens and when it closes."""
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

    # --- for the caller

    def send(self, pieces: Iterable[Buffer]) -> None:
        """Send a request; the transport buffers what the socket does not take at once."""
        self._phase = _HEAD
        self._fault, self._is_tls = "", False
        self._keep = self._chunked = self._length = self._ends_by_close = False
        self._raw = self._body = self._taken = self._head = self._headers = self._hints = 0
        self.status, self.content_type, self.retry_after = 0, "", ""
        if self._transport.is_closing():
            self._fail(_DIED)
        else:
            self._transport.writelines(pieces)

    async def head(self, end: float) -> None:
        """Wait for the response's head, until `end` on the event loop's clock.

        Raises:
            EngineFailed: the connection was closed, or what came is not HTTP.
            TimeoutError: it did not come in time.
        """
        while self._phase == _HEAD:
            if self._fault:
                raise self._error()
            await self._change(end)

    async def more(self, end: float) -> bytes:
        """Return the bytes of the body since the last call; b"" once it is complete.

        Waits for the first of them until `end`, on the event loop's clock.

        Raises:
            EngineFailed: the engine broke off, or what came is not HTTP.
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

    def reset(self, now: float) -> bool:
        """Be ready for another request, if the last one and its response are complete; return whether."""
        if self._phase != _DONE or not self._keep or self._paused or self._transport.get_write_buffer_size():
            return False
        self._phase, self.kept_at = _IDLE, now
        self._parts.clear()
        return True

    def is_quiet(self) -> bool:
        """Whether it is open and nothing has come since its last response, not even unread in the socket."""
        if self._transport.is_closing():
            return False
        self._has_unread = self._has_unread or unread_check(self._transport)
        return not self._has_unread()

    def is_unanswered(self) -> bool:
        """Whether nothing has come since the request was sent."""
        return self._raw == 0

    def close(self) -> None:
        """Close it at once, whatever is under way."""
        self._transport.abort()

    # --- for the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self._pool.opened(self)

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        if self._phase == _IDLE or self._phase == _DONE:  # unasked
            self._keep = False
            self.close()
            return
        self._raw += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._keep = False
            if self._phase != _DONE:  # a fault after the response does not spoil it
                self._is_tls = self._raw == len(data) and data.startswith(_TLS_ALERT)
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
        """End the body, where only the connection's end marks its own."""
        if self._phase == _BODY and self._ends_by_close and not self._fault:
            self._phase, self._keep = _DONE, False
            self._wake()
        self._over()
        self.close()  # not gracefully: that would first send what is still unsent

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake the caller, and tell the pool."""
        self._over()
        if self._timer:
            self._timer.cancel()
        del self._parser  # it refers back to this object
        self._pool.closed(self)

    # --- for the parser

    def on_message_begin(self) -> None:
        """Refuse another message after the response."""
        if self._phase == _DONE:
            raise _NotHttp

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header or a trailer."""
        self._head += len(name) + len(value) + 4
        self._headers += 1
        if self._head > _HEAD_BYTES or self._headers > _HEADERS:
            raise _NotHttp
        if self._phase != _HEAD:
            return
        name = name.lower()
        if name == b"content-type":
            self.content_type = self.content_type or _printable(value)
        elif name == b"content-length":
            self._length = True
        elif name == b"transfer-encoding":
            if self._chunked or value.lower() != b"chunked":
                raise _NotHttp
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
        """Note that the response is complete."""
        if self._phase == _BODY:
            self._phase = _DONE

    # --- inside

    async def _change(self, end: float) -> None:
        """Wait for the next event of this connection, until `end` at the latest.

        One timer serves all waits. It is set again only where it would ring too late; where it rings too
        early, it is set for the rest. asyncio's timeout took 6 us a wait (bench/results/costs.md).
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
            hint = " but TLS: its URL should begin with https://" if self._is_tls else ""
            return EngineFailed(f"the engine's answer is no HTTP{hint}", code=_GARBAGE)
        if self._phase == _HEAD:
            return EngineFailed("the engine closed the connection without an answer", code=_DIED)
        return EngineFailed("the engine broke off its answer", code=_DIED)


class ConnectionPool:
    """Connections, those in use and those kept for more requests; it belongs to the running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._open: set[Connection] = set()
        self._none_open = asyncio.Event()
        self._none_open.set()
        self._kept: dict[Origin, deque[Connection]] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._lookups: dict[Origin, tuple[float, asyncio.Future[Any]]] = {}

    def take(self, origin: Origin) -> Connection | None:
        """Return a kept connection, the most recently used; None where there is none."""
        kept = self._kept.get(origin)
        oldest = self._loop.time() - KEEP_ALIVE_S
        while kept:
            connection = kept.pop()
            if connection.kept_at > oldest and connection.is_quiet():
                return connection
            connection.close()
        return None

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for another request if it can serve one; else close it."""
        if not connection.reset(self._loop.time()):
            connection.close()
            return
        self._kept.setdefault(connection.origin, deque()).append(connection)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)

    async def connect(self, origin: Origin) -> Connection:
        """Return a new connection.

        Raises:
            OSError: it cannot be made.
        """
        tls = _tls(origin.authorities) if origin.tls else None
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
            # The loop closes the socket: closing it again would fail, and hide this error. The loop may have
            # called connection_made, and need not call connection_lost.
            self.closed(connection)
            raise
        return connection

    def opened(self, connection: Connection) -> None:
        """Count a connection as open."""
        self._open.add(connection)
        self._none_open.clear()

    def closed(self, connection: Connection) -> None:
        """Stop counting a connection."""
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
        """Return a host's addresses; concurrent calls for one name share a lookup."""
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


@functools.lru_cache(64)
def _tls(authorities: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authorities or None)
    context.set_alpn_protocols(["http/1.1"])
    return context


def _printable(value: bytes) -> str:
    """Return a header's value without control characters, which could not be passed on."""
    text = value[:_HEADER_CHARS].decode("latin-1")
    return text if text.isprintable() else "".join(filter(str.isprintable, text))
