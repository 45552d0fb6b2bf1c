"""One connection from a client: requests read from it, each answered in its turn."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from gateway.api.client_transport import ClientTransport
from gateway.api.request_cycle import RequestCycle
from gateway.errors import GatewayError, RequestTimeout
from gateway.policy.admit.connection_limits import overdue
from gateway.upstream.unread import has_unread
from gateway.wire.http import response_head
from gateway.wire.http.phases import (
    COMPLETE,
    CONNECTION,
    DEAF,
    ENDED,
    INCOMPLETE,
    ConnectionEvent,
    ConnectionPhase,
    RequestPhase,
)
from gateway.wire.http.request_reader import RequestReader
from gateway.wire.http.response_head import Framing
from gateway.wire.openai.error_shape import error_body, error_headers

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from gateway.api.connection_registry import ConnectionRegistry
    from gateway.wire.http.request_reader import RequestHead

# nginx's lingering_timeout and lingering_time.
_LINGER_IDLE_S = 5.0
_LINGER_S = 30.0


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
        self._app = app
        self._registry = registry
        self._loop = asyncio.get_running_loop()
        self._reader = RequestReader(self._begin, self._take_body, self._complete_body)
        self._body_since = 0.0  # when the body could have begun
        self._heard_at = self._ended_at = 0.0
        # Since when answers wait to be read, and the bytes sent by then.
        self._blocked: tuple[float, int] | None = None

    # --- what asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a connection, if there is room."""
        self._transport = ClientTransport(cast("asyncio.Transport", transport))
        self.client = self._transport.client
        self.placed = self._registry.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        if self.cycle:
            self.cycle.leave()
        self._transport.resume_writing()
        self._move(ConnectionEvent.LOST)
        self._registry.remove(self)
        # They hold this: memory must not wait for a garbage collector.
        self.cycle = None
        self._reader.close()

    def data_received(self, data: bytes) -> None:
        """Read what has come."""
        phase = self.phase
        if phase in DEAF:
            self._heard_at = self._registry.clock()
            return
        if phase is ConnectionPhase.IDLE or phase is ConnectionPhase.UNREAD:
            self._move(ConnectionEvent.BYTES)
            self._reader.expect(self._registry.limits().header_bytes)
        try:
            self._reader.feed(data)
        except GatewayError as error:
            self._fail(error)
        else:
            if self.phase is ConnectionPhase.HEAD:
                self._registry.check_heads()

    def pause_writing(self) -> None:
        """Much waits to be sent."""
        self._transport.pause_writing()

    def resume_writing(self) -> None:
        """Little waits to be sent."""
        self._transport.resume_writing()

    # --- what its registry and its server ask

    @property
    def ended(self) -> bool:
        """Whether it takes no more requests."""
        return self.phase in ENDED

    @property
    def unread(self) -> bool:
        """Whether the client has sent what nobody has read yet."""
        return has_unread(self._transport.raw)

    @property
    def body_bytes(self) -> int:
        """Bytes of its request's body that have come."""
        return self._reader.body_bytes

    def shutdown(self) -> None:
        """Close when nothing is under way, or as soon as nothing is."""
        if self.cycle and not self.ended:
            self.cycle.stays = False
        else:
            self.close()

    def check(self, now: float, body_s: float) -> None:
        """End it if its client is too slow to send a body or to read an answer."""
        if unsent := self._transport.unsent:
            self._check_reading(now, body_s, self._transport.written - unsent)
            return
        self._blocked = None
        if self.ended:
            if (
                now - max(self._heard_at, self._ended_at) >= _LINGER_IDLE_S
                or now - self._ended_at >= _LINGER_S
            ):
                self.abort()
        elif self.phase is ConnectionPhase.UNREAD:
            self._move(ConnectionEvent.READ)
        elif self.phase is ConnectionPhase.EXCHANGE:
            self._check_sending(now - self._body_since, body_s)

    def refuse(self, error: GatewayError) -> None:
        """Answer for the application, and end; what was wrong is counted, not logged."""
        registry = self._registry
        registry.refused[error.code or ""] += 1
        body = error_body(error)
        headers = error_headers(error, body)
        head = response_head.head(
            error.status, headers, Framing.LENGTH, close=True, common=registry.default_headers
        )
        self._transport.write(head + body)
        self._end(linger=True)

    def close(self) -> None:
        """Take no more requests; the client gets what has been written."""
        if not self.ended:
            self._end(linger=False)

    def abort(self) -> None:
        """Drop it, with all that waits to be sent."""
        self._move(ConnectionEvent.LOST)
        self._transport.abort()

    # --- what its reader tells

    def _begin(self, head: RequestHead) -> None:
        """Have the application serve a request, whose body it reads itself."""
        self._move(ConnectionEvent.HEAD_ENDS)
        registry = self._registry
        self._body_since = registry.clock()
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
        self.cycle = RequestCycle(
            scope,
            self._transport,
            registry.default_headers,
            stays=head.keeps_alive,
            expects_continue=head.expects_continue,
            on_end=self._answered,
        )
        task = self._loop.create_task(self.cycle.run(self._app))
        registry.tasks.add(task)
        task.add_done_callback(registry.tasks.discard)

    def _take_body(self, data: bytes) -> None:
        if self.cycle:
            self.cycle.add(data)

    def _complete_body(self) -> None:
        if self.cycle:
            self.cycle.complete()

    # --- how it goes on

    def _fail(self, error: GatewayError) -> None:
        """Refuse what has come; the application answers where it has begun to."""
        if self.cycle is None:
            self.refuse(error)
            return
        self._move(ConnectionEvent.FAULT)
        self.cycle.stays = False
        self.cycle.fail(error)

    def _answered(self) -> None:
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
        self._transport.resume_reading()
        if self._transport.unsent:
            self._move(ConnectionEvent.ANSWERED)
        else:
            self._move(ConnectionEvent.ANSWERED, ConnectionEvent.READ)

    def _end(self, *, linger: bool) -> None:
        self._ended_at = self._registry.clock()
        self._reader.close()
        self._move(ConnectionEvent.LINGER if linger else ConnectionEvent.CLOSE)
        self._transport.close(half=linger)

    def _check_reading(self, now: float, body_s: float, sent: int) -> None:
        """Drop a client that reads its answers too slowly, and what waits for it."""
        self._blocked = self._blocked or (now, sent)
        since, before = self._blocked
        # What was broken off is not kept for a slow reader: it counts as read no more.
        broken_off = self.ended and self.cycle is not None
        if overdue(now - since, 0 if broken_off else sent - before, body_s):
            self._registry.refused["answer_not_read"] += 1
            self.abort()

    def _check_sending(self, seconds: float, body_s: float) -> None:
        """Refuse a request whose body comes too slowly."""
        count = self.body_bytes
        if (
            self.cycle
            and self.cycle.phase in INCOMPLETE
            and not self._transport.read_paused
            and overdue(seconds, count, body_s)
            # Where the process itself is late, what has come in time may lie unread.
            and (overdue(seconds, count, 2 * body_s) or not self.unread)
        ):
            self._fail(
                RequestTimeout(
                    f"the body comes too slowly: {count:,} bytes in {seconds:.0f} s (limits.body_s)",
                    code="body_timeout",
                )
            )

    def _move(self, *events: ConnectionEvent) -> None:
        before = phase = self.phase
        for event in events:
            phase = CONNECTION[phase, event]
        self.phase = phase
        self._registry.move(self, before, phase)
