"""POST /v1/ocr as a stream, repeated where that may help. The only module here that talks HTTP."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import httpx

from gateway import __version__
from gateway.connect_failure import Cause, diagnose
from gateway.errors import ConfigError, GatewayError
from gateway.tools.ocr.document_result import DocumentResult, described
from gateway.wire.sse import EventSplitter, event_data

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path
    from random import Random

ATTEMPTS = 6
# Pages come as they are ready, comments in between; before the first page a document waits for its turn.
_SILENCE_S = 300.0
_CONNECT_S = 10.0
_FIRST_PAUSE_S = 0.5
_LONGEST_WAIT_S = 120.0
_RETRIED_STATUSES = frozenset({429, 502, 503, 504})
_RETRIED_KINDS = frozenset({"rate_limit_exceeded", "engine_error", "service_unavailable", "engine_timeout"})
_ERROR_BYTES = 64 * 1024
_EVENT_BYTES = 64 * 1024 * 1024


class DocumentFailed(Exception):
    """One document cannot be read; the text says why."""


class AllFailed(Exception):
    """No document can be read any more; the text says why."""


class _AttemptFailed(Exception):
    """An attempt failed and may be repeated.

    Attributes:
        wait_s: seconds to wait first, where the server said so.
        unreachable: whether there was no connection.
    """

    def __init__(self, message: str, wait_s: float | None = None, *, unreachable: bool = False) -> None:
        super().__init__(message)
        self.wait_s = wait_s
        self.unreachable = unreachable


@dataclass(frozen=True, slots=True)
class DocumentUpload:
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


class OcrClient:
    """Sends documents to one gateway; an asynchronous context manager."""

    def __init__(
        self,
        url: str,
        key: str,
        request: DocumentUpload,
        rng: Random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Connect nowhere yet.

        Args:
            url: the gateway's base URL, with or without `/v1`.
            key: its API key; empty for none.
            request: what is asked of each document.
            rng: spreads attempts.
            sleep: waits between them, in seconds.

        Raises:
            ConfigError: it is no such URL.
        """
        self.url = _base(url)
        self._headers = {"user-agent": f"ocr-gateway-ocr/{__version__}"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        if request.route:
            self._headers["x-ocr-route"] = request.route
        self._request = request
        self._rng = rng
        self._sleep = sleep
        self._model = ""

    async def __aenter__(self) -> Self:
        """Ask the gateway for its model.

        Raises:
            AllFailed: no gateway answers there, or it refuses the key.
        """
        self._http = httpx.AsyncClient(
            headers=self._headers,
            timeout=httpx.Timeout(_SILENCE_S, connect=_CONNECT_S, pool=None),
            # A connection each: a kept one may close just as a document is sent, which is then lost.
            limits=httpx.Limits(max_keepalive_connections=0),
            trust_env=False,
        )
        try:
            self._model = await self._models()
        except BaseException:
            await self._http.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def read(self, path: Path, progress: Callable[[DocumentResult], None]) -> DocumentResult:
        """Return what a document holds.

        Args:
            path: the document.
            progress: called with what has come so far; a repeated attempt starts from nothing.

        Raises:
            DocumentFailed: this one cannot be read.
            AllFailed: no other could, either.
        """
        for attempt in range(ATTEMPTS):
            try:
                return await self._attempt(path, progress)
            except _AttemptFailed as failed:
                last = attempt == ATTEMPTS - 1
                if last and failed.unreachable:
                    raise AllFailed(f"{self.url} does not answer any more: {failed}") from failed
                if last or (failed.wait_s or 0) > _LONGEST_WAIT_S:
                    raise DocumentFailed(f"{failed}; given up after attempt {attempt + 1}") from failed
                progress(DocumentResult())
                await self._sleep(self._pause_s(attempt, failed.wait_s))
        raise AssertionError("the last attempt returns or raises")

    def _pause_s(self, attempt: int, wait_s: float | None) -> float:
        """Return the pause before the next attempt: at least the server's, and different for each client."""
        if wait_s is not None:
            return wait_s + self._rng.random() * min(1.0, 0.5 + wait_s / 4)
        return float(_FIRST_PAUSE_S * 2**attempt * (0.5 + self._rng.random()))

    async def _attempt(self, path: Path, progress: Callable[[DocumentResult], None]) -> DocumentResult:
        try:
            file = path.open("rb")
        except OSError as error:
            raise DocumentFailed(f"cannot be read: {error.strerror}") from error
        with file:
            try:
                async with self._http.stream(
                    "POST",
                    f"{self.url}/v1/ocr",
                    data={"model": self._model, **self._request.fields()},
                    # Not the file's own name, which may tell too much.
                    files={"file": ("document", file, "application/octet-stream")},
                ) as response:
                    if response.status_code != 200:
                        raise await self._refusal(response)
                    return await self._events(response, progress)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                raise _AttemptFailed(_words(error), unreachable=True) from error
            except httpx.HTTPError as error:
                raise _AttemptFailed(f"the connection broke: {_words(error)}") from error

    async def _events(
        self, response: httpx.Response, progress: Callable[[DocumentResult], None]
    ) -> DocumentResult:
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "text/event-stream":
            raise DocumentFailed(
                f"the server answers with {kind or 'no type'}, not with events: is it an ocr-gateway?"
            )
        answer, splitter = DocumentResult(), EventSplitter(_EVENT_BYTES)
        try:
            async for data in response.aiter_bytes():
                for event in splitter.feed(data):
                    if _take(event, answer):
                        return answer
                progress(answer)
        except (GatewayError, ValueError, TypeError, KeyError) as error:
            raise DocumentFailed(f"the server's events cannot be understood: {_words(error)}") from error
        raise _AttemptFailed("the answer broke off")

    async def _refusal(self, response: httpx.Response) -> Exception:
        status = response.status_code
        reason = described(await _error(response))
        what = f"HTTP {status}: {reason}"
        if status in (401, 403):
            return AllFailed(_without_key(what))
        if status in (404, 405) and "unknown_endpoint" in reason:
            return AllFailed(f"{self.url} has no POST /v1/ocr: {what}")
        if status in _RETRIED_STATUSES:
            return _AttemptFailed(what, _seconds(response.headers.get("retry-after")))
        return DocumentFailed(what)

    async def _models(self) -> str:
        """Return the first model that the server lists."""
        try:
            async with self._http.stream("GET", f"{self.url}/v1/models") as response:
                status = response.status_code
                if status in (401, 403):
                    raise AllFailed(_without_key(f"HTTP {status}: {described(await _error(response))}"))
                if status != 200:
                    what = f"answers GET /v1/models with HTTP {status}: is it an ocr-gateway?"
                    raise AllFailed(f"{self.url} {what}")
                page = await _start(response)
            return str(json.loads(page)["data"][0]["id"])
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise AllFailed(
                f"nobody answers at {self.url} ({_words(error)}): start a gateway with `ocr-gateway serve`, "
                "or say where one is with --url"
            ) from error
        except (ValueError, LookupError, TypeError) as error:
            raise AllFailed(f"{self.url} lists no model: is it an ocr-gateway?") from error


def _take(event: bytes, answer: DocumentResult) -> bool:
    """Add an event to an answer; return whether it is the last."""
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
            if error.get("type") in _RETRIED_KINDS:
                raise _AttemptFailed(described(error))
            raise DocumentFailed(described(error))
    return False


def _name(event: bytes) -> str:
    for line in event.splitlines():
        if line.startswith(b"event:"):
            return line[6:].strip().decode("utf-8", "replace")
    return ""


async def _start(response: httpx.Response) -> bytes:
    """Return the start of a body, some 64 KiB of it."""
    body = bytearray()
    async for part in response.aiter_bytes():
        body += part
        if len(body) >= _ERROR_BYTES:
            break
    return bytes(body)


async def _error(response: httpx.Response) -> Any:
    """Return the error object of a refusal; its text where it has none."""
    body = await _start(response)
    try:
        return json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return body.decode("utf-8", "replace") or response.reason_phrase or "no reason given"


def _base(url: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment or parts.username is not None:
        raise ConfigError(
            [f"--url: a gateway's URL is such as http://127.0.0.1:8000, not {url.rpartition('@')[2]!r}"]
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


def _without_key(what: str) -> str:
    return f"{what}; --key names the environment variable that holds the API key"


def _seconds(text: str | None) -> float | None:
    """Return a Retry-After in seconds; None where there is none, or a date."""
    return float(text) if text and text.isascii() and text.isdigit() else None


def _words(error: BaseException) -> str:
    """Return what went wrong: in the system's words, else in the library's."""
    if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
        return f"nothing came for {_SILENCE_S:g} s"
    cause, detail = diagnose(error)
    if cause in (Cause.TLS, Cause.CERTIFICATE):  # the system's words alone say little
        return cause.told(detail)
    if isinstance(error, httpx.RemoteProtocolError):
        return f"{error} Check whether the URL should begin with https://"
    return detail or str(error) or (cause.words if cause is not Cause.OTHER else type(error).__name__)
