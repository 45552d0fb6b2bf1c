"""One connection from a client: requests read from it, each answered in its turn."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, cast

from gateway.errors import ClientLeft, GatewayError, InternalError
from gateway.wire.http.messages import Framing, RequestReader, body_too_large, response_head
from gateway.wire.http.phases import (
    COMPLETE,
    CONNECTION,
    DEAF,
    ENDED,
    INCOMPLETE,
    REQUEST,
    UNANSWERED,
    ConnectionEvent,
    ConnectionPhase,
    RequestEvent,
    RequestPhase,
)
from gateway.wire.openai.error_shape import error_body, error_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import ASGIApp, Message, Scope

    from gateway.api.connection_registry import ConnectionRegistry
    from gateway.wire.http.messages import RequestHead

log = logging.getLogger(__name__)

# Where a scope's `extensions` have the request's RequestCycle.
CYCLE = "ocr_gateway.cycle"

_PART_BYTES = 16 * 1024
# Of a body that nobody takes, so much is read.
_UNREAD_BYTES = 64 * 1024
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_LEFT, _CHUNKED = RequestPhase.LEFT, Framing.CHUNKED


class ClientConnection(asyncio.Protocol):
    """One connection, from its phase to the next as gateway.wire.http.phases has them.

    What comes behind an unfinished request is dropped, and the connection closed after its answer. No phase
    lasts for ever: see `ConnectionRegistry.check`.

    Attributes:
        phase: what it waits for.
        cycle: the request under way; the last one where its answer was broken off.
        admin: it came to the admin port.
        placed: it counts as one of the connections that there may be.
        client: host and port.
        transport: asyncio's.
        written: bytes, those that wait to be sent included.
        read_paused: nothing is read from the client.
        body_since: when the body of its request could have begun.
        heard_at: when the client sent something that was dropped.
        ended_at: since when it takes no more requests.
        blocked: since when answers wait to be read, and the bytes sent by then (the registry's).
        reader: of its requests.
        writable: set while little waits to be sent, or the connection is gone.
    """

    def __init__(self, app: ASGIApp, registry: ConnectionRegistry, *, admin: bool = False) -> None:
        """Wait for the connection.

        Args:
            app: serves its requests.
            registry: of all connections.
            admin: see Attributes.
        """
        self.phase = ConnectionPhase.IDLE
        self.cycle: RequestCycle | None = None
        self.admin = admin
        self.placed = False
        self.client: tuple[str, int] | None = None
        self.written = 0
        self.read_paused = False
        self.blocked: tuple[float, int] | None = None
        self.body_since = self.heard_at = self.ended_at = 0.0
        self._app = app
        self._registry = registry
        self._loop = asyncio.get_running_loop()
        self.reader = RequestReader()
        self.writable = asyncio.Event()
        self.writable.set()

    # --- what asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a connection, if there is room."""
        self.transport = cast("asyncio.Transport", transport)
        name: Any = transport.get_extra_info("peername")
        if isinstance(name, tuple):
            self.client = (str(name[0]), int(name[1]))
        registry = self._registry
        registry.connections.add(self)
        if registry.places[self.admin] < registry.room[self.admin]:
            registry.places[self.admin] += 1
        elif not registry.make_room(self):
            return
        self.placed = True
        registry.idle[self] = registry.clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        if self.cycle:
            self.cycle.leave()
        self.writable.set()
        if self.phase not in ENDED:
            self.reader.close()
        self._move(ConnectionEvent.LOST)
        registry = self._registry
        registry.connections.discard(self)
        registry.places[self.admin] -= self.placed
        # It holds this: memory must not wait for a garbage collector.
        self.cycle = None

    def data_received(self, data: bytes) -> None:
        """Read what has come."""
        phase, registry = self.phase, self._registry
        if phase in DEAF:
            self.heard_at = registry.clock()
            return
        if phase is ConnectionPhase.IDLE or phase is ConnectionPhase.UNREAD:
            self._move(ConnectionEvent.BYTES)
            head, body, complete, fault = self.reader.begin(data, registry.limits.header_bytes)
        else:
            head, body, complete, fault = self.reader.feed(data)
        if head:
            self._begin(head)
        try:
            if self.cycle and (body or complete):
                self.cycle.add(body, complete=complete)
        except GatewayError as error:
            self.fail(error)
            return
        if fault:
            self.fail(fault)
        elif self.phase is ConnectionPhase.HEAD:
            registry.check_heads()

    def pause_writing(self) -> None:
        """Have answers wait: much waits to be sent."""
        self.writable.clear()

    def resume_writing(self) -> None:
        """Let them go on."""
        self.writable.set()

    # --- what its registry and its server ask

    @property
    def receiving(self) -> bool:
        """Whether more of a request's body is waited for."""
        if self.cycle is None or self.read_paused:
            return False
        return self.phase is ConnectionPhase.EXCHANGE and self.cycle.phase in INCOMPLETE

    @property
    def broken_off(self) -> bool:
        """Whether it ended before an answer did."""
        return self.phase in ENDED and self.cycle is not None

    def note_read(self) -> None:
        """Note that the client has read all that was written."""
        if self.phase is ConnectionPhase.UNREAD:
            self._move(ConnectionEvent.READ)

    def shutdown(self) -> None:
        """Close when nothing is under way, or as soon as nothing is."""
        if self.cycle and self.phase not in ENDED:
            self.cycle.stays = False
        else:
            self.close()

    def refuse(self, error: GatewayError) -> None:
        """Answer for the application, and end; what was wrong is counted, not logged."""
        registry = self._registry
        registry.refused[error.code or ""] += 1
        body = error_body(error)
        headers = error_headers(error, body)
        common = registry.default_headers
        self.write(response_head("GET", "1.1", error.status, headers, stays=False, common=common).data + body)
        self._end(linger=True)

    def fail(self, error: GatewayError) -> None:
        """Refuse what has come; the application answers where it has begun to."""
        if self.cycle is None:
            self.refuse(error)
            return
        self._move(ConnectionEvent.FAULT)
        self.cycle.stays = False
        self.cycle.fail(error)

    def close(self) -> None:
        """Take no more requests; the client gets what has been written."""
        if self.phase not in ENDED:
            self._end(linger=False)

    def abort(self) -> None:
        """Drop it, with all that waits to be sent."""
        self.reader.close()
        self._move(ConnectionEvent.LOST)
        self.transport.abort()

    # --- for the request under way

    def write(self, data: bytes) -> None:
        """Send data, or have it wait."""
        self.written += len(data)
        self.transport.write(data)

    def pause_reading(self) -> None:
        """Leave what the client sends unread."""
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()

    def answered(self) -> None:
        """Wait for the next request once the client has read this answer, or for nothing any more."""
        cycle = self.cycle
        if cycle is None or self.phase is ConnectionPhase.CLOSED:
            return
        complete = cycle.phase in COMPLETE
        if complete:
            self._registry.total_requests += 1
            self.cycle = None
        if not (complete and cycle.stays):
            early = cycle.phase is RequestPhase.ANSWERED_EARLY
            self._end(linger=early or self.phase is ConnectionPhase.LAST_ANSWER)
            return
        self.resume_reading()
        if self.transport.get_write_buffer_size():
            self._move(ConnectionEvent.ANSWERED)
        else:
            self._move(ConnectionEvent.ANSWERED, ConnectionEvent.READ)

    # --- how it goes on

    def _begin(self, head: RequestHead) -> None:
        """Have the application serve a request, whose body it reads itself."""
        self._move(ConnectionEvent.HEAD_ENDS)
        self.body_since = self._registry.clock()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": head.version,
            "method": head.method,
            "scheme": "http",
            "path": head.path.decode("ascii"),
            "raw_path": head.path,
            "root_path": "",
            "query_string": head.query,
            "headers": head.headers,
            "client": self.client,
            "state": {"admin": self.admin},
        }
        tasks, common = self._registry.tasks, self._registry.default_headers
        self.cycle = RequestCycle(scope, head, self, common)
        task = self._loop.create_task(self.cycle.run(self._app))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _end(self, *, linger: bool) -> None:
        """Take no more requests; to linger, read on what the client sends."""
        self.ended_at = self._registry.clock()
        self.reader.close()
        self._move(ConnectionEvent.LINGER if linger else ConnectionEvent.CLOSE)
        if linger and not self.transport.is_closing():
            self.resume_reading()
            self.transport.write_eof()
        else:
            self.transport.close()

    def _move(self, *events: ConnectionEvent) -> None:
        """Go to the next phase, and to the registry's group of those that are in it."""
        before = phase = self.phase
        for event in events:
            phase = CONNECTION[phase, event]
        self.phase = phase
        groups = self._registry.groups
        old, new = groups[before], groups[phase]
        if old is not new:
            old.pop(self, None)
            if phase is not ConnectionPhase.CLOSED:
                new[self] = self._registry.clock()


class RequestCycle:
    """A request and its answer.

    It is an ASGI application's `receive` and `send`. Who finds it under CYCLE in the scope's `extensions` may
    take its body in one piece, be called when the client leaves, and write the answer, which costs far less
    than ASGI's messages and somebody who waits for them.

    Attributes:
        phase: how far it has come; see gateway.wire.http.phases.
        stays: the connection may have another request behind this one.
        on_left: called if the connection is lost before the answer is complete.
        waiting_bytes: of the body, that have come and not been taken.
    """

    def __init__(
        self, scope: Scope, head: RequestHead, connection: ClientConnection, common: list[tuple[bytes, bytes]]
    ) -> None:
        """Begin a request whose head has come; it adds itself to ASGI's scope, `common` to its answer."""
        self.phase = RequestPhase.RECEIVING
        self.stays = head.keeps_alive
        self.on_left: Callable[[], None] | None = None
        self.waiting_bytes = 0
        self._scope = scope
        self._connection = connection
        self._common = common
        self._expects_continue = head.expects_continue
        self._changed = asyncio.Event()
        self._fault: GatewayError | None = None
        self._parts: list[bytes | bytearray] = []
        # Once the body is taken in one piece: the most bytes, and who hears of them.
        self._limit = 0
        self._keep: Callable[[int], None] | None = None
        self._framing: Framing | None = None
        self._left = 0  # of a body of known length
        self._head = b""
        scope["extensions"] = {CYCLE: self}

    # --- what the connection tells

    def add(self, data: bytes, *, complete: bool) -> None:
        """Take a part of the body, if any has come; `complete`: there will be no more.

        Raises:
            BodyTooLarge: it is over the limit.
            GatewayError: what the `keep` of `whole` raises.
        """
        if data:
            self.waiting_bytes += len(data)
            if self._keep:
                self._count(len(data))
            elif self.waiting_bytes > _UNREAD_BYTES:
                self._connection.pause_reading()
            # A list of parts is joined once; but one of two bytes would cost thirty times what is counted.
            # What comes along with the head, often all, is not copied: of a body of 200 kB that took 20 us.
            if len(data) >= _PART_BYTES or not self._parts:
                self._parts.append(data)
            elif isinstance(self._parts[-1], bytearray):
                self._parts[-1] += data
            else:
                self._parts.append(bytearray(data))
        if complete:
            self._move(RequestEvent.BODY_ENDS)
        self._changed.set()

    def fail(self, error: GatewayError) -> None:
        """Note what is wrong with the rest of the body, if there is any."""
        if self.phase in INCOMPLETE:
            self._fault = error
            self._move(RequestEvent.BODY_FAILS)
            self._changed.set()

    def leave(self) -> None:
        """Note that the connection is gone."""
        if self.phase not in COMPLETE and self.on_left:
            self.on_left()
        self._move(RequestEvent.CLIENT_LEAVES)
        self._changed.set()

    # --- for the application

    async def run(self, app: ASGIApp) -> None:
        """Serve it, and free it at once; what the application leaves unanswered, or fails at, is a fault."""
        try:
            await app(self._scope, self.receive, self.send)
            if self.phase not in COMPLETE and self.phase is not _LEFT:
                log.error("a request was left without its whole answer")
        except Exception:
            log.exception("a request failed unexpectedly")
        finally:
            self._scope["extensions"].clear()
            self._keep = self.on_left = None
            if self.phase in UNANSWERED:
                error = InternalError()
                body = error_body(error)
                self.start(error.status, error_headers(error, body), close=True)
                self.write(body, last=True)
            elif self.phase is not _LEFT and self.phase not in COMPLETE:
                self._connection.answered()

    async def receive(self) -> Message:
        """Return what of the body has come since.

        Raises:
            GatewayError: no more will.
        """
        self._say_continue()
        if self.phase is not _LEFT and self.phase not in COMPLETE:
            self._connection.resume_reading()
            await self._changed.wait()
            self._changed.clear()
        if self.phase is _LEFT or self.phase in COMPLETE:
            return {"type": "http.disconnect"}
        if self._fault:
            raise self._fault
        return {"type": "http.request", "body": self._taken(), "more_body": self.phase in INCOMPLETE}

    async def whole(self, limit: int, keep: Callable[[int], None]) -> bytes:
        """Return the body once all of it is there.

        Args:
            limit: the most bytes it may have.
            keep: hears of the bytes of each part of the body before it is kept; what it raises ends that.

        Raises:
            BodyTooLarge: it has more.
            ClientLeft: the client left before.
            GatewayError: what is wrong with the rest of it, or what `keep` raises.
        """
        self._limit, self._keep = limit, keep
        self._count(self.waiting_bytes)
        self._say_continue()
        self._connection.resume_reading()
        while self.phase is RequestPhase.RECEIVING:
            self._changed.clear()
            await self._changed.wait()
        if self.phase is not RequestPhase.RECEIVED:
            self._parts = []
            raise self._fault or ClientLeft
        return self._taken()

    async def send(self, message: Message) -> None:
        """Send a part of the answer; of several headers of one name, the last."""
        if message["type"] == "http.response.start":
            raw = message.get("headers", ())
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw}
            close = "close" in headers.pop("connection", "")
            self.start(message["status"], headers, close=close)
        else:
            await self.drain()
            self.write(message.get("body", b""), last=not message.get("more_body", False))

    async def answer(self, status: int, headers: Mapping[str, str], body: bytes, *, close: bool) -> None:
        """Send a whole answer; see `start` and `write`."""
        self.on_left = None
        self.start(status, headers, close=close)
        await self.drain()
        self.write(body, last=True)

    def start(self, status: int, headers: Mapping[str, str], *, close: bool) -> None:
        """Begin the answer; nothing goes out before its first bytes.

        Args:
            status: HTTP status.
            headers: names in lower case.
            close: the answer is the connection's last.

        Raises:
            ValueError: a header would be several.
        """
        method, version = self._scope["method"], self._scope["http_version"]
        # Behind half a request nothing can be told from its rest.
        stays = self.stays and not close and self.phase is RequestPhase.RECEIVED
        head = response_head(method, version, status, headers, stays=stays, common=self._common)
        self._move(RequestEvent.ANSWER_BEGINS)
        self._head, self._framing, self.stays = head
        self._left = int(headers["content-length"]) if self._framing is Framing.LENGTH else 0
        self._expects_continue = False

    @property
    def paused(self) -> bool:
        """Whether the client has much to read: `drain` before writing more."""
        return not self._connection.writable.is_set()

    async def drain(self) -> None:
        """Wait until the client has read enough of what was written, or has left."""
        if self.paused and self.phase is not _LEFT:
            await self._connection.writable.wait()

    def write(self, data: bytes, *, last: bool = False) -> None:
        """Send more of the body; nothing where the client has left.

        Raises:
            ValueError: it is not as long as was announced.
        """
        if self.phase is _LEFT:
            return
        if self._framing is _CHUNKED:
            data = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            data += b"0\r\n\r\n" if last else b""
        elif self._framing is Framing.LENGTH:
            self._left -= len(data)
            if self._left and (last or self._left < 0):
                raise ValueError("a body of another length than announced")
        elif self._framing is Framing.NO_BODY:
            data = b""
        elif self._framing is None:
            raise ValueError("a body before its head")
        head, self._head = self._head, b""
        if len(data) > _PART_BYTES and head:
            self._connection.write(head)
            head = b""
        self._connection.write(head + data if head else data)
        if last:
            self._move(RequestEvent.ANSWER_ENDS)
            self._changed.set()
            self._connection.answered()

    def _taken(self) -> bytes:
        parts, self._parts, self.waiting_bytes = self._parts, [], 0
        return b"".join(parts)

    def _count(self, more: int) -> None:
        if self.waiting_bytes > self._limit:
            raise body_too_large(self._limit)
        if self._keep:
            self._keep(more)

    def _say_continue(self) -> None:
        if self._expects_continue and self.phase is not _LEFT:
            self._expects_continue = False
            self._connection.write(_CONTINUE)

    def _move(self, event: RequestEvent) -> None:
        self.phase = REQUEST[self.phase, event]
