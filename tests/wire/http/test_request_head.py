"""The heads of requests, beyond syntax."""

from __future__ import annotations

import pytest

from gateway.errors import BadRequest
from gateway.wire.http.request_head import check, without_upgrade

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
