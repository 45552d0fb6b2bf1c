"""Why a connection could not be made: in a few words for clients, with details and advice for the log."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterator

# So long the same cause at the same peer is old news.
_REPEAT_S = 60.0
# Of the system's words, which may name a host.
_DETAIL_CHARS = 200


class Cause(Enum):
    """What may be wrong between the gateway and a peer.

    Attributes:
        words: what is wrong, without any address, so that clients may be told.
        advice: what an operator can do about it.
    """

    NAME = (
        "its name cannot be resolved",
        "check the name's spelling and the DNS server of this machine",
    )
    REFUSED = ("it refuses connections", "check that it runs and listens at this port")
    NO_ROUTE = ("there is no route to it", "check its address, routes and firewalls")
    CLOSED = ("it closes new connections", "check its log, and any proxy in between")
    TIMEOUT = (
        "connecting to it takes too long",
        "check its address, firewalls, and how busy its machine is",
    )
    CERTIFICATE = (
        "it has no certificate that is trusted here",
        "give it a valid certificate for this name, or name a file with its authority: "
        "an engine's in pools.NAME.ca_file, any other in SSL_CERT_FILE",
    )
    TLS = (
        "it does not speak TLS as expected",
        "check whether its URL should begin with http://, and which versions of TLS it has",
    )
    NO_SOCKETS = ("the gateway has no sockets left", "raise the gateway's limit of open files")
    NO_LOCAL_ADDRESS = (
        "the gateway has no address or port left to connect from",
        "check the range of local ports and, for an IPv6 address, that this machine has IPv6",
    )
    OTHER = ("the connection fails", "check its address and its log")

    def __init__(self, words: str, advice: str) -> None:
        self.words = words
        self.advice = advice

    def told(self, detail: str) -> str:
        """Return what is wrong, the system's words for it where there are any, and what to do."""
        system = f" ({detail[:_DETAIL_CHARS]})" if detail else ""
        return f"{self.words}{system}; {self.advice}"


_BY_ERRNO = {
    errno.ECONNREFUSED: Cause.REFUSED,
    **dict.fromkeys((errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN), Cause.NO_ROUTE),
    **dict.fromkeys((errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE), Cause.CLOSED),
    errno.ETIMEDOUT: Cause.TIMEOUT,
    **dict.fromkeys((errno.EMFILE, errno.ENFILE, errno.ENOBUFS), Cause.NO_SOCKETS),
    errno.EADDRNOTAVAIL: Cause.NO_LOCAL_ADDRESS,
}


def diagnose(error: BaseException) -> tuple[Cause, str]:
    """Return why a connection failed, and the system's own words, where it has any.

    Args:
        error: what was raised; libraries wrap the system's error in their own.
    """
    for found in _chain(error):
        match found:
            case ssl.SSLCertVerificationError():
                return Cause.CERTIFICATE, getattr(found, "verify_message", "")
            case ssl.SSLEOFError():
                return Cause.CLOSED, ""
            case ssl.SSLError():
                return Cause.TLS, getattr(found, "reason", "") or ""
            case socket.gaierror():
                return Cause.NAME, found.strerror or ""
            case OSError(errno=int(number)) if number in _BY_ERRNO:
                return _BY_ERRNO[number], os.strerror(number)
            case TimeoutError():
                return Cause.TIMEOUT, ""
            case ConnectionError():
                return Cause.CLOSED, ""
    return Cause.OTHER, ""


def explained(error: BaseException) -> str:
    """Return why a connection failed, the system's words for it, and what to do: for logs and operators."""
    cause, detail = diagnose(error)
    return cause.told(detail)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what led to it."""
    yield error
    for inner in getattr(error, "exceptions", ()):
        yield from _chain(inner)
    if cause := error.__cause__ or error.__context__:
        yield from _chain(cause)


class ConnectFailureLog:
    """Logs failed connections: each cause at each peer once a minute, however many requests meet it."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float]) -> None:
        """Have logged nothing.

        Args:
            log: where to.
            clock: the time in seconds.
        """
        self._log = log
        self._clock = clock
        self._quiet_until: dict[tuple[str, Cause], float] = {}

    def write(self, peer: str, cause: Cause, detail: str = "") -> None:
        """Log a failed connection, unless the same was logged a moment ago.

        Args:
            peer: names whom the connection was to lead to, such as "engine vllm:8000".
            cause: why it failed.
            detail: the system's words for it.
        """
        now = self._clock()
        if self._quiet_until.get((peer, cause), now) > now:
            return
        self._quiet_until = {key: until for key, until in self._quiet_until.items() if until > now}
        self._quiet_until[peer, cause] = now + _REPEAT_S
        self._log.warning("no connection to %s: %s", peer, cause.told(detail))
