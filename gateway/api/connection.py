"""HTTP on one connection, and all connections together: uvicorn's protocol, held to limits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from gateway.errors import (
    BodyTooLarge,
    ClientLeft,
    GatewayError,
    HeadersTooLarge,
    RequestTimeout,
    Unavailable,
)
from gateway.policy.admit.connection_limits import ADMIN_CONNECTIONS, heads_in_parts, overdue
from gateway.upstream.unread import has_unread
from gateway.wire.http import head
from gateway.wire.openai.error_shape import error_body, error_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from uvicorn import Config
    from uvicorn._types import ASGI3Application, ASGIReceiveEvent

    from gateway.config.schema import Limits

log = logging.getLogger(__name__)

# Where a scope's `extensions` have the request's Cycle.
CYCLE = "ocr_gateway.cycle"

_HEADERS = 100
_PART_BYTES = 16 * 1024
_TARGET_BYTES = 8192
# What framing may cost beside a body: chunks of one byte need five more each.
_FRAMING = 8
# After an answer that its client did not wait for, what it still sends is read and dropped, so that it gets
# to read the answer: nginx's lingering_timeout and lingering_time.
_LINGER_IDLE_S = 5.0
_LINGER_S = 30.0
# Connections beyond the limit that are being told so.
_REFUSED_AT_ONCE = 64
_TELL_S = 60.0


class Connections(ServerState):
    """All connections of a server by what they wait for, and what has become of them."""

    def __init__(
        self,
        limits: Callable[[], Limits],
        capacity: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with none.

        Args:
            limits: returns those in force.
            capacity: returns how many clients may be connected.
            clock: seconds.
        """
        super().__init__()
        self.limits = limits
        self.clock = clock
        self._find_capacity = capacity
        self._capacity = capacity()
        # Each in the order of its seconds: the first is the one that has waited longest.
        self.idle: dict[Protocol, float] = {}
        self.heads: dict[Protocol, float] = {}
        self.busy: dict[Protocol, float] = {}
        self.leaving: dict[Protocol, float] = {}  # answered for the last time, but still sending
        self.places: Counter[bool] = Counter()  # taken, on the public port and on the admin port
        self.refused: Counter[str] = Counter()
        self._told: Counter[str] = Counter()
        self._told_at = -_TELL_S

    def look(self) -> None:
        """End what has taken too long; to be called about twice a second."""
        now, limits = self.clock(), self.limits()
        self._capacity = self._find_capacity()
        # Where the process itself is late, what has come in time may lie unread.
        for one in _before(self.idle, now - limits.keep_alive_s):
            if not has_unread(one.transport):
                one.end()
        for one in _before(self.heads, now - limits.header_s):
            if has_unread(one.transport) and now - self.heads[one] < 2 * limits.header_s:
                continue
            one.refuse(
                RequestTimeout(
                    f"the headers did not come within {limits.header_s:g} s (limits.header_s)",
                    code="header_timeout",
                )
            )
        for one in [*self.leaving, *self.busy]:
            one.look(now, limits.body_s)
        if now - self._told_at >= _TELL_S and (news := self.refused - self._told):
            log.warning(
                "connections ended by the gateway: %s",
                ", ".join(f"{count} {reason}" for reason, count in sorted(news.items())),
            )
            self._told, self._told_at = self.refused.copy(), now

    def close_idle(self, now: float, patience_s: float) -> frozenset[tuple[str, int]]:
        """Close those that have been idle for so long; return the clients of the others, by host and port.

        While the gateway stops, all answers tell their clients to close, but for those that began before. So
        a connection that is not closed by its answer stays until it has been idle for as long as its client
        may keep it. One with unread bytes is not idle: they are a request.
        """
        for one in _before(self.idle, now - patience_s):
            if not has_unread(one.transport):
                one.end()
        held = (*self.idle, *self.heads, *self.busy)
        return frozenset(one.client for one in held if one.client and not one.ended)

    def admit(self, new: Protocol) -> bool:
        """Whether a new connection gets a place; who asks for nothing, or slowly, makes room for it."""
        if self.places[new.admin] < (ADMIN_CONNECTIONS if new.admin else self._capacity):
            self.places[new.admin] += 1
            return True
        if longest := self._longest(new.admin):
            self.refused["closed_for_room"] += 1
            longest.placed = False
            longest.abort()
            return True
        if len(self.connections) - self.places.total() > _REFUSED_AT_ONCE:
            self.refused["too_many_connections"] += 1
            new.abort()
        else:
            new.refuse(
                Unavailable(
                    "the gateway has as many connections as it may (limits.connections); retry shortly",
                    code="too_many_connections",
                    retry_after=1,
                )
            )
        return False

    def _longest(self, admin: bool) -> Protocol | None:
        """Who makes room first: those that have had their answers, then who has not asked for longest."""
        if leaves := next((one for one in self.leaving if one.admin is admin), None):
            return leaves
        silent = [next((one for one in held if one.admin is admin), None) for held in (self.idle, self.heads)]
        return min(filter(None, silent), key=lambda one: one.since, default=None)

    def bound_heads(self) -> None:
        """End the longest of too many that have sent parts of a head; nearly all heads come in one piece."""
        if len(self.heads) > heads_in_parts(self.limits().header_bytes):
            self.refused["closed_for_room"] += 1
            next(iter(self.heads)).abort()


class Protocol(HttpToolsProtocol):
    """One connection.

    A request is seen once and as one thing, or refused: what comes behind an unfinished request is dropped,
    and the connection closed after its answer. No state lasts for ever: see `Connections.look`.

    Attributes:
        admin: it came to the admin port.
        placed: it counts as one of the connections that there may be.
        ended: it takes no more requests.
    """

    server_state: Connections
    cycle: Cycle

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        admin: bool = False,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.admin = admin
        self.placed = self.ended = False
        self.written = 0
        self._all = self.server_state
        self._held: dict[Protocol, float] = {}
        self._deaf = False  # what comes is dropped
        self._stays = True  # open after this answer, if the client wants so
        self._raw = self._body = self._head = 0  # bytes of this request
        self._header_bytes = 0
        self._since = 0.0  # when the body could have begun
        self._heard = self._ended_at = 0.0
        self._blocked: tuple[float, int] | None = (
            None  # since when answers wait to be read, bytes sent by then
        )

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, if there is room."""
        super().connection_made(transport)
        self._output = cast("asyncio.Transport", _Output(self, transport))
        self.placed = self._all.admit(self)
        if self.placed:
            self._move(self._all.idle)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        if self._unfinished() and self.cycle.on_left:
            self.cycle.on_left()
        super().connection_lost(exc)
        # They hold this: memory must not wait for a garbage collector.
        self.cycle = self._output = None  # type: ignore[assignment]
        self._all.places[self.admin] -= self.placed
        self._held.pop(self, None)

    def data_received(self, data: bytes) -> None:
        """Parse what has come."""
        if self._deaf:
            self._heard = self._all.clock()
            return
        if self._held is not self._all.heads and (self.cycle is None or self.cycle.response_complete):
            self._move(self._all.heads)
            self._raw = self._body = 0
            self._header_bytes = self._all.limits().header_bytes
        self._raw += len(data)
        try:
            self.parser.feed_data(data)
            self._check_size()
            if self._held is self._all.heads:
                self._all.bound_heads()
        except httptools.HttpParserUpgrade as upgrade:
            self._without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._fail(cause if isinstance(cause, GatewayError) else head.bad_http("it cannot be parsed"))
        except GatewayError as error:
            self._fail(error)

    def on_message_begin(self) -> None:
        """Begin a request, unless another one is unfinished."""
        if self._unfinished():
            raise head.bad_http("a request behind one that has not been answered")
        super().on_message_begin()
        self._head = 0

    def on_url(self, url: bytes) -> None:
        """Take a part of the request target."""
        self._head += len(url)
        if self._head > min(_TARGET_BYTES, self._header_bytes):
            raise HeadersTooLarge(
                f"the request target is over the limit of {_TARGET_BYTES:,} bytes", code="headers_too_large"
            )
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; those behind a body are dropped."""
        if self._unfinished():
            return
        self._head += len(name) + len(value) + 4
        if self._head > self._header_bytes or len(self.headers) >= _HEADERS:
            raise _head_too_large(self._header_bytes)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the application, which reads the body itself."""
        if self.parser.should_upgrade():
            return  # the parser stops here: see _without_upgrade
        version, method = self.parser.get_http_version(), self.parser.get_method()
        head.check(version, method, self.headers)
        target = httptools.parse_url(self.url)
        path = target.path
        if not path:
            raise head.bad_http("the request target has no path")
        self._move(self._all.busy)
        self._since = self._all.clock()
        self._stays = self._stays and version == "1.1" and self.parser.should_keep_alive()
        # The path as it stands: decoded, two paths would be the same here and not for a proxy in front.
        self.scope |= {
            "method": method.decode("ascii"),
            "http_version": version,
            "path": path.decode("ascii"),
            "raw_path": path,
            "query_string": target.query or b"",
        }
        self.scope["state"]["admin"] = self.admin
        self.cycle = Cycle(
            scope=self.scope,
            transport=self._output,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue and version == "1.1",
            keep_alive=False,  # an answer to half a request is the connection's last
            on_response=self.on_response_complete,
        )
        self.scope["extensions"] = cast("dict[str, dict[object, object]]", {CYCLE: self.cycle})
        self._start_asgi_task(self.cycle, self.app)

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        cycle = self.cycle
        self._body += len(body)
        if cycle.keep is not None:
            cycle.take(body)
            return
        # What comes along with the head, often all, is not copied: of a body of 200 kB that took 20 us.
        early: bytes | bytearray = cycle.body
        if not early:
            cycle.body, body = cast("bytearray", body), b""
        elif isinstance(early, bytes):
            cycle.body = bytearray(early)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that the request is complete."""
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        if not self.cycle.response_started:
            self.cycle.keep_alive = self._stays

    def on_response_complete(self) -> None:
        """Wait for the next request, once the client has read this answer."""
        self.server_state.total_requests += 1
        # An idle connection keeps nothing of its last request: neither large headers nor a body nobody read.
        self.cycle = self.scope = self.headers = None  # type: ignore[assignment]
        if self.ended or self.transport.is_closing():
            return
        self.flow.resume_reading()
        if not self.transport.get_write_buffer_size():
            self._move(self._all.idle)

    def shutdown(self) -> None:
        """Close when nothing is under way, or as soon as nothing is."""
        if self._unfinished():
            self._stays = self.cycle.keep_alive = False
        else:
            self.end()

    def look(self, now: float, body_s: float) -> None:
        """End it if its client is too slow to send a body or to read an answer."""
        if unsent := self.transport.get_write_buffer_size():
            sent = self.written - unsent
            self._blocked = self._blocked or (now, sent)
            since, before = self._blocked
            # What was broken off is not kept for a slow reader: it counts as held no more.
            if overdue(now - since, 0 if self.ended and self._unfinished() else sent - before, body_s):
                self._all.refused["answer_not_read"] += 1
                self.abort()
            return
        self._blocked = None
        if self.ended:
            if now - max(self._heard, self._ended_at) >= _LINGER_IDLE_S or now - self._ended_at >= _LINGER_S:
                self.abort()
        elif not self._unfinished():
            self._move(self._all.idle)
        elif (
            self.cycle.more_body
            and not self.flow.read_paused
            and overdue(now - self._since, self._body, body_s)
            and (overdue(now - self._since, self._body, 2 * body_s) or not has_unread(self.transport))
        ):
            self._fail(
                RequestTimeout(
                    f"the body comes too slowly: {self._body:,} bytes in {now - self._since:.0f} s "
                    "(limits.body_s)",
                    code="body_timeout",
                )
            )

    def refuse(self, error: GatewayError) -> None:
        """Answer for the application, and end; what was wrong is counted, not logged."""
        self._all.refused[error.code or ""] += 1
        body = error_body(error)
        lines = [
            *(b"%s: %s" % item for item in self.server_state.default_headers),
            *(f"{name}: {value}".encode() for name, value in error_headers(error, body).items()),
            b"connection: close",
        ]
        self._output.write(STATUS_LINE[error.status] + b"\r\n".join([*lines, b"", body]))
        self.end(linger=True)

    def end(self, *, linger: bool = False) -> None:
        """Take no more requests; the client gets what has been written.

        Args:
            linger: the client may be sending still: read and drop that for a while, as closing at once would
                reset the connection, and could take the answer from the client.
        """
        if self.ended:
            return
        self.ended = self._deaf = True
        self._ended_at = self._all.clock()
        self.parser = self.scope = self.headers = None  # type: ignore[assignment]
        self._move(self._all.leaving if linger and self.placed else self._all.busy)
        if linger and not self.transport.is_closing():
            self.flow.resume_reading()
            self.transport.write_eof()
        else:
            self.transport.close()

    def answered(self) -> None:
        """End after the last answer."""
        cycle = self.cycle
        self.end(linger=self._deaf or bool(cycle and cycle.response_complete and cycle.more_body))

    def abort(self) -> None:
        """Drop it, with all that waits to be sent."""
        self.ended = self._deaf = True
        self._held.pop(self, None)
        self.transport.abort()

    def _unfinished(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def since(self) -> float:
        """When it began to wait for what it waits for."""
        return self._held[self]

    def _move(self, held: dict[Protocol, float]) -> None:
        self._held.pop(self, None)
        self._held = held
        held[self] = self._all.clock()

    def _check_size(self) -> None:
        if self._held is self._all.heads:
            if self._raw > self._header_bytes:
                raise _head_too_large(self._header_bytes)
        elif self._raw > 2 * self._header_bytes + (1 + _FRAMING) * self._body:
            raise head.bad_http("too much beside the body")

    def _fail(self, error: GatewayError) -> None:
        """Refuse what has come; the application answers where it has begun to."""
        self._deaf = True
        if not self._unfinished():
            self.refuse(error)
            return
        self._stays = self.cycle.keep_alive = False
        if self.cycle.more_body:
            self.cycle.fault = error
            self.cycle.message_event.set()

    def _without_upgrade(self, rest: bytes) -> None:
        """Go on as if no other protocol had been offered: the parser takes the body for that protocol."""
        version, method = self.parser.get_http_version(), self.parser.get_method()
        if method == b"CONNECT":
            self._fail(head.bad_http("CONNECT: this is no proxy"))
            return
        self.parser = httptools.HttpRequestParser(self)
        self._raw = 0
        self.data_received(head.without_upgrade(version, method, self.url, self.headers) + rest)


class Cycle(RequestResponseCycle):
    """A request and its answer.

    Whoever serves it may take its body in one piece, be called when the client leaves, and write the answer,
    which costs far less than ASGI's messages and somebody who waits for them. It finds it under CYCLE in the
    scope's `extensions`.

    Attributes:
        fault: what was found wrong while its body came.
        keep: hears of the bytes of each part of the body that is about to be kept; what it raises ends it.
        on_left: called if the connection is lost before the answer is complete.
    """

    fault: GatewayError | None = None
    keep: Callable[[int], None] | None = None
    on_left: Callable[[], None] | None = None
    _limit = 0
    _length = 0
    _head = b""

    async def run_asgi(self, app: ASGI3Application) -> None:
        """Serve it, and free it at once."""
        try:
            await super().run_asgi(app)
        finally:
            self.scope["extensions"].clear()
            self.keep = self.on_left = None

    async def receive(self) -> ASGIReceiveEvent:
        """Return what has come.

        Raises:
            GatewayError: no more will.
        """
        message = await super().receive()
        if self.fault and self.more_body:
            raise self.fault
        return message

    async def whole(self, limit: int, keep: Callable[[int], None]) -> bytes:
        """Return the body once all of it is there.

        Args:
            limit: the most bytes it may have.
            keep: see Attributes.

        Raises:
            BodyTooLarge: it has more.
            ClientLeft: the client left before.
            GatewayError: what is wrong with the rest of it, or what `keep` raises.
        """
        self._limit, self.keep = limit, keep
        self._parts: list[bytes | bytearray] = []
        early, self.body = self.body, bytearray()
        self.take(early)
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        self.flow.resume_reading()
        while self.more_body and not (self.fault or self.disconnected):
            self.message_event.clear()
            await self.message_event.wait()
        parts, self._parts = self._parts, []
        if self.more_body or self.disconnected:
            raise self.fault or ClientLeft
        return b"".join(parts)

    def start(self, status: int, headers: Mapping[str, str], *, close: bool) -> None:
        """Begin the answer; nothing goes out before its first bytes.

        Args:
            status: HTTP status.
            headers: names in lower case; a body without `content-length` is chunked.
            close: the answer is the connection's last.

        Raises:
            ValueError: a header would be several.
        """
        self.response_started = True
        self.waiting_for_100_continue = False
        self.keep_alive = self.keep_alive and not close
        text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if text.count("\r") + text.count("\n") != 2 * len(headers):
            raise ValueError("a header with a line break")
        length = headers.get("content-length")
        self.chunked_encoding = length is None
        self.expected_content_length = int(length or 0)
        self._head = b"".join(
            [
                STATUS_LINE[status],
                *[b"%b: %b\r\n" % item for item in self.default_headers],
                text.encode("latin-1", "replace"),
                b"" if length else b"transfer-encoding: chunked\r\n",
                b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n",
            ]
        )

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """Send more of the body, once the client has read enough of what went before.

        Raises:
            ValueError: it is not as long as was announced.
        """
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if self.chunked_encoding:
            data = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            data += b"0\r\n\r\n" if last else b""
        else:
            self.expected_content_length -= len(data)
            if self.expected_content_length and (last or self.expected_content_length < 0):
                raise ValueError("a body of another length than announced")
        head, self._head = self._head, b""
        if len(data) > _PART_BYTES and head:
            self.transport.write(head)
            head = b""
        self.transport.write(head + data if head else data)
        if last:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()

    def take(self, data: bytes | bytearray) -> None:
        """Keep a part of the body.

        Raises:
            BodyTooLarge: it is over the limit.
            GatewayError: what `keep` raises.
        """
        self._length += len(data)
        if self._length > self._limit:
            raise too_large(self._limit)
        if self.keep:
            self.keep(len(data))
        # A list of parts is joined once; but one of two bytes would cost thirty times what is counted.
        if len(data) >= _PART_BYTES:
            self._parts.append(data)
        elif self._parts and isinstance(self._parts[-1], bytearray):
            self._parts[-1] += data
        else:
            self._parts.append(bytearray(data))


class _Output:
    """What a cycle writes to: counts bytes, and ends a connection in its own way."""

    def __init__(self, protocol: Protocol, transport: asyncio.Transport) -> None:
        self._protocol = protocol
        self._transport = transport

    def write(self, data: bytes) -> None:
        self._protocol.written += len(data)
        self._transport.write(data)

    def close(self) -> None:
        self._protocol.answered()

    def is_closing(self) -> bool:
        return self._protocol.ended or self._transport.is_closing()


def _before(held: dict[Protocol, float], end: float) -> list[Protocol]:
    """Return those that have been held since before a time: the first ones."""
    found = []
    for one, since in held.items():
        if since > end:
            break
        found.append(one)
    return found


def too_large(limit: int) -> BodyTooLarge:
    """Return the refusal of a body over the limit."""
    return BodyTooLarge(
        f"the body is over the limit of {limit:,} bytes (limits.body_bytes)", code="body_too_large"
    )


def _head_too_large(limit: int) -> HeadersTooLarge:
    return HeadersTooLarge(
        f"the headers are over the limit of {limit:,} bytes (limits.header_bytes), or more than {_HEADERS}",
        code="headers_too_large",
    )
