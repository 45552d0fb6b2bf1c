"""POST /v1/ocr as a stream, tried again where that may help. The only module here that talks HTTP."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import aiohttp

from gateway import __version__
from gateway.errors import ConfigError, GatewayError
from gateway.tools.ocr.document_result import Answer, described
from gateway.wire.sse import EventSplitter, event_data

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path
    from random import Random

ATTEMPTS = 6
# Pages come as they are ready, signs of life in between; before the first one a document waits for its turn.
_SILENCE_S = 300.0
_CONNECT_S = 10.0
_FIRST_PAUSE_S = 0.5
_LONGEST_WAIT_S = 120.0
_AGAIN = frozenset({429, 502, 503, 504})
_AGAIN_KINDS = frozenset({"rate_limit_exceeded", "engine_error", "service_unavailable", "engine_timeout"})
_ERROR_BYTES = 64 * 1024
_EVENT_BYTES = 64 * 1024 * 1024


class Failed(Exception):
    """One document cannot be read; the text says why."""


class Stopped(Exception):
    """No document can be read any more; the text says why."""


class _Again(Exception):
    """An attempt that failed and may be made again, after `wait_s` where the server said when."""

    def __init__(self, message: str, wait_s: float | None = None, *, gone: bool = False) -> None:
        super().__init__(message)
        self.wait_s = wait_s
        self.gone = gone


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked of each document.

    Attributes:
        route: of all pages; None where the server sorts them.
        pages: which, from 0 on; None for all.
        schema: a JSON Schema of the values wanted, or an object with `type: json_schema` around it.
    """

    route: str | None = None
    pages: tuple[int, ...] | None = None
    schema: dict[str, Any] | None = None

    def fields(self) -> dict[str, str]:
        """Return the form's fields."""
        fields = {"stream": "true"}
        if self.pages is not None:
            fields["pages"] = json.dumps(self.pages)
        if self.schema is not None:
            wrapped = {"type": "json_schema", "json_schema": {"name": "document", "schema": self.schema}}
            asked = self.schema if self.schema.get("type") == "json_schema" else wrapped
            fields["document_annotation_format"] = json.dumps(asked)
        return fields


class Reader:
    """Sends documents to one gateway; an asynchronous context manager."""

    def __init__(
        self,
        url: str,
        key: str,
        wish: Wish,
        rng: Random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Prepare.

        Args:
            url: the gateway's base URL, with or without `/v1`.
            key: its API key; empty for none.
            wish: what is asked.
            rng: spreads attempts.
            sleep: waits between them, in seconds.

        Raises:
            ConfigError: it is no such URL.
        """
        self.url = _base(url)
        self._headers = {"user-agent": f"ocr-gateway-ocr/{__version__}"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        if wish.route:
            self._headers["x-ocr-route"] = wish.route
        self._wish = wish
        self._rng = rng
        self._sleep = sleep
        self._model = ""

    async def __aenter__(self) -> Self:
        """Ask the gateway for its model.

        Raises:
            Stopped: nobody is there, or not for us.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S)
        # Which request a closed connection has lost nobody could tell.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector, headers=self._headers)
        try:
            self._model = await self._models()
        except BaseException:
            await self._session.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close its connections."""
        await self._session.close()

    async def read(self, path: Path, progress: Callable[[Answer], None]) -> Answer:
        """Return what a document holds.

        Args:
            path: the document.
            progress: is told of what has come so far; an attempt made again starts anew.

        Raises:
            Failed: this one cannot be read.
            Stopped: no other could, either.
        """
        for attempt in range(ATTEMPTS):
            try:
                return await self._attempt(path, progress)
            except _Again as again:
                last = attempt == ATTEMPTS - 1
                if last and again.gone:
                    raise Stopped(f"{self.url} does not answer any more: {again}") from again
                if last or (again.wait_s or 0) > _LONGEST_WAIT_S:
                    raise Failed(f"{again}; given up after attempt {attempt + 1}") from again
                progress(Answer())
                await self._sleep(self._pause_s(attempt, again.wait_s))
        raise AssertionError("the last attempt returns or raises")

    def _pause_s(self, attempt: int, told_s: float | None) -> float:
        """The pause before the next attempt: never less than told, and not the same for all who were."""
        if told_s is not None:
            return told_s + self._rng.random() * min(1.0, 0.5 + told_s / 4)
        return float(_FIRST_PAUSE_S * 2**attempt * (0.5 + self._rng.random()))

    async def _attempt(self, path: Path, progress: Callable[[Answer], None]) -> Answer:
        try:
            file = path.open("rb")
        except OSError as error:
            raise Failed(f"cannot be read: {error.strerror}") from error
        with file:
            form = aiohttp.FormData()
            for name, value in {"model": self._model, **self._wish.fields()}.items():
                form.add_field(name, value)
            # Its own name may tell too much, and is no matter of the server's.
            form.add_field("file", file, filename="document", content_type="application/octet-stream")
            try:
                async with self._session.post(
                    f"{self.url}/v1/ocr",
                    data=form,
                    expect100=True,  # refusals come before the document is sent
                    allow_redirects=False,
                ) as reply:
                    if reply.status != 200:
                        raise await self._refusal(reply)
                    return await self._stream(reply, progress)
            except aiohttp.ClientConnectorError as error:
                raise _Again(_words(error), gone=True) from error
            except (aiohttp.ClientError, TimeoutError) as error:
                raise _Again(f"the connection broke: {_words(error)}") from error

    async def _stream(self, reply: aiohttp.ClientResponse, progress: Callable[[Answer], None]) -> Answer:
        if reply.content_type != "text/event-stream":
            raise Failed(
                f"the server answers with {reply.content_type}, not with events: is it an ocr-gateway?"
            )
        answer, splitter = Answer(), EventSplitter(_EVENT_BYTES)
        try:
            async for data in reply.content.iter_any():
                for event in splitter.feed(data):
                    if _take(event, answer):
                        return answer
                progress(answer)
        except (GatewayError, ValueError, TypeError, KeyError) as error:
            raise Failed(f"the server's events cannot be understood: {_words(error)}") from error
        raise _Again("the answer broke off")

    async def _refusal(self, reply: aiohttp.ClientResponse) -> Exception:
        told = described(await _error(reply))
        what = f"HTTP {reply.status}: {told}"
        if reply.status in (401, 403):
            return Stopped(_without_key(what))
        if reply.status in (404, 405) and "unknown_endpoint" in told:
            return Stopped(f"{self.url} has no POST /v1/ocr: {what}")
        if reply.status in _AGAIN:
            return _Again(what, _seconds(reply.headers.get("retry-after")))
        return Failed(what)

    async def _models(self) -> str:
        """The first model that the server lists."""
        try:
            async with self._session.get(f"{self.url}/v1/models", allow_redirects=False) as reply:
                if reply.status in (401, 403):
                    raise Stopped(_without_key(f"HTTP {reply.status}: {described(await _error(reply))}"))
                if reply.status != 200:
                    told = f"answers GET /v1/models with HTTP {reply.status}: is it an ocr-gateway?"
                    raise Stopped(f"{self.url} {told}")
                page = await reply.content.read(_ERROR_BYTES)
            return str(json.loads(page)["data"][0]["id"])
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Stopped(
                f"nobody answers at {self.url} ({_words(error)}): start a gateway with `ocr-gateway serve`, "
                "or say where one is with --url"
            ) from error
        except (ValueError, LookupError, TypeError) as error:
            raise Stopped(f"{self.url} lists no model: is it an ocr-gateway?") from error


def _take(event: bytes, answer: Answer) -> bool:
    """Take an event over; tell whether it is the last."""
    data = event_data(event)
    if data is None:
        return False
    value = json.loads(data)
    match _name(event):
        case "ocr.document":
            answer.expected = len(value["pages"])
        case "ocr.page":
            answer.pages[int(value["index"])] = value
        case "ocr.done":
            answer.rest = value
            return True
        case "error":
            error = value["error"]
            if error.get("type") in _AGAIN_KINDS:
                raise _Again(described(error))
            raise Failed(described(error))
    return False


def _name(event: bytes) -> str:
    for line in event.splitlines():
        if line.startswith(b"event:"):
            return line[6:].strip().decode("utf-8", "replace")
    return ""


async def _error(reply: aiohttp.ClientResponse) -> Any:
    """The error object of a refusal; its text where it has none."""
    body = await reply.content.read(_ERROR_BYTES)
    try:
        return json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return body.decode("utf-8", "replace") or reply.reason or "no reason given"


def _base(url: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment or parts.username is not None:
        raise ConfigError([f"--url: a gateway's URL is such as http://127.0.0.1:8000, not {url!r}"])
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


def _without_key(what: str) -> str:
    return f"{what}; --key names the environment variable that holds the API key"


def _seconds(text: str | None) -> float | None:
    """A Retry-After in seconds; None where it is none, or a date."""
    return float(text) if text and text.isascii() and text.isdigit() else None


def _words(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
