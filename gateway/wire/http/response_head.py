"""The head of an answer, and how its body is framed (RFC 9112, section 6)."""

from __future__ import annotations

from enum import Enum, auto
from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_BODILESS = frozenset({204, 304})
_REASONS = {status.value: status.phrase for status in HTTPStatus}


class Framing(Enum):
    """How a client knows where an answer's body ends.

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


def framing(method: str, version: str, status: int, headers: Mapping[str, str]) -> Framing:
    """Return how the body of an answer is framed.

    Args:
        method: the request's, in upper case.
        version: the client's, `1.0` or `1.1`.
        status: the answer's.
        headers: the answer's, names in lower case.
    """
    if method == "HEAD" or status in _BODILESS:
        return Framing.NO_BODY
    if "content-length" in headers:
        return Framing.LENGTH
    return Framing.CHUNKED if version == "1.1" else Framing.UNTIL_CLOSE


def head(
    status: int,
    headers: Mapping[str, str],
    framed: Framing,
    *,
    close: bool,
    common: Iterable[tuple[bytes, bytes]] = (),
) -> bytes:
    """Return an answer's head.

    Args:
        status: HTTP status.
        headers: names in lower case; `transfer-encoding` and `connection` are added here.
        framed: how the body is.
        close: the answer is the connection's last.
        common: headers of every answer.

    Raises:
        ValueError: a header would be several.
    """
    text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if text.count("\r") + text.count("\n") != 2 * len(headers):
        raise ValueError("a header with a line break")
    return b"".join(
        [
            _STATUS_LINES.get(status) or _status_line(status),
            *[b"%b: %b\r\n" % item for item in common],
            text.encode("latin-1", "replace"),
            b"transfer-encoding: chunked\r\n" if framed is Framing.CHUNKED else b"",
            b"connection: close\r\n\r\n" if close else b"\r\n",
        ]
    )


def _status_line(status: int) -> bytes:
    return f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\n".encode()


_STATUS_LINES = {status: _status_line(status) for status in _REASONS}
