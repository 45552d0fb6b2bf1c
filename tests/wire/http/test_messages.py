"""Requests out of bytes, and heads of answers, without a connection.

tests/api/test_connection.py has what is refused, in full.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BadRequest
from gateway.wire.http.messages import (
    Framing,
    RequestHead,
    RequestReader,
    check,
    response_head,
    without_upgrade,
)

if TYPE_CHECKING:
    from gateway.errors import GatewayError

LIMIT = 4096
POST = b"POST /a%20b?c=d HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class Read:
    """A reader and what it has read."""

    heads: list[RequestHead] = field(default_factory=list)
    body: bytes = b""
    ended: int = 0
    fault: GatewayError | None = None

    def __post_init__(self) -> None:
        self.reader = RequestReader()
        self.begun = False

    def feed(self, data: bytes) -> None:
        """Feed bytes that are all right, so far."""
        self._feed(data)
        assert self.fault is None

    def _feed(self, data: bytes) -> None:
        head, body, complete, self.fault = (
            self.reader.feed(data) if self.begun else self.reader.begin(data, LIMIT)
        )
        self.begun = True
        self.heads += [head] if head else []
        self.body += body
        self.ended += complete

    def refused(self, data: bytes) -> str:
        """Why bytes are refused, and with which code."""
        self._feed(data)
        assert self.fault
        return f"{self.fault.code}: {self.fault.message}"


def test_a_request_is_its_head_its_body_and_its_end() -> None:
    read = Read()
    read.feed(POST)
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
    read.feed(b"GET / HTTP/%b\r\nhost: x\r\n%b\r\n\r\n" % (version, header))
    (head,) = read.heads
    assert (head.keeps_alive, head.expects_continue) == (keeps_alive, expects_continue)


@given(st.lists(st.integers(1, len(POST) - 1), max_size=6))
def test_how_a_request_is_cut_changes_nothing(cuts: list[int]) -> None:
    read = Read()
    for start, end in itertools.pairwise([0, *sorted(cuts), len(POST)]):
        read.feed(POST[start:end])
    assert (len(read.heads), read.body, read.ended) == (1, b"hello", 1)
    assert read.heads[0].path == b"/a%20b"


def test_the_next_request_is_read_once_it_is_expected() -> None:
    read = Read()
    read.feed(POST)
    read.begun = False
    read.feed(GET)
    assert [head.method for head in read.heads] == ["POST", "GET"]
    assert read.refused(GET).startswith("bad_http: no valid HTTP request: a request behind one")


def test_headers_behind_a_body_are_dropped() -> None:
    read = Read()
    read.feed(CHUNKED + b"3\r\nabc\r\n0\r\nx-ocr-route: table\r\n\r\n")
    assert (read.body, read.ended) == (b"abc", 1)
    assert [name for name, _ in read.heads[0].headers] == [b"host", b"transfer-encoding"]


@pytest.mark.parametrize("rest", [b"", b"hello"])
def test_an_offer_of_another_protocol_is_declined_and_the_body_kept(rest: bytes) -> None:
    read = Read()
    head = b"POST / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: 5\r\n\r\n"
    read.feed(head + rest)
    read.feed(b"hello"[len(rest) :])
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


def test_what_came_before_a_fault_is_read() -> None:
    read = Read()
    assert read.refused(CHUNKED + b"3\r\nabc\r\nx").startswith(
        "bad_http: no valid HTTP request: it cannot be"
    )
    assert ([head.method for head in read.heads], read.body, read.ended) == (["POST"], b"abc", 0)


def test_what_has_been_read_is_not_kept() -> None:
    read = Read()
    read.feed(POST)
    kept = [value for value in vars(read.reader).values() if isinstance(value, bytes | list | RequestHead)]
    assert not any(kept)


def test_a_closed_reader_holds_nothing_of_a_request() -> None:
    read = Read()
    read.feed(POST[:40])
    read.reader.close()
    read.reader.close()
    assert [value for value in vars(read.reader).values() if isinstance(value, bytes | list) and value] == []
    assert read.reader._parser is None


HOST = (b"host", b"x")


@pytest.mark.parametrize(
    ("version", "method", "headers"),
    [
        ("1.1", b"POST", [HOST, (b"content-length", b"5 ")]),
        ("1.1", b"POST", [HOST, (b"transfer-encoding", b"Chunked")]),
        ("1.0", b"GET", []),
        ("1.0", b"GET", [HOST]),
    ],
)
def test_plain_heads_pass(version: str, method: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    check(version, method, headers)


@pytest.mark.parametrize(
    ("version", "method", "headers", "why"),
    [
        ("1.1", b"POST", [HOST, (b"transfer-encoding", b"gzip, chunked")], "chunked"),
        ("1.0", b"POST", [HOST, (b"transfer-encoding", b"chunked")], "chunked"),
        ("1.1", b"POST", [HOST, (b"content-length", b"0" * 20)], "too long"),
        ("1.1", b"GET", [], "one Host"),
        ("1.1", b"GET", [HOST, HOST], "one Host"),
        ("1.0", b"GET", [HOST, HOST], "one Host"),
        ("2.0", b"GET", [HOST], "version"),
        ("0.9", b"GET", [], "version"),
        ("1.1", b"CONNECT", [HOST], "proxy"),
    ],
)
def test_heads_that_may_be_seen_in_two_ways_do_not(
    version: str, method: bytes, headers: list[tuple[bytes, bytes]], why: str
) -> None:
    with pytest.raises(BadRequest, match=why) as error:
        check(version, method, headers)
    assert error.value.code == "bad_http"


def test_an_offer_of_another_protocol_is_left_away_and_nothing_else() -> None:
    headers = [
        HOST,
        (b"connection", b"Upgrade, close,HTTP2-Settings"),
        (b"upgrade", b"h2c"),
        (b"http2-settings", b"AA"),
        (b"x", b"y"),
    ]
    head = without_upgrade("1.1", b"POST", b"/a?b", headers)
    assert head == b"POST /a?b HTTP/1.1\r\nhost: x\r\nconnection:  close\r\nx: y\r\n\r\n"


LENGTH = {"content-length": "5"}
STREAM = {"content-type": "text/event-stream"}


@pytest.mark.parametrize(
    ("method", "version", "status", "headers", "framed"),
    [
        ("POST", "1.1", 200, LENGTH, Framing.LENGTH),
        ("POST", "1.0", 200, LENGTH, Framing.LENGTH),
        ("POST", "1.1", 200, STREAM, Framing.CHUNKED),
        ("POST", "1.0", 200, STREAM, Framing.UNTIL_CLOSE),  # RFC 9112, 6.1: it knows no chunks
        ("HEAD", "1.1", 200, LENGTH, Framing.NO_BODY),
        ("HEAD", "1.0", 200, STREAM, Framing.NO_BODY),
        ("GET", "1.1", 304, {}, Framing.NO_BODY),
        ("GET", "1.1", 204, {}, Framing.NO_BODY),
    ],
)
def test_a_body_is_framed_as_its_client_understands(
    method: str, version: str, status: int, headers: dict[str, str], framed: Framing
) -> None:
    head = response_head(method, version, status, headers, stays=True)
    assert head.framing is framed
    assert head.stays is (framed is not Framing.UNTIL_CLOSE)


@pytest.mark.parametrize(
    ("method", "version", "headers", "stays", "lines"),
    [
        ("GET", "1.1", {}, True, b"transfer-encoding: chunked\r\n"),
        ("GET", "1.1", {}, False, b"transfer-encoding: chunked\r\nconnection: close\r\n"),
        ("GET", "1.0", {}, False, b"connection: close\r\n"),
        ("GET", "1.0", {}, True, b"connection: close\r\n"),
        ("GET", "1.1", {"content-length": "5"}, True, b"content-length: 5\r\n"),
        ("HEAD", "1.1", {}, True, b""),
    ],
)
def test_a_head_tells_how_the_body_is_framed(
    method: str, version: str, headers: dict[str, str], stays: bool, lines: bytes
) -> None:
    common = [(b"date", b"now")]
    head = response_head(method, version, 200, {"x-a": "é", **headers}, stays=stays, common=common)
    assert head.data == b"HTTP/1.1 200 OK\r\ndate: now\r\nx-a: \xe9\r\n" + lines + b"\r\n"


def test_a_status_need_not_have_a_name() -> None:
    assert response_head("HEAD", "1.1", 499, {}, stays=True).data == b"HTTP/1.1 499 \r\n\r\n"


@pytest.mark.parametrize("value", ["a\r\nset-cookie: b", "a\nb", "a\r"])
def test_a_header_is_one_header(value: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        response_head("HEAD", "1.1", 200, {"x-a": value}, stays=True)
