"""What a head must be beyond what the parser checks, so that no two readers see different requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    Headers = Sequence[tuple[bytes, bytes]]

# The longest length that a 64-bit number holds; int() refuses text of thousands of digits.
_LENGTH_DIGITS = 19
_UPGRADE = (b"upgrade", b"http2-settings")


def check(version: str, method: bytes, headers: Headers) -> None:
    """Check a head whose syntax the parser has checked: one way to say where the body ends, and one host.

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
