import errno
import logging
import socket
import ssl

import pytest

from gateway.connect_failure import Cause, ConnectFailureLog, diagnose, explained


def wrapped(error: Exception) -> Exception:
    """An error as libraries pass it on: without words of its own, in a group, in another error."""
    outer = RuntimeError("all attempts failed")
    outer.__cause__ = ExceptionGroup("attempts", [error])
    return outer


@pytest.mark.parametrize(
    ("error", "cause", "detail"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), Cause.REFUSED, "Connection refused"),
        (OSError(errno.ENETUNREACH, "x"), Cause.NO_ROUTE, "Network is unreachable"),
        (ConnectionResetError(errno.ECONNRESET, "x"), Cause.CLOSED, "Connection reset by peer"),
        (ConnectionResetError(), Cause.CLOSED, ""),
        (ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), Cause.CLOSED, ""),
        (TimeoutError(), Cause.TIMEOUT, ""),
        (TimeoutError(errno.ETIMEDOUT, "x"), Cause.TIMEOUT, "Connection timed out"),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure"), Cause.NAME, "Temporary failure"),
        # Its number, 1, is OpenSSL's and not the system's.
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), Cause.TLS, ""),
        (OSError(errno.EMFILE, "x"), Cause.NO_SOCKETS, "Too many open files"),
        (OSError(errno.EADDRNOTAVAIL, "x"), Cause.NO_LOCAL_ADDRESS, "Cannot assign requested address"),
        (OSError("odd"), Cause.OTHER, ""),
        (ValueError("odd"), Cause.OTHER, ""),
    ],
)
def test_a_cause_is_found_however_its_error_is_wrapped(error: Exception, cause: Cause, detail: str) -> None:
    assert diagnose(error) == diagnose(wrapped(error)) == (cause, detail)


def test_what_is_wrong_with_a_certificate_is_a_detail() -> None:
    error = ssl.SSLCertVerificationError(1, "x")
    error.verify_message = "certificate has expired"
    assert diagnose(wrapped(error)) == (Cause.CERTIFICATE, "certificate has expired")


def test_a_cause_is_told_with_the_systems_words_in_brief_and_what_to_do() -> None:
    assert explained(wrapped(OSError(errno.ECONNREFUSED, "x"))) == (
        "it refuses connections (Connection refused); check that it runs and listens at this port"
    )
    assert explained(ssl.SSLError(1, "x")).startswith("it does not speak TLS as expected; check whether")
    assert len(Cause.CERTIFICATE.told("x" * 10_000)) < 500


def test_each_cause_at_each_peer_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    failures = ConnectFailureLog(logging.getLogger("gateway.x"), lambda: now)

    def logged() -> int:
        for _ in range(100):
            failures.write("engine a", Cause.REFUSED, "Connection refused")
            failures.write("engine b", Cause.REFUSED)
            failures.write("engine a", Cause.TLS)
        told = len(caplog.records)
        caplog.clear()
        return told

    failures.write("engine a", Cause.REFUSED, "Connection refused")
    assert caplog.messages == [
        "no connection to engine a: it refuses connections (Connection refused); "
        "check that it runs and listens at this port"
    ]
    assert logged() == 3
    now = 59.0
    assert logged() == 0
    now = 60.0
    assert logged() == 3
