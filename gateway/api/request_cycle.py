"""A request and its answer, for the application that serves it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from gateway.errors import BodyTooLarge, ClientLeft, GatewayError, InternalError
from gateway.wire.http import response_head
from gateway.wire.http.phases import COMPLETE, INCOMPLETE, REQUEST, UNANSWERED, RequestEvent, RequestPhase
from gateway.wire.http.response_head import Framing
from gateway.wire.openai.error_shape import error_body, error_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from starlette.types import ASGIApp, Message, Scope

    from gateway.api.client_transport import ClientTransport

log = logging.getLogger(__name__)

# Where a scope's `extensions` have the request's RequestCycle.
CYCLE = "ocr_gateway.cycle"

_PART_BYTES = 16 * 1024
# Of a body that nobody takes, so much is read.
_UNREAD_BYTES = 64 * 1024
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_LEFT, _CHUNKED = RequestPhase.LEFT, Framing.CHUNKED


class RequestCycle:
    """A request and its answer.

    It is an ASGI application's `receive` and `send`. Who finds it under CYCLE in the scope's `extensions` may
    take its body in one piece, be called when the client leaves, and write the answer, which costs far less
    than ASGI's messages and somebody who waits for them.

    Attributes:
        phase: how far it has come; see gateway.wire.http.phases.
        stays: the connection may have another request behind this one.
        on_left: called if the connection is lost before the answer is complete.
    """

    def __init__(
        self,
        scope: Scope,
        transport: ClientTransport,
        common: Sequence[tuple[bytes, bytes]],
        *,
        stays: bool,
        expects_continue: bool,
        on_end: Callable[[], None],
    ) -> None:
        """Begin a request whose head has come.

        Args:
            scope: ASGI's, to which it adds itself.
            transport: to its client.
            common: headers of every answer.
            stays: see Attributes.
            expects_continue: the client waits to be told that it may send the body.
            on_end: called when the answer is complete, or broken off, but not when the client has left.
        """
        self.phase = RequestPhase.RECEIVING
        self.stays = stays
        self.on_left: Callable[[], None] | None = None
        self._scope = scope
        self._transport = transport
        self._common = common
        self._expects_continue = expects_continue
        self._on_end = on_end
        self._changed = asyncio.Event()
        self._fault: GatewayError | None = None
        self._body: bytes | bytearray = b""
        # Once the body is taken in one piece: its parts, their length and the limit, and who hears of them.
        self._parts: list[bytes | bytearray] = []
        self._length = self._limit = 0
        self._keep: Callable[[int], None] | None = None
        self._framing: Framing | None = None
        self._left = 0  # of a body of known length
        self._head = b""
        scope["extensions"] = {CYCLE: self}

    # --- what the connection tells

    def add(self, data: bytes) -> None:
        """Take a part of the body.

        Raises:
            BodyTooLarge: it is over the limit.
            GatewayError: what the `keep` of `whole` raises.
        """
        if self._keep is not None:
            self.take(data)
            return
        early = self._body
        # What comes along with the head, often all, is not copied: of a body of 200 kB that took 20 us.
        if not early:
            self._body = data
        elif isinstance(early, bytearray):
            early += data
        else:
            self._body = bytearray(early) + data
        if len(self._body) > _UNREAD_BYTES:
            self._transport.pause_reading()
        self._changed.set()

    def complete(self) -> None:
        """Note that the body is complete."""
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
                self._put(body, last=True)
            elif self.phase is not _LEFT and self.phase not in COMPLETE:
                self._on_end()

    async def receive(self) -> Message:
        """Return what of the body has come since.

        Raises:
            GatewayError: no more will.
        """
        self._say_continue()
        if self.phase is not _LEFT and self.phase not in COMPLETE:
            self._transport.resume_reading()
            await self._changed.wait()
            self._changed.clear()
        if self.phase is _LEFT or self.phase in COMPLETE:
            return {"type": "http.disconnect"}
        if self._fault:
            raise self._fault
        body, self._body = bytes(self._body), b""
        return {"type": "http.request", "body": body, "more_body": self.phase in INCOMPLETE}

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
        early, self._body = self._body, b""
        self.take(early)
        self._say_continue()
        self._transport.resume_reading()
        while self.phase is RequestPhase.RECEIVING:
            self._changed.clear()
            await self._changed.wait()
        parts, self._parts = self._parts, []
        if self.phase is not RequestPhase.RECEIVED:
            raise self._fault or ClientLeft
        return b"".join(parts)

    def take(self, data: bytes | bytearray) -> None:
        """Keep a part of a body that is taken in one piece.

        Raises:
            BodyTooLarge: it is over the limit.
            GatewayError: what `keep` raises.
        """
        self._length += len(data)
        if self._length > self._limit:
            raise too_large(self._limit)
        if self._keep:
            self._keep(len(data))
        # A list of parts is joined once; but one of two bytes would cost thirty times what is counted.
        if len(data) >= _PART_BYTES:
            self._parts.append(data)
        elif self._parts and isinstance(self._parts[-1], bytearray):
            self._parts[-1] += data
        else:
            self._parts.append(bytearray(data))

    @property
    def answering(self) -> bool:
        """Whether an answer has begun."""
        return self.phase not in UNANSWERED

    async def send(self, message: Message) -> None:
        """Send a part of the answer; of several headers of one name, the last."""
        if message["type"] == "http.response.start":
            raw = message.get("headers", ())
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw}
            close = "close" in headers.pop("connection", "")
            self.start(message["status"], headers, close=close)
        else:
            await self.write(message.get("body", b""), last=not message.get("more_body", False))

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
        framing = response_head.framing(method, version, status, headers)
        # Behind half a request nothing can be told from its rest.
        stays = self.stays and not close and self.phase is RequestPhase.RECEIVED
        stays = stays and framing is not Framing.UNTIL_CLOSE
        self._head = response_head.head(status, headers, framing, close=not stays, common=self._common)
        self.stays, self._framing = stays, framing
        self._left = int(headers["content-length"]) if framing is Framing.LENGTH else 0
        self._expects_continue = False
        self._move(RequestEvent.ANSWER_BEGINS)

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """Send more of the body, once the client has read enough of what went before.

        Raises:
            ValueError: it is not as long as was announced.
        """
        if self._transport.write_paused and self.phase is not _LEFT:
            await self._transport.drain()
        if self.phase is not _LEFT:
            self._put(data, last=last)

    def _put(self, data: bytes, *, last: bool) -> None:
        if self._framing is _CHUNKED:
            data = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            data += b"0\r\n\r\n" if last else b""
        elif self._framing is Framing.LENGTH:
            self._left -= len(data)
            if self._left and (last or self._left < 0):
                raise ValueError("a body of another length than announced")
        elif self._framing is Framing.NO_BODY:
            data = b""
        head, self._head = self._head, b""
        if len(data) > _PART_BYTES and head:
            self._transport.write(head)
            head = b""
        self._transport.write(head + data if head else data)
        if last:
            self._move(RequestEvent.ANSWER_ENDS)
            self._changed.set()
            self._on_end()

    def _say_continue(self) -> None:
        if self._expects_continue and self.phase is not _LEFT:
            self._expects_continue = False
            self._transport.write(_CONTINUE)

    def _move(self, event: RequestEvent) -> None:
        self.phase = REQUEST[self.phase, event]


def too_large(limit: int) -> BodyTooLarge:
    """Return the refusal of a body over the limit."""
    return BodyTooLarge(
        f"the body is over the limit of {limit:,} bytes (limits.body_bytes)", code="body_too_large"
    )
