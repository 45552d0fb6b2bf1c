"""The only module that talks HTTP to engines."""

from __future__ import annotations

import asyncio
import errno
import functools
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError

from gateway.errors import EngineFailed, EngineTooSlow, Unavailable
from gateway.unread import has_unread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from typing import Self

    from aiohttp.abc import AbstractStreamWriter
    from aiohttp.client_reqrep import ConnectionKey
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

    from gateway.model import Engine

# vLLM closes idle connections after 5 s; ours must be gone before, or a request meets a closed one. An engine
# whose event loop has stood still for a while closes first, and reads what has arrived after.
KEEP_ALIVE_S = 2
# The longest ordinary answer taken from an engine, where nobody says.
MAX_ANSWER_BYTES = 64 * 1024 * 1024
# Connections that fail for want of something on this side.
_OUR_LIMITS = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS)
_RETRY_AFTER_S = 2
# What is passed on of a header that an engine sends.
_HEADER_CHARS = 256
# The longest page about itself taken from one; vLLM's metrics are some 60 kB.
MAX_PAGE_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """An engine's answer once its head is in; header values hold printable characters only.

    Attributes:
        status: HTTP status.
        content_type: as sent.
        retry_after: as sent.
        first_event_by: when something of the body must be in, on the event loop's clock; None for no limit.
    """

    status: int
    content_type: str
    retry_after: str | None
    first_event_by: float | None
    _response: aiohttp.ClientResponse
    _deadline: float

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
        until = _now() + within_s
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
        with _failures("the engine broke off its answer"):
            async with _limit(self._deadline, until, "the engine sent nothing", "engine_idle"):
                return await self._response.content.readany()


def _now() -> float:
    return asyncio.get_running_loop().time()


def _note_time(times: list[float]) -> None:
    times.append(_now())


@contextmanager
def _failures(died: str) -> Iterator[None]:
    """Turn aiohttp's errors into ours."""
    try:
        yield
    except aiohttp.ClientConnectorError as error:
        if error.errno in _OUR_LIMITS:
            raise Unavailable(
                "the gateway has no sockets left (raise its limit of open files)",
                code="no_sockets",
                retry_after=_RETRY_AFTER_S,
            ) from error
        raise EngineFailed("no connection to the engine", code="engine_unreachable") from error
    except aiohttp.ConnectionTimeoutError as error:
        raise EngineTooSlow("connecting to the engine took too long", code="connect_timeout") from error
    except (aiohttp.ClientResponseError, HttpProcessingError) as error:
        raise EngineFailed("the engine's answer is no HTTP", code="engine_garbage") from error
    except (aiohttp.ClientError, ConnectionError) as error:
        raise EngineFailed(died, code="engine_died") from error


def _key(engine: Engine) -> dict[str, str]:
    return {"Authorization": f"Bearer {engine.api_key}"} if engine.api_key else {}


def _printable(value: str) -> str:
    """A header value that can be passed on; a broken engine's control characters could not be."""
    return "".join(filter(str.isprintable, value[:_HEADER_CHARS]))


@asynccontextmanager
async def _limit(deadline: float, until: float | None, what: str, code: str) -> AsyncIterator[None]:
    """Bound a wait by the request's deadline and, if given, by a nearer moment."""
    started = _now()
    end = deadline if until is None else min(deadline, until)
    try:
        async with asyncio.timeout_at(end):
            yield
    except aiohttp.ConnectionTimeoutError:
        raise
    except TimeoutError as error:
        if end == deadline:
            what, code = "the request's time ran out (timeouts.total_s)", "total_timeout"
        raise EngineTooSlow(f"{what} within {max(0.0, end - started):.1f} s", code=code) from error


class _Body(aiohttp.Payload):
    """A body sent in slices; aiohttp warns of bytes this long, and would read a BytesIO in threads."""

    _SLICE = 256 * 1024

    def __init__(self, body: bytes) -> None:
        super().__init__(body, content_type="application/json")
        self._size = len(body)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return str(self._value, encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        view = memoryview(self._value)
        for start in range(0, len(view), self._SLICE):
            await writer.write(view[start : start + self._SLICE])


class _Handler(ResponseHandler):
    """aiohttp's; but what breaks the framing of a body ends a wait for more of it, too."""

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        body = self._payload
        super().set_exception(exc, *cause)
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(exc)


class _Connector(aiohttp.TCPConnector):
    """aiohttp's; but a kept connection on which something has come unasked is not used again.

    It would be taken for the answer to the next request, which is another client's.
    """

    def __init__(self) -> None:
        super().__init__(limit=0, keepalive_timeout=KEEP_ALIVE_S)
        self._factory = functools.partial(_Handler, loop=asyncio.get_running_loop())  # type: ignore[assignment]

    async def _get(self, key: ConnectionKey, traces: list[Trace]) -> Connection | None:
        while (kept := await super()._get(key, traces)) and not _is_quiet(kept):
            kept.close()
        return kept


def _is_quiet(kept: Connection) -> bool:
    """Whether nothing has come since its last answer, be it only to the socket, and be it an end."""
    if kept.protocol is None or kept.protocol.should_close or kept.transport is None:
        return False
    return not has_unread(kept.transport)


class EngineClient:
    """HTTP to engines over kept connections; an async context manager."""

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=_Connector(),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
            headers={"Accept-Encoding": "identity"},
            auto_decompress=False,  # whoever compresses all the same shall not choose how much that becomes
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    @asynccontextmanager
    async def post(
        self,
        engine: Engine,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        connect_s: float,
        first_event_s: float | None,
        deadline: float,
    ) -> AsyncIterator[Answer]:
        """Send a body and yield the answer; leaving the block early closes the connection under the engine.

        Args:
            engine: where to.
            path: such as `/v1/chat/completions`.
            body: sent as it is.
            headers: request headers beside the engine's own key.
            connect_s: seconds to connect in.
            first_event_s: seconds until something of the body must be in; None for no limit.
            deadline: when the answer must be complete, on the event loop's clock.

        Raises:
            EngineFailed: no connection (code `engine_unreachable`), or it closed early (`engine_died`).
            EngineTooSlow: connecting, the answer's head or the whole answer took too long.
        """
        sent = self._sent(engine.url + path, body, {**headers, **_key(engine)}, connect_s)
        first_event_by = None if first_event_s is None else _now() + first_event_s
        with _failures("the engine closed the connection without an answer"):
            async with _limit(deadline, first_event_by, "the engine did not begin to answer", "engine_slow"):
                response = await sent
        try:
            yield Answer(
                response.status,
                _printable(response.headers.get("Content-Type", "")),
                _printable(response.headers.get("Retry-After", "")) or None,
                first_event_by,
                response,
                deadline,
            )
        finally:
            # A finished connection goes back to the pool; an unfinished one is closed, and its work aborted.
            if response.content.at_eof():
                response.release()
            else:
                response.close()

    async def _sent(
        self, url: str, body: bytes, headers: Mapping[str, str], connect_s: float
    ) -> aiohttp.ClientResponse:
        """Send a body, and return what is answered once its head is in."""
        loop = asyncio.get_running_loop()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_s)
        while True:
            started = loop.time()
            looked: list[float] = []
            look = loop.call_later(connect_s / 2, _note_time, looked)
            try:
                return await self._session.post(
                    url, data=_Body(body), headers=headers, timeout=timeout, allow_redirects=False
                )
            except aiohttp.ConnectionTimeoutError:
                # Whoever has stood still in between cannot tell: the connection may long have been there.
                if looked and looked[0] - started < 0.75 * connect_s:
                    raise
            finally:
                look.cancel()

    async def healthy(self, engine: Engine, within_s: float) -> bool | None:
        """Ask an engine's /health: True or False by its answer, None where there was none in time."""
        timeout = aiohttp.ClientTimeout(total=within_s)
        try:
            async with self._session.get(
                engine.url + "/health", timeout=timeout, allow_redirects=False
            ) as answer:
                return answer.status == 200
        except TimeoutError:
            return None
        except aiohttp.ClientConnectorError as error:
            return None if error.errno in _OUR_LIMITS else False
        except (aiohttp.ClientError, ConnectionError):
            return False

    async def page(self, engine: Engine, path: str, within_s: float) -> bytes:
        """Return one of an engine's pages about itself, such as /metrics; vLLM wants its key for /v1/models.

        Raises:
            EngineFailed: no connection, any status but 200, it broke off, or sent over MAX_PAGE_BYTES.
            EngineTooSlow: the page was not complete in time.
        """
        timeout = aiohttp.ClientTimeout(total=within_s)
        page = bytearray()
        try:
            with _failures(f"the engine broke off its {path}"):
                async with self._session.get(
                    engine.url + path, headers=_key(engine), timeout=timeout, allow_redirects=False
                ) as answer:
                    if answer.status != 200:
                        raise EngineFailed(f"the engine answered {path} with HTTP {answer.status}")
                    async for data in answer.content.iter_any():
                        page += data
                        if len(page) > MAX_PAGE_BYTES:
                            raise EngineFailed(f"the engine's {path} is over {MAX_PAGE_BYTES:,} bytes")
        except TimeoutError as error:
            raise EngineTooSlow(f"the engine's {path} took over {within_s:.1f} s") from error
        return bytes(page)
