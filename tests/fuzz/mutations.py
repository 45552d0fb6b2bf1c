"""Seeded damage to requests: to JSON values, to the body's bytes, or to any byte on the connection."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.fuzz.seeds import raw_request
from tests.fuzz.target import LIMITED

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.fuzz.seeds import Seed

_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1e308, -0.0, 2**31, 2**63, 2**64, -(2**63), 10**400, 1e-320),
    *("", "\0", "\ud800", "\udfff\ud800", "\u202e", "\ufeff", "a\r\nx-evil: 1", "glm-ocr:", ":table", "%00"),
    *("A" * 5000, "file:///etc/passwd", "http://169.254.169.254/", "data:,", "data:image/png;base64,"),
    *("é" * 300, [], {}, [[]], [None], {"": None}, {"url": None}, [{"type": "image_url"}]),
    {"a": {"b": {"c": []}}},
)
_NUMBERS = (
    *(b"1e999", b"-1e999", b"9" * 400, b"9" * 5000, b"0" * 50 + b"1", b"1e-999", b"-", b"0x10", b"NaN"),
    b"Infinity",
)
_BYTES = (
    *(b"\0", b"\xff", b"\xfe\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf5\x80\x80\x80", b"\xef\xbb\xbf"),
    b"\x1b[2J",
)
_ESCAPES = (b"\\ud800", b"\\udc00\\ud800", b"\\u0000", b"\\x00", b"\\", b"\\u12", b"\\uD83D")
_SHORT_HEADERS = (
    "content-length: 0|content-length: -1|content-length: +5|content-length: 99999999999999999999|"
    "content-length: 5, 5|content-length: \u00b2|content-length: 5000000|transfer-encoding: chunked|"
    "transfer-encoding: gzip, chunked|transfer-encoding: xchunked|transfer-encoding : chunked|"
    "content-encoding: gzip|content-type: text/plain|content-type: application/json; charset=utf-16|"
    "content-type: |host: |host: a\tb|connection: close|connection: keep-alive, upgrade|"
    "upgrade: websocket|upgrade: h2c|http2-settings: AAMAAABkAAQAAP__|expect: 100-continue|"
    "expect: 200-maybe|authorization: Bearer nobody|authorization: |authorization: Basic Zm9v|"
    "x-request-id: ../../etc|x-request-id: a b|x-request-id: \x7f|x-ocr-route: nowhere|"
    "x-ocr-route: \u00e9|traceparent: 00-0-0-00|x-forwarded-for: 1.2.3.4|forwarded: for=1.2.3.4|"
    ": empty|no colon| folded: line|te: trailers|trailer: x-evil|keep-alive: 1"
)
_HEADERS = (
    *_SHORT_HEADERS.split("|"),
    f"traceparent: ff-{'a' * 32}-{'b' * 16}-01",
    "tracestate: " + "a=b," * 200,
    "cookie: " + "c" * 3000,
    "accept: */*;q=" + "1" * 400,
    "x: " + "y" * 20_000,
)
_SHORT_PATHS = (
    "/ /v1/chat/completions/ //v1/chat/completions /v1//chat/completions /v1/./chat/completions "
    "/health/../v1/models /v1/%63hat/completions /v1/chat/completions%00 /v1/chat/completions#f "
    "http://evil.example/v1/chat/completions * /status /metrics /ready /openapi.json /\xe9 /v1/models "
    "/health /v1/ocr"
)
_PATHS = (
    *_SHORT_PATHS.split(" "),
    "/v1/chat/completions?x=" + "y" * 500,
    "/" + "a" * 4000,
)
_METHODS = ("GET", "HEAD", "PUT", "OPTIONS", "CONNECT", "TRACE", "PRI", "post", "DELETE", "P\u00d6ST", "")
_VERSIONS = ("HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "http/1.1", "HTTP/1.1 ", "HTTP/9999.1", "")


def mutated_json(rng: Random, seed: Seed) -> bytes:
    """Return a client's request with some of its values changed; nearly always JSON."""
    body: Any = json.loads(json.dumps(seed.body))
    for _ in range(rng.randint(1, 3)):
        body = _changed(rng, body)
    text = json.dumps(body)
    if rng.random() < 0.15 and text.startswith("{"):
        name = rng.choice(("model", "messages", "stream", "stream_options", "metadata", "n"))
        value = json.dumps(rng.choice(_VALUES))
        text = f'{{"{name}":{value},{text[1:]}' if rng.random() < 0.5 else f'{text[:-1]},"{name}":{value}}}'
    headers = seed.headers if rng.random() < 0.95 else {**seed.headers, "authorization": f"Bearer {LIMITED}"}
    return raw_request("POST", seed.path, text.encode(), headers, chunks=rng.choice((0, 0, 0, 1, 5)))


def mutated_body(rng: Random, seed: Seed) -> bytes:
    """Return a client's request with bytes of its body damaged; its head is valid."""
    body = json.dumps(seed.body).encode()
    for _ in range(rng.randint(1, 4)):
        body = rng.choice(_DAMAGES)(rng, body)
    if rng.random() < 0.03:
        body = (
            rng.choice((b"[" * 10_000, b'{"a":' * 30_000, b"[" * 400_000, b"{}," * 60_000, b" " * 1_100_000))
            + body
        )
    return raw_request("POST", seed.path, body[:1_500_000], seed.headers, chunks=rng.choice((0, 0, 0, 1, 7)))


def mutated_wire(rng: Random, seed: Seed) -> bytes:
    """Return a client's request with its request line, headers, framing or any byte damaged."""
    head, _, body = seed.raw().partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    for _ in range(rng.randint(1, 3)):
        match rng.randrange(8):
            case 0 | 1 | 2:
                lines.insert(rng.randint(1, len(lines)), rng.choice(_HEADERS).encode("latin-1"))
            case 3:
                lines.insert(rng.randint(1, len(lines)), rng.choice(lines))
            case 4 if len(lines) > 1:
                del lines[rng.randrange(1, len(lines))]
            case 5:
                lines[0] = _request_line(rng, seed)
            case 6:
                lines.extend(b"x-%d: %d" % (number, number) for number in range(rng.choice((50, 150, 3000))))
            case _:
                at = rng.randrange(len(lines))
                lines[at] = rng.choice(_DAMAGES)(rng, lines[at])
    end = rng.choice((b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r"))
    raw = end.join(lines) + end * 2 + body
    if rng.random() < 0.2:
        raw = rng.choice(_DAMAGES)(rng, raw)
    if rng.random() < 0.1:
        raw += rng.choice((seed.raw(), b"\r\n", b"GET /status HTTP/1.1\r\n\r\n", b"\0" * 100))
    return raw


def _request_line(rng: Random, seed: Seed) -> bytes:
    method = rng.choice(_METHODS) if rng.random() < 0.5 else "POST"
    path = rng.choice(_PATHS) if rng.random() < 0.6 else seed.path
    version = rng.choice(_VERSIONS) if rng.random() < 0.3 else "HTTP/1.1"
    return f"{method} {path} {version}".encode("latin-1")


def _changed(rng: Random, value: Any) -> Any:
    """Change one place of a JSON value, at any depth."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        match rng.randrange(10):
            case 0:
                return {name: item for name, item in value.items() if name != key}
            case 1:
                return {**value, str(rng.choice(_VALUES)): rng.choice(_VALUES)}
            case _:
                return {**value, key: _changed(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        match rng.randrange(10):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return value + value[at : at + 1] * rng.choice((1, 3, 40))
            case _:
                return [*value[:at], _changed(rng, value[at]), *value[at + 1 :]]
    if isinstance(value, str) and value and rng.random() < 0.5:
        return rng.choice(_DAMAGES)(rng, value.encode("utf-8", "replace")).decode("utf-8", "replace")
    return rng.choice(_VALUES)


def _flip(rng: Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) or 1)
    return data[:at] + bytes([(data[at] if data else 0) ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def _cut(rng: Random, data: bytes) -> bytes:
    return data[: rng.randint(0, len(data))]


def _lose(rng: Random, data: bytes) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + data[at + rng.choice((1, 4, 100)) :]


def _repeat(rng: Random, data: bytes) -> bytes:
    start = rng.randint(0, len(data))
    piece = data[start : start + rng.choice((1, 10, 200))]
    return data[:start] + piece * rng.choice((2, 3, 50)) + data[start:]


def _insert(pieces: tuple[bytes, ...]) -> Callable[[Random, bytes], bytes]:
    def insert(rng: Random, data: bytes) -> bytes:
        at = rng.randint(0, len(data))
        return data[:at] + rng.choice(pieces) + data[at:]

    return insert


def _renumber(rng: Random, data: bytes) -> bytes:
    """Replace a digit by another number."""
    places = [at for at in range(len(data)) if data[at : at + 1].isdigit()] or [len(data)]
    at = rng.choice(places)
    return data[:at] + rng.choice(_NUMBERS) + data[at + 1 :]


_DAMAGES: tuple[Callable[[Random, bytes], bytes], ...] = (
    *(_flip, _flip, _cut, _lose, _repeat, _renumber),
    *(_insert(_BYTES), _insert(_ESCAPES), _insert((b"{", b"[", b"}", b"]", b'"', b",", b":"))),
)
KINDS: dict[str, Callable[[Random, Seed], bytes]] = {
    "json": mutated_json,
    "body": mutated_body,
    "wire": mutated_wire,
}
