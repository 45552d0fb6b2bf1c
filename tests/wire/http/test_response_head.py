"""How answers begin, and how their clients know where they end."""

from __future__ import annotations

import pytest

from gateway.wire.http.response_head import Framing, framing, head

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
    assert framing(method, version, status, headers) is framed


@pytest.mark.parametrize(
    ("framed", "close", "lines"),
    [
        (Framing.CHUNKED, False, b"transfer-encoding: chunked\r\n"),
        (Framing.CHUNKED, True, b"transfer-encoding: chunked\r\nconnection: close\r\n"),
        (Framing.UNTIL_CLOSE, True, b"connection: close\r\n"),
        (Framing.LENGTH, False, b""),
        (Framing.NO_BODY, False, b""),
    ],
)
def test_a_head_tells_how_the_body_is_framed(framed: Framing, close: bool, lines: bytes) -> None:
    common = [(b"date", b"now")]
    assert head(200, {"x-a": "é"}, framed, close=close, common=common) == (
        b"HTTP/1.1 200 OK\r\ndate: now\r\nx-a: \xe9\r\n" + lines + b"\r\n"
    )


def test_a_status_need_not_have_a_name() -> None:
    assert head(499, {}, Framing.NO_BODY, close=False) == b"HTTP/1.1 499 \r\n\r\n"


@pytest.mark.parametrize("value", ["a\r\nset-cookie: b", "a\nb", "a\r"])
def test_a_header_is_one_header(value: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        head(200, {"x-a": value}, Framing.NO_BODY, close=False)
