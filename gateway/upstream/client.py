"""The only module that talks HTTP to engines."""

from __future__ import annotations

import asyncio
import errno
import functools
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway.errors import EngineFailed, EngineTooSlow, Unavailable
from gateway.upstream.http1 import Connection, Origin, Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    from gateway.model import Buffer, Engine

# The longest ordinary answer taken from an engine, where nobody says.
MAX_ANSWER_BYTES = 64 * 1024 * 1024
# Connections that fail for want of something on this side.
_OUR_LIMITS = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS)
_RETRY_AFTER_S = 2
# The longest page about itself taken from one; vLLM's metrics are some 60 kB.
MAX_PAGE_BYTES = 4 * 1024 * 1024
_PORTS = {"http": 80, "https": 443}
_NO_SOCKETS, _DIED = "no_sockets", "engine_died"


class Answer:
    """An engine's answer once its head is in; header values hold printable characters only.

    Attributes:
        status: HTTP status.
        content_type: as sent.
        retry_after: as sent.
        first_event_by: when something of the body must be in, on the event loop's clock; None for no limit.
    """

    __slots__ = (
        *("_connection", "_deadline", "_now", "_pool"),
        *("content_type", "first_event_by", "retry_after", "status"),
    )

    def __init__(
        self, connection: Connection, pool: Pool, first_event_by: float | None, deadline: float
    ) -> None:
        self.status = connection.status
        self.content_type = connection.content_type
        self.retry_after = connection.retry_after or None
        self.first_event_by = first_event_by
        self._connection: Connection | None = connection
        self._pool = pool
        self._deadline = deadline
        self._now = asyncio.get_running_loop().time

    @property
    def is_stream(self) -> bool:
        """Whether the body is a stream of events."""
        return self.content_type.startswith("text/event-stream")

    async def read(
        self, limit: int = MAX_ANSWER_BYTES, keep: Callable[[int], None] = lambda _: None
    ) -> bytes:
        """Return the whole body.

        Args:
            limit: the most bytes it may have.
            keep: hears of the bytes of each part before it is kept; what it raises ends the reading.

        Raises:
            EngineFailed: the engine broke off, or sent more than that.
            EngineTooSlow: the deadline passed.
        """
        body = bytearray()
        until = self.first_event_by
        while data := await self.more(until):
            if len(body) + len(data) > limit:
                raise EngineFailed(
                    f"the engine's answer is longer than {limit:,} bytes (limits.answer_bytes)",
                    code="answer_too_long",
                )
            keep(len(data))
            body += data
            until = None
        return bytes(body)

    async def glimpse(self, limit: int, within_s: float) -> bytes:
        """Return what of the body comes within some bytes and seconds, however it ends."""
        body = bytearray()
        until = self._now() + within_s
        with suppress(EngineFailed, EngineTooSlow):
            while len(body) < limit and (data := await self.more(until)):
                body += data
        return bytes(body)

    async def more(self, until: float | None) -> bytes:
        """Return what of the body has come since; nothing once it is complete.

        Args:
            until: when something must have come, on the event loop's clock; None for no limit.

        Raises:
            EngineFailed: the engine broke off.
            EngineTooSlow: nothing came in time, or the deadline passed.
        """
        connection, end = self._connection, self._deadline
        if connection is None:
            raise RuntimeError("the answer has been closed")
        started = self._now()
        if started >= end:  # be it while something keeps coming
            raise _too_slow(started, end, end, "")
        if until is not None and until < end:
            end = until
        try:
            return await connection.more(end)
        except TimeoutError as error:
            raise _too_slow(started, end, self._deadline, "the engine sent nothing", "engine_idle") from error

    def close(self) -> None:
        """End it: the connection is kept if the answer is complete, else closed under the engine's work."""
        if self._connection:
            self._pool.give(self._connection)
            self._connection = None


class EngineClient:
    """HTTP to engines over kept connections; an async context manager."""

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._pool = Pool()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close()

    async def send(
        self,
        engine: Engine,
        path: str,
        body: tuple[Buffer, ...],
        headers: Mapping[str, str],
        *,
        connect_s: float,
        first_event_s: float | None,
        deadline: float,
    ) -> Answer:
        """Send a body and return the answer, to be closed.

        Args:
            engine: where to.
            path: such as `/v1/chat/completions`.
            body: sent as it is, piece by piece and without a copy.
            headers: request headers beside the engine's own key.
            connect_s: seconds to connect in.
            first_event_s: seconds until something of the body must be in; None for no limit.
            deadline: when the answer must be complete, on the event loop's clock.

        Raises:
            EngineFailed: no connection (code `engine_unreachable`), or it closed early (`engine_died`).
            EngineTooSlow: connecting, the answer's head or the whole answer took too long.
            Unavailable: the gateway has no sockets left.
        """
        length = f"Content-Length: {sum(map(len, body))}\r\n"
        origin, opening = _opening("POST", engine.url, path, engine.api_key)
        pieces = (opening + _lines(headers, length), *body)
        first_event_by = None if first_event_s is None else self._loop.time() + first_event_s
        end = deadline if first_event_by is None else min(deadline, first_event_by)
        connection = await self._asked(origin, pieces, connect_s, end, deadline)
        return Answer(connection, self._pool, first_event_by, deadline)

    async def _asked(
        self,
        origin: Origin,
        pieces: tuple[Buffer, ...],
        connect_s: float,
        end: float,
        deadline: float,
        *,
        again: bool = False,
    ) -> Connection:
        """Send a request; return the connection once the answer's head is in.

        Args:
            origin: where to.
            pieces: what is sent.
            connect_s: seconds to connect in.
            end: when the head must be in.
            deadline: when the whole answer must be.
            again: send it over a new connection where a kept one dies of it.
        """
        started = self._loop.time()
        try:
            kept = self._pool.take(origin)
            connection = kept or await self._connected(origin, connect_s, end)
            while True:
                try:
                    connection.send(pieces)
                    await connection.head(end)
                except EngineFailed as error:
                    if not (again and kept and error.code == _DIED):
                        raise
                    kept, connection = None, await self._connected(origin, connect_s, end)
                except BaseException:
                    connection.close()
                    raise
                else:
                    return connection
        except TimeoutError as error:
            raise _too_slow(
                started, end, deadline, "the engine did not begin to answer", "engine_slow"
            ) from error

    async def _connected(self, origin: Origin, connect_s: float, end: float) -> Connection:
        """Return a new connection.

        Raises:
            EngineFailed, EngineTooSlow, Unavailable: there is none, or not in so many seconds.
            TimeoutError: the end has come.
        """
        now = self._loop.time
        while True:
            started = now()
            looked: list[float] = []
            look = self._loop.call_later(connect_s / 2, _note_time, looked, now)
            try:
                async with asyncio.timeout_at(min(started + connect_s, end)) as limit:
                    return await self._pool.connect(origin)
            except OSError as error:
                if not limit.expired():
                    raise _no_connection(error) from error
                if started + connect_s >= end:
                    raise TimeoutError from error
                # Whoever has stood still in between cannot tell: the connection may long have been there.
                if looked and looked[0] - started < 0.75 * connect_s:
                    raise EngineTooSlow(
                        "connecting to the engine took too long", code="connect_timeout"
                    ) from error
            finally:
                look.cancel()

    async def healthy(self, engine: Engine, within_s: float) -> bool | None:
        """Ask an engine's /health: True or False by its answer, None where there was none in time."""
        try:
            answer = await self._get(engine, "/health", within_s)
        except EngineFailed:
            return False
        except (EngineTooSlow, Unavailable):
            return None
        answer.close()
        return answer.status == 200

    async def page(self, engine: Engine, path: str, within_s: float) -> bytes:
        """Return one of an engine's pages about itself, such as /metrics; vLLM wants its key for /v1/models.

        Raises:
            EngineFailed: no connection, any status but 200, it broke off, or sent over MAX_PAGE_BYTES.
            EngineTooSlow: the page was not complete in time.
        """
        page = bytearray()
        try:
            answer = await self._get(engine, path, within_s, engine.api_key)
            try:
                if answer.status != 200:
                    raise EngineFailed(f"the engine answered {path} with HTTP {answer.status}")
                while data := await answer.more(None):
                    page += data
                    if len(page) > MAX_PAGE_BYTES:
                        raise EngineFailed(f"the engine's {path} is over {MAX_PAGE_BYTES:,} bytes")
            finally:
                answer.close()
        except EngineTooSlow as error:
            raise EngineTooSlow(f"the engine's {path} took over {within_s:.1f} s") from error
        return bytes(page)

    async def _get(self, engine: Engine, path: str, within_s: float, key: str = "") -> Answer:
        origin, opening = _opening("GET", engine.url, path, key)
        deadline = self._loop.time() + within_s
        request = (opening + b"\r\n",)
        connection = await self._asked(origin, request, within_s, deadline, deadline, again=True)
        return Answer(connection, self._pool, None, deadline)


@functools.lru_cache(4096)
def _opening(method: str, url: str, path: str, key: str) -> tuple[Origin, bytes]:
    """Whom to ask, and how a request's head begins."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    named = f"[{host}]" if ":" in host else host
    headers = {
        "Host": named if port == _PORTS[parts.scheme] else f"{named}:{port}",
        "Accept-Encoding": "identity",
    }
    if key:
        headers["Authorization"] = f"Bearer {key}"
    return Origin(parts.scheme == "https", host, port), _lines(headers, f"{method} {path} HTTP/1.1\r\n", b"")


def _lines(headers: Mapping[str, str], first: str, end: bytes = b"\r\n") -> bytes:
    """Write a part of a head."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\r") != len(headers) or lines.count("\n") != len(headers) or "\0" in lines:
        raise ValueError("a header must not hold line breaks")
    return (first + lines).encode() + end


def _note_time(times: list[float], now: Callable[[], float]) -> None:
    times.append(now())


def _no_connection(error: OSError) -> EngineFailed | Unavailable:
    if error.errno in _OUR_LIMITS:
        return Unavailable(
            "the gateway has no sockets left (raise its limit of open files)",
            code=_NO_SOCKETS,
            retry_after=_RETRY_AFTER_S,
        )
    return EngineFailed("no connection to the engine", code="engine_unreachable")


def _too_slow(started: float, end: float, deadline: float, what: str, code: str = "") -> EngineTooSlow:
    if end == deadline:
        what, code = "the request's time ran out (timeouts.total_s)", "total_timeout"
    return EngineTooSlow(f"{what} within {max(0.0, end - started):.1f} s", code=code)
