"""One request's bytes over a connection of its own, and checks that hold for every answer."""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass

import h11

from tests.fuzz.target import HANG_S, KEY, LIMITED

# The engine failed, or has no place: right answers to some requests.
ENGINE_STATUSES = (502, 503, 504)
_SANE_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}")


class WrongAnswer(Exception):
    """An answer that breaks a rule."""


@dataclass(frozen=True)
class Answer:
    """The first answer on a connection, and how many seconds it took."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes
    seconds: float


async def exchange(port: int, raw: bytes) -> Answer | None:
    """Send bytes on a fresh connection and read the answer; None where the connection was closed without one.

    Raises:
        WrongAnswer: neither came within HANG_S, or it is no proper HTTP.
    """
    try:
        async with asyncio.timeout(HANG_S):
            return await _exchange(port, raw)
    except TimeoutError as error:
        raise WrongAnswer(f"no answer within {HANG_S:g} s") from error
    except h11.RemoteProtocolError as error:
        raise WrongAnswer(f"not HTTP: {error}") from error


async def _exchange(port: int, raw: bytes) -> Answer | None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        started = time.perf_counter()
        sending = asyncio.create_task(_send(writer, raw))
        parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=64 * 1024)
        method = "HEAD" if raw.startswith(b"HEAD ") else "POST"
        parser.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        parser.send(h11.EndOfMessage())
        response: h11.Response | None = None
        body = b""
        while True:
            event = parser.next_event()
            if event is h11.NEED_DATA:
                try:
                    data = await reader.read(65536)
                except ConnectionError:
                    data = b""
                if not data and response is None:
                    return None
                parser.receive_data(data)
            elif isinstance(event, h11.Response):
                response = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage) and response:
                headers = dict(response.headers)
                if len(headers) < len(response.headers):
                    raise WrongAnswer(f"a header stands twice: {response.headers}")
                return Answer(response.status_code, headers, body, time.perf_counter() - started)
            elif not isinstance(event, h11.InformationalResponse):
                raise WrongAnswer(f"an unexpected end: {event!r}")
    finally:
        sending.cancel()
        writer.transport.abort()


async def _send(writer: asyncio.StreamWriter, raw: bytes) -> None:
    try:
        writer.write(raw)
        await writer.drain()
    except ConnectionError:
        pass  # refused before all was sent


def check(answer: Answer, *, head: bool = False) -> None:
    """Check an answer by the rules for all.

    Raises:
        WrongAnswer: it breaks one.
    """
    status, headers = answer.status, answer.headers
    if status >= 500 and status not in ENGINE_STATUSES:
        raise WrongAnswer(f"HTTP {status}: {answer.body[:300]!r}")
    if status in (429, 503) and not headers.get(b"retry-after", b"").isdigit():
        raise WrongAnswer(f"HTTP {status} without Retry-After")
    if b"x-request-id" in headers and not _SANE_ID.fullmatch(headers[b"x-request-id"]):
        raise WrongAnswer(f"x-request-id: {headers[b'x-request-id']!r}")
    if b"x-evil" in headers:
        raise WrongAnswer("a header was injected")
    everything = answer.body + b"".join(headers.values())
    if KEY.encode() in everything or LIMITED.encode() in everything:
        raise WrongAnswer("the API key came back")
    if status >= 400 and not head:
        _check_error(answer)


def _check_error(answer: Answer) -> None:
    if answer.headers.get(b"content-type") != b"application/json":
        raise WrongAnswer(f"an error of type {answer.headers.get(b'content-type')!r}: {answer.body[:300]!r}")
    try:
        error = json.loads(answer.body)["error"]
        if error.keys() != {"message", "type", "param", "code"} or not error["message"]:
            raise WrongAnswer(f"not an error's shape: {error}")
    except (ValueError, KeyError, TypeError) as failure:
        raise WrongAnswer(f"not an error's shape: {answer.body[:300]!r}") from failure
