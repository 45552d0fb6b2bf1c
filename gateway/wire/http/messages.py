"""HTTP/1.1 as bytes: requests read, each seen as one thing or refused; and the heads of their answers."""

from __future__ import annotations

from enum import Enum, auto
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

import httptools

from gateway.errors import BadRequest, BodyTooLarge, GatewayError, HeadersTooLarge

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Headers = Sequence[tuple[bytes, bytes]]

_HEADERS = 100
_TARGET_BYTES = 8192
# What framing may cost beside a body: chunks of one byte need five more each.
_FRAMING = 8
# The longest length that a 64-bit number holds; int() refuses text of thousands of digits.
_LENGTH_DIGITS = 19
_UPGRADE = (b"upgrade", b"http2-settings")
_BODILESS = frozenset({204, 304})
_REASONS = {status.value: status.phrase for status in HTTPStatus}


class RequestHead(NamedTuple):
    """The head of a request.

    Attributes:
        method: in upper case.
        version: `1.0` or `1.1`.
        path: as it stands: decoded, two paths would be the same here and not for a proxy in front.
        query: without its question mark.
        headers: names in lower case.
        keeps_alive: more requests may come behind this one.
        expects_continue: the client waits to be told that it may send the body.
    """

    method: str
    version: str
    path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    keeps_alive: bool
    expects_continue: bool


class Received(NamedTuple):
    """What some bytes of a request hold, in this order.

    Attributes:
        head: the request's, if it ends among them.
        body: what of the body is among them.
        complete: the request ends among them.
        fault: what is wrong behind that; nothing more is to be read then.
    """

    head: RequestHead | None
    body: bytes
    complete: bool
    fault: GatewayError | None


class RequestReader:
    """Reads one request after the other; what comes behind an unfinished one is refused.

    Attributes:
        body_bytes: of the request's body, that have come.
    """

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self.body_bytes = self._received = self._limit = self._head_bytes = 0
        self._expects, self._in_head, self._expects_continue = False, True, False
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        # What has been read since `feed` was called.
        self._head: RequestHead | None = None
        self._body: list[bytes] = []
        self._complete = False

    def begin(self, data: bytes, header_bytes: int) -> Received:
        """Read the first bytes of the next request, whose head may have so many bytes."""
        self._expect(header_bytes)
        return self.feed(data)

    def feed(self, data: bytes) -> Received:
        """Read more of a request.

        What is no request, no safe one, too large, or behind one that is unfinished is a fault.
        """
        try:
            self._parse(data)
        except GatewayError as error:
            return self._take(error)
        return self._take(None)

    def close(self) -> None:
        """Read no more; the parser, which holds this, is let go."""
        self._forget_head()
        self._parser = None  # type: ignore[assignment]

    # --- called by the parser

    def on_message_begin(self) -> None:
        """Begin a request."""
        if not self._expects:
            raise bad_http("a request behind one that has not been answered")
        self._expects = False

    def on_url(self, url: bytes) -> None:
        """Take a part of the request target."""
        self._head_bytes += len(url)
        if self._head_bytes > min(_TARGET_BYTES, self._limit):
            raise HeadersTooLarge(
                f"the request target is over the limit of {_TARGET_BYTES:,} bytes", code="headers_too_large"
            )
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; those behind a body are dropped."""
        if not self._in_head:
            return
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self._limit or len(self._headers) >= _HEADERS:
            raise self._head_too_large()
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self._expects_continue = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Check the head, whose body follows."""
        parser = self._parser
        if parser.should_upgrade():
            return  # the parser stops here: see _decline
        version, method, headers = parser.get_http_version(), parser.get_method(), self._headers
        check(version, method, headers)
        target = httptools.parse_url(self._url)
        if not target.path:
            raise bad_http("the request target has no path")
        current = version == "1.1"
        self._head = RequestHead(
            method.decode("ascii"),
            version,
            target.path,
            target.query or b"",
            headers,
            keeps_alive=current and parser.should_keep_alive(),
            expects_continue=current and self._expects_continue,
        )
        self._forget_head()  # which may be large, and the request last for minutes
        self._in_head = False

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self.body_bytes += len(body)
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Note that the request is complete."""
        self._complete = not self._in_head  # as it is where the parser stopped

    # --- how it reads

    def _expect(self, header_bytes: int) -> None:
        self._expects = True
        self._limit = header_bytes
        self._received = self.body_bytes = 0
        self._forget_head()

    def _parse(self, data: bytes) -> None:
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, GatewayError):  # raised by what the parser calls
                raise error.__context__ from None
            raise bad_http("it cannot be parsed") from None
        if self._in_head:
            if self._received > self._limit:
                raise self._head_too_large()
        elif self._received > 2 * self._limit + (1 + _FRAMING) * self.body_bytes:
            raise bad_http("too much beside the body")

    def _decline(self, rest: bytes) -> None:
        """Go on as if no other protocol had been offered: the parser takes the body for that protocol."""
        version, method = self._parser.get_http_version(), self._parser.get_method()
        if method == b"CONNECT":
            raise bad_http("CONNECT: this is no proxy")
        head = without_upgrade(version, method, self._url, self._headers)
        self._parser = httptools.HttpRequestParser(self)
        self._expect(self._limit)
        self._parse(head + rest)

    def _take(self, fault: GatewayError | None) -> Received:
        received = Received(self._head, b"".join(self._body), self._complete, fault)
        self._head, self._body, self._complete = None, [], False
        return received

    def _forget_head(self) -> None:
        self._in_head = True
        self._url = b""
        self._headers = []
        self._head_bytes = 0
        self._expects_continue = False

    def _head_too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(
            f"the headers are over the limit of {self._limit:,} bytes (limits.header_bytes), "
            f"or more than {_HEADERS}",
            code="headers_too_large",
        )


def check(version: str, method: bytes, headers: Headers) -> None:
    """Check a head whose syntax the parser has checked: one way to say where the body ends, and one host.

    No two readers must see different requests in it.

    Args:
        version: such as `1.1`.
        method: in upper case.
        headers: names in lower case.

    Raises:
        BadRequest: what is wrong, without the client's text.
    """
    hosts = 0
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding":
            if value.lower() != b"chunked" or version != "1.1":
                raise bad_http("Transfer-Encoding must be chunked, and nothing else, in HTTP/1.1")
        elif name == b"content-length" and len(value.strip()) > _LENGTH_DIGITS:
            raise bad_http("the Content-Length is too long")
    if version not in ("1.0", "1.1"):
        raise bad_http("the version must be HTTP/1.1 or HTTP/1.0")
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        raise bad_http("one Host header is needed")
    if method == b"CONNECT":
        raise bad_http("CONNECT: this is no proxy")


def without_upgrade(version: str, method: bytes, target: bytes, headers: Headers) -> bytes:
    """Return a head as it would be had its client not offered to change the protocol."""
    lines = [b"%s %s HTTP/%s" % (method, target, version.encode())]
    for name, value in headers:
        if name == b"connection":
            tokens = [token for token in value.split(b",") if token.strip().lower() not in _UPGRADE]
            lines.append(b"connection: " + b",".join(tokens))
        elif name not in _UPGRADE:
            lines.append(b"%s: %s" % (name, value))
    return b"\r\n".join([*lines, b"", b""])


def bad_http(message: str) -> BadRequest:
    """Return the error for what is no HTTP request, or no safe one."""
    return BadRequest(f"no valid HTTP request: {message}", code="bad_http")


def body_too_large(limit: int) -> BodyTooLarge:
    """Return the refusal of a body over the limit."""
    return BodyTooLarge(
        f"the body is over the limit of {limit:,} bytes (limits.body_bytes)", code="body_too_large"
    )


class Framing(Enum):
    """How a client knows where an answer's body ends (RFC 9112, section 6).

    Attributes:
        LENGTH: by `content-length`.
        CHUNKED: by its last chunk.
        UNTIL_CLOSE: by the connection's end, for clients of HTTP/1.0, which know no chunks.
        NO_BODY: there is none, be it for the status or for the method HEAD.
    """

    LENGTH = auto()
    CHUNKED = auto()
    UNTIL_CLOSE = auto()
    NO_BODY = auto()


class ResponseHead(NamedTuple):
    """The head of an answer.

    Attributes:
        data: as it is sent.
        framing: of the body behind it.
        stays: the connection may have another request behind the answer.
    """

    data: bytes
    framing: Framing
    stays: bool


def response_head(
    method: str,
    version: str,
    status: int,
    headers: Mapping[str, str],
    *,
    stays: bool,
    common: Iterable[tuple[bytes, bytes]] = (),
) -> ResponseHead:
    """Return an answer's head.

    Args:
        method: the request's, in upper case.
        version: the client's, `1.0` or `1.1`.
        status: HTTP status.
        headers: names in lower case; `transfer-encoding` and `connection` are added here.
        stays: the connection may stay, if the body does not end with it.
        common: headers of every answer.

    Raises:
        ValueError: a header would be several.
    """
    framed = framing(method, version, status, headers)
    stays = stays and framed is not Framing.UNTIL_CLOSE
    text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if text.count("\r") + text.count("\n") != 2 * len(headers):
        raise ValueError("a header with a line break")
    data = b"".join(
        [
            _STATUS_LINES.get(status) or _status_line(status),
            *[b"%b: %b\r\n" % item for item in common],
            text.encode("latin-1", "replace"),
            b"transfer-encoding: chunked\r\n" if framed is Framing.CHUNKED else b"",
            b"\r\n" if stays else b"connection: close\r\n\r\n",
        ]
    )
    return ResponseHead(data, framed, stays)


def framing(method: str, version: str, status: int, headers: Mapping[str, str]) -> Framing:
    """Return how the body of an answer is framed; arguments as of `response_head`."""
    if method == "HEAD" or status in _BODILESS:
        return Framing.NO_BODY
    if "content-length" in headers:
        return Framing.LENGTH
    return Framing.CHUNKED if version == "1.1" else Framing.UNTIL_CLOSE


def _status_line(status: int) -> bytes:
    return f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\n".encode()


_STATUS_LINES = {status: _status_line(status) for status in _REASONS}
