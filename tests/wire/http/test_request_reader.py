"""Requests out of bytes, without a connection; tests/api/test_connection.py has what is refused, in full."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BadRequest, GatewayError
from gateway.wire.http.request_reader import RequestHead, RequestReader

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT = 4096
POST = b"POST /a%20b?c=d HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class Read:
    """A reader and what it told."""

    limit: int = LIMIT
    on_body: Callable[[bytes], None] | None = None
    heads: list[RequestHead] = field(default_factory=list)
    body: bytes = b""
    ended: int = 0

    def __post_init__(self) -> None:
        self.reader = RequestReader(self.heads.append, self._take, self._end)
        self.reader.expect(self.limit)

    def _take(self, data: bytes) -> None:
        self.body += data
        if self.on_body:
            self.on_body(data)

    def _end(self) -> None:
        self.ended += 1

    def refused(self, data: bytes) -> str:
        """Why bytes are refused, and with which code."""
        with pytest.raises(GatewayError) as error:
            self.reader.feed(data)
        return f"{error.value.code}: {error.value.message}"


def test_a_request_is_its_head_its_body_and_its_end() -> None:
    read = Read()
    read.reader.feed(POST)
    headers = [(b"host", b"x"), (b"content-length", b"5")]
    assert read.heads == [RequestHead("POST", "1.1", b"/a%20b", b"c=d", headers, True, False)]
    assert (read.body, read.reader.body_bytes, read.ended) == (b"hello", 5, 1)


@pytest.mark.parametrize(
    ("version", "header", "keeps_alive", "expects_continue"),
    [
        (b"1.1", b"connection: close", False, False),
        (b"1.1", b"Expect: 100-Continue", True, True),
        (b"1.0", b"expect: 100-continue", False, False),
        (b"1.0", b"connection: keep-alive", False, False),
    ],
)
def test_a_head_tells_what_the_client_expects(
    version: bytes, header: bytes, keeps_alive: bool, expects_continue: bool
) -> None:
    read = Read()
    read.reader.feed(b"GET / HTTP/%b\r\nhost: x\r\n%b\r\n\r\n" % (version, header))
    (head,) = read.heads
    assert (head.keeps_alive, head.expects_continue) == (keeps_alive, expects_continue)


@given(st.lists(st.integers(1, len(POST) - 1), max_size=6))
def test_how_a_request_is_cut_changes_nothing(cuts: list[int]) -> None:
    read = Read()
    for start, end in itertools.pairwise([0, *sorted(cuts), len(POST)]):
        read.reader.feed(POST[start:end])
    assert (len(read.heads), read.body, read.ended) == (1, b"hello", 1)
    assert read.heads[0].path == b"/a%20b"


def test_the_next_request_is_read_once_it_is_expected() -> None:
    read = Read()
    read.reader.feed(POST)
    read.reader.expect(LIMIT)
    read.reader.feed(GET)
    assert [head.method for head in read.heads] == ["POST", "GET"]
    assert read.refused(GET).startswith("bad_http: no valid HTTP request: a request behind one")


def test_headers_behind_a_body_are_dropped() -> None:
    read = Read()
    read.reader.feed(CHUNKED + b"3\r\nabc\r\n0\r\nx-ocr-route: table\r\n\r\n")
    assert (read.body, read.ended) == (b"abc", 1)
    assert [name for name, _ in read.heads[0].headers] == [b"host", b"transfer-encoding"]


@pytest.mark.parametrize("rest", [b"", b"hello"])
def test_an_offer_of_another_protocol_is_declined_and_the_body_kept(rest: bytes) -> None:
    read = Read()
    head = b"POST / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: 5\r\n\r\n"
    read.reader.feed(head + rest)
    read.reader.feed(b"hello"[len(rest) :])
    assert (read.body, read.ended, len(read.heads)) == (b"hello", 1, 1)
    assert read.heads[0].headers[1:] == [(b"connection", b""), (b"content-length", b"5")]


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"\x16\x03\x01", "bad_http: no valid HTTP request: it cannot be parsed"),
        (b"GET http://x HTTP/1.1\r\nhost: x\r\n\r\n", "bad_http: no valid HTTP request: the request target"),
        (b"GET / HTTP/1.1\r\n\r\n", "bad_http: no valid HTTP request: one Host header"),
        (b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n", "bad_http: no valid HTTP request: CONNECT"),
        (b"GET /" + b"a" * LIMIT, "headers_too_large: the request target"),
        (GET[:-2] + b"a: " + b"b" * LIMIT, "headers_too_large: the headers"),
        (GET[:-2] + b"a: b\r\n" * 101 + b"\r\n", "headers_too_large: the headers"),
        (b"\r\n" * LIMIT, "headers_too_large: the headers"),
        (CHUNKED + b"1;" + b"a" * 2 * LIMIT, "bad_http: no valid HTTP request: too much beside the body"),
    ],
)
def test_what_is_no_request_or_too_large_is_refused(sent: bytes, why: str) -> None:
    read = Read()
    assert read.refused(sent).startswith(why)
    assert (read.body, read.ended) == (b"", 0)


def test_what_is_raised_where_a_part_is_taken_is_what_is_told() -> None:
    def refuse(_: bytes) -> None:
        raise BadRequest("too much", code="mine")

    read = Read(on_body=refuse)
    assert read.refused(POST) == "mine: too much"
    assert read.ended == 0


def test_a_closed_reader_holds_nothing_of_a_request() -> None:
    read = Read()
    read.reader.feed(POST[:40])
    read.reader.close()
    read.reader.close()
    assert [value for value in vars(read.reader).values() if isinstance(value, bytes | list) and value] == []
    assert read.reader._parser is None
