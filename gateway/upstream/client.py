"""The only module that talks HTTP to engines."""

from __future__ import annotations

import asyncio
import functools
import logging
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway.connect_failure import Cause, ConnectFailureLog, diagnose
from gateway.errors import EngineFailed, EngineTooSlow, GatewayError, Unavailable
from gateway.upstream.http1 import Connection, ConnectionPool, Origin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    from gateway.model import Buffer, Engine

log = logging.getLogger(__name__)

# The longest body of an ordinary response, where the caller names no limit.
MAX_ANSWER_BYTES = 64 * 1024 * 1024
_RETRY_AFTER_S = 2
# The longest page that an engine has about itself; vLLM's metrics are some 60 kB.
MAX_PAGE_BYTES = 4 * 1024 * 1024
_PORTS = {"http": 80, "https": 443}
_DIED = "engine_died"
# A kept connection that ends this soon after a request was sent had been closed before it arrived.
_STALE_S = 0.25


class EngineResponse:
    """An engine's response once its head is in; header values hold printable characters only.

    Attributes:
        status: HTTP status.
        content_type: as sent.
        retry_after: as sent.
        first_event_by: when a part of the body must be in, on the event loop's clock; None for no limit.
    """

    __slots__ = (
        *("_connection", "_deadline", "_now", "_pool"),
        *("content_type", "first_event_by", "retry_after", "status"),
    )

    def __init__(
        self, connection: Connection, pool: ConnectionPool, first_event_by: float | None, deadline: float
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
        return self.content_type.lower().startswith("text/event-stream")

    async def read(
        self, limit: int = MAX_ANSWER_BYTES, keep: Callable[[int], None] = lambda _: None
    ) -> bytes:
        """Return the whole body.

        Args:
            limit: the most bytes it may have.
            keep: called with the length of each part before the part is kept; may raise, which ends the
                reading.

        Raises:
            EngineFailed: the engine broke off, or sent more than `limit`.
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

    async def read_start(self, limit: int, within_s: float) -> bytes:
        """Return the start of the body: until there are `limit` bytes, or for `within_s` seconds.

        A body that breaks off is no error here. The last part read may exceed the limit.
        """
        body = bytearray()
        until = self._now() + within_s
        with suppress(EngineFailed, EngineTooSlow):
            while len(body) < limit and (data := await self.more(until)):
                body += data
        return bytes(body)

    async def more(self, until: float | None) -> bytes:
        """Return the bytes of the body that have come since the last call; b"" once it is complete.

        Args:
            until: when there must be some, on the event loop's clock; None for no limit but the deadline.

        Raises:
            EngineFailed: the engine broke off.
            EngineTooSlow: nothing came in time, or the deadline passed.
        """
        connection, end = self._connection, self._deadline
        if connection is None:
            raise RuntimeError("the response has been closed")
        started = self._now()
        if started >= end:  # even while data keeps coming
            raise _too_slow(started, end, end, "")
        if until is not None and until < end:
            end = until
        try:
            return await connection.more(end)
        except TimeoutError as error:
            raise _too_slow(started, end, self._deadline, "the engine sent nothing", "engine_idle") from error

    def close(self) -> None:
        """Keep the connection if the response is complete; else close it, which stops the engine's work."""
        if self._connection:
            self._pool.give_back(self._connection)
            self._connection = None


class EngineClient:
    """HTTP to engines over kept connections; an async context manager."""

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._pool = ConnectionPool()
        self._failures = ConnectFailureLog(log, self._loop.time)
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
    ) -> EngineResponse:
        """Send a request; return the response, which the caller closes, once its head is in.

        Args:
            engine: where to.
            path: such as `/v1/chat/completions`.
            body: sent as it is, piece by piece and without a copy.
            headers: request headers beside the engine's own key.
            connect_s: seconds to connect in.
            first_event_s: seconds until a part of the body must be in; None for no limit.
            deadline: when the response must be complete, on the event loop's clock.

        Raises:
            EngineFailed: no connection (code `engine_unreachable`), or it closed early (`engine_died`).
            EngineTooSlow: connecting, the response's head or the whole response took too long.
            Unavailable: the gateway has no sockets left.
        """
        length = f"Content-Length: {sum(map(len, body))}\r\n"
        origin, opening = _opening("POST", engine.url, path, engine.api_key, engine.authorities)
        pieces = (opening + _lines(headers, length), *body)
        first_event_by = None if first_event_s is None else self._loop.time() + first_event_s
        end = deadline if first_event_by is None else min(deadline, first_event_by)
        connection = await self._exchange(engine, origin, pieces, connect_s, end, deadline, is_work=True)
        return EngineResponse(connection, self._pool, first_event_by, deadline)

    async def _exchange(
        self,
        engine: Engine,
        origin: Origin,
        pieces: tuple[Buffer, ...],
        connect_s: float,
        end: float,
        deadline: float,
        *,
        is_work: bool = False,
    ) -> Connection:
        """Send a request; return the connection once the response's head is in.

        Args:
            engine: where to, for the log.
            origin: where to.
            pieces: what is sent.
            connect_s: seconds to connect in.
            end: when the head must be in.
            deadline: when the whole response must be.
            is_work: it may be what the engine dies of, so that it must not be sent again late.

        Where a kept connection ends without a byte of a response, the request is sent again over a new one.
        """
        started = self._loop.time()
        try:
            kept = self._pool.take(origin)
            connection = kept or await self._connect(engine, origin, connect_s, end)
            while True:
                try:
                    connection.send(pieces)
                    await connection.head(end)
                except EngineFailed as error:
                    in_time = not is_work or self._loop.time() - started <= _STALE_S
                    if not (kept and in_time and error.code == _DIED and connection.is_unanswered()):
                        raise
                    kept = None
                    try:
                        connection = await self._connect(engine, origin, connect_s, end)
                    except GatewayError:
                        if is_work:  # the engine may have died of it
                            raise error from None
                        raise
                except BaseException:
                    connection.close()
                    raise
                else:
                    return connection
        except TimeoutError as error:
            raise _too_slow(
                started, end, deadline, "the engine did not begin to answer", "engine_slow"
            ) from error

    async def _connect(self, engine: Engine, origin: Origin, connect_s: float, end: float) -> Connection:
        """Return a new connection.

        Raises:
            EngineFailed, Unavailable: it cannot be made.
            EngineTooSlow: `connect_s` seconds passed first.
            TimeoutError: `end` came first.
        """
        now = self._loop.time
        while True:
            started = now()
            checked_at: list[float] = []
            check = self._loop.call_later(connect_s / 2, _note_time, checked_at, now)
            try:
                async with asyncio.timeout_at(min(started + connect_s, end)) as limit:
                    return await self._pool.connect(origin)
            except OSError as error:
                if not limit.expired():
                    raise self._failed(engine, error) from error
                # If the event loop stood still meanwhile, the connection may long have been there.
                waited = bool(checked_at) and checked_at[0] - started < 0.75 * connect_s
                if waited:
                    self._failures.write(f"engine {engine.name}", Cause.TIMEOUT)
                if started + connect_s >= end:
                    raise TimeoutError from error
                if waited:
                    raise EngineTooSlow(
                        "connecting to the engine took too long", code="connect_timeout"
                    ) from error
            finally:
                check.cancel()

    def _failed(self, engine: Engine, error: OSError) -> EngineFailed | Unavailable:
        """Log why there is no connection; return what the client is told."""
        cause, detail = diagnose(error)
        self._failures.write(f"engine {engine.name}", cause, detail)
        if cause in (Cause.NO_SOCKETS, Cause.NO_LOCAL_ADDRESS):
            return Unavailable(
                f"{cause.words} ({cause.advice})", code="no_sockets", retry_after=_RETRY_AFTER_S
            )
        return EngineFailed(f"no connection to the engine: {cause.words}", code="engine_unreachable")

    async def check_health(self, engine: Engine, within_s: float) -> None:
        """Ask an engine's /health.

        Raises:
            EngineFailed: no connection, or any answer but 200.
            EngineTooSlow: there was no answer in time.
            Unavailable: the gateway has no sockets left.
        """
        response = await self._get(engine, "/health", within_s)
        response.close()
        if response.status != 200:
            raise EngineFailed(
                f"the engine answered /health with HTTP {response.status}, not 200{_advice(response.status)}"
            )

    async def healthy(self, engine: Engine, within_s: float) -> bool | None:
        """Return whether an engine's /health says so; None where there was no answer in time."""
        try:
            await self.check_health(engine, within_s)
        except EngineFailed:
            return False
        except (EngineTooSlow, Unavailable):
            return None
        return True

    async def page(self, engine: Engine, path: str, within_s: float) -> bytes:
        """Return one of an engine's pages about itself, such as /metrics; vLLM wants its key for /v1/models.

        Raises:
            EngineFailed: no connection, any status but 200, it broke off, or sent over MAX_PAGE_BYTES.
            EngineTooSlow: the page was not complete in time.
        """
        page = bytearray()
        try:
            response = await self._get(engine, path, within_s, engine.api_key)
            try:
                if response.status != 200:
                    raise EngineFailed(f"the engine answered {path} with HTTP {response.status}")
                while data := await response.more(None):
                    page += data
                    if len(page) > MAX_PAGE_BYTES:
                        raise EngineFailed(f"the engine's {path} is over {MAX_PAGE_BYTES:,} bytes")
            finally:
                response.close()
        except EngineTooSlow as error:
            raise EngineTooSlow(f"the engine's {path} took over {within_s:.1f} s") from error
        return bytes(page)

    async def _get(self, engine: Engine, path: str, within_s: float, key: str = "") -> EngineResponse:
        origin, opening = _opening("GET", engine.url, path, key, engine.authorities)
        deadline = self._loop.time() + within_s
        request = (opening + b"\r\n",)
        connection = await self._exchange(engine, origin, request, within_s, deadline, deadline)
        return EngineResponse(connection, self._pool, None, deadline)


@functools.lru_cache(4096)
def _opening(method: str, url: str, path: str, key: str, authorities: str = "") -> tuple[Origin, bytes]:
    """Return where a request goes, and the start of its head."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    named = f"[{host}]" if ":" in host else host
    headers = {
        "Host": named if port == _PORTS[parts.scheme] else f"{named}:{port}",
        "Accept-Encoding": "identity",
    }
    if key:
        headers["Authorization"] = f"Bearer {key}"
    line = f"{method} {parts.path}{path} HTTP/1.1\r\n"
    return Origin(parts.scheme == "https", host, port, authorities), _lines(headers, line, b"")


def _lines(headers: Mapping[str, str], first: str, end: bytes = b"\r\n") -> bytes:
    """Return the lines of headers, after `first` and before `end`."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\r") != len(headers) or lines.count("\n") != len(headers) or "\0" in lines:
        raise ValueError("a header must not hold line breaks")
    return (first + lines).encode() + end


def _advice(status: int) -> str:
    """Return what an operator should check where /health has another status than 200."""
    match status:
        case 301 | 302 | 303 | 307 | 308:
            return ": give the address that it redirects to"
        case 401 | 403 | 407:
            return ": it, or what is in front of it, must let /health through without a key"
        case 400:
            return ": check whether its URL should begin with https://"
        case 404 | 405:
            return ": check its address, port and path prefix; is it an inference server?"
    return ""


def _note_time(times: list[float], now: Callable[[], float]) -> None:
    times.append(now())


def _too_slow(started: float, end: float, deadline: float, what: str, code: str = "") -> EngineTooSlow:
    if end == deadline:
        what, code = "the request's time ran out (timeouts.total_s)", "total_timeout"
    return EngineTooSlow(f"{what} within {max(0.0, end - started):.1f} s", code=code)
