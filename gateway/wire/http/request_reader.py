"""Requests out of the bytes of a connection: parsed, bounded, and seen as one thing or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import httptools

from gateway.errors import GatewayError, HeadersTooLarge
from gateway.wire.http.request_head import bad_http, check, without_upgrade

if TYPE_CHECKING:
    from collections.abc import Callable

_HEADERS = 100
_TARGET_BYTES = 8192
# What framing may cost beside a body: chunks of one byte need five more each.
_FRAMING = 8


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


class RequestReader:
    """Reads one request after the other; what comes behind an unfinished one is refused.

    Attributes:
        body_bytes: of the request's body, that have come.
    """

    def __init__(
        self,
        on_head: Callable[[RequestHead], None],
        on_body: Callable[[bytes], None],
        on_end: Callable[[], None],
    ) -> None:
        """Read none yet: see `expect`.

        Args:
            on_head: called with a request's head. What it and the others raise is raised by `feed`.
            on_body: called with each part of the body.
            on_end: called when the body is complete.
        """
        self._on_head = on_head
        self._on_body = on_body
        self._on_end = on_end
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._in_head, self._expects_continue = True, False
        self._head_bytes = 0
        self.expect(0)

    def expect(self, header_bytes: int) -> None:
        """Make ready for the next request, whose head may have so many bytes."""
        self._expects = True
        self._limit = header_bytes
        self._received = self.body_bytes = 0
        self._forget_head()

    def close(self) -> None:
        """Read no more; the parser, which holds this, is let go."""
        self._forget_head()
        self._parser = self._on_head = self._on_body = self._on_end = None  # type: ignore[assignment]

    def feed(self, data: bytes) -> None:
        """Read what has come.

        Raises:
            GatewayError: it is no request, no safe one, too large, or behind one that is unfinished.
        """
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, GatewayError):
                raise cause from None
            raise bad_http("it cannot be parsed") from None
        if self._in_head:
            if self._received > self._limit:
                raise self._head_too_large()
        elif self._received > 2 * self._limit + (1 + _FRAMING) * self.body_bytes:
            raise bad_http("too much beside the body")

    def on_message_begin(self) -> None:
        """Begin a request (called by the parser, as all that follows)."""
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
        """Hand the head on, whose body follows."""
        parser = self._parser
        if parser.should_upgrade():
            return  # the parser stops here: see _decline
        version, method, headers = parser.get_http_version(), parser.get_method(), self._headers
        check(version, method, headers)
        target = httptools.parse_url(self._url)
        if not target.path:
            raise bad_http("the request target has no path")
        current = version == "1.1"
        head = RequestHead(
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
        self._on_head(head)

    def on_body(self, body: bytes) -> None:
        """Hand a part of the body on."""
        self.body_bytes += len(body)
        self._on_body(body)

    def on_message_complete(self) -> None:
        """Tell that the request is complete."""
        if not self._in_head:  # as it is where the parser stopped
            self._on_end()

    def _decline(self, rest: bytes) -> None:
        """Go on as if no other protocol had been offered: the parser takes the body for that protocol."""
        version, method = self._parser.get_http_version(), self._parser.get_method()
        if method == b"CONNECT":
            raise bad_http("CONNECT: this is no proxy")
        head = without_upgrade(version, method, self._url, self._headers)
        self._parser = httptools.HttpRequestParser(self)
        self.expect(self._limit)
        self.feed(head + rest)

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
