from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import select
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.model import PageCounts, RequestRecord, Speculation, Usage
from gateway.telemetry import logs
from gateway.telemetry.logs import Line, _blocks, _Formatter, _Writer
from tests.telemetry.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def pipe() -> Iterator[tuple[int, Callable[[], bytes]]]:
    """The writing end of a pipe that holds 4 KiB, and what reads all that is in it, or nothing."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    yield writing, lambda: os.read(reading, 1 << 20) if select.select([reading], [], [], 0.1)[0] else b""
    os.close(reading)
    os.close(writing)


def logger_to(fd: int) -> tuple[_Writer, logging.Logger]:
    handler = _Writer(fd)
    log = logging.Logger("test")
    log.addHandler(handler)
    return handler, log


def line(kind: Literal["text", "json"], capfd: pytest.CaptureFixture[str]) -> str:
    logs.configure(kind)
    log = logging.getLogger("gateway.access")
    log.info("request", extra={"fields": {"code": 200, "engine": "", "route": "text"}})
    try:
        try:
            raise OSError(errno.EPIPE, "Broken pipe")
        except OSError as error:
            raise ValueError("words of a request") from error
    except ValueError:
        log.exception("fault")
    logging.getLogger().handlers[0].flush()
    assert logs.lost() == 0
    return capfd.readouterr().err


def test_json_lines_are_json(capfd: pytest.CaptureFixture[str]) -> None:
    first, second = map(json.loads, line("json", capfd).splitlines())
    assert first.items() >= {"message": "request", "code": 200, "route": "text", "level": "INFO"}.items()
    assert second["trace"].endswith("builtins.ValueError")


def test_text_lines_leave_out_what_is_empty(capfd: pytest.CaptureFixture[str]) -> None:
    first, second, *trace = line("text", capfd).splitlines()
    assert first.endswith("INFO    request code=200 route=text")
    assert second.endswith("ERROR   fault")
    assert trace[-1] == "    builtins.ValueError"
    assert "    builtins.BrokenPipeError: Broken pipe" in trace
    assert "    which led to" in trace


def test_requests_have_no_lines_where_warnings_alone_are_wanted(capfd: pytest.CaptureFixture[str]) -> None:
    logs.configure("text", "warning")
    Line(logging.getLogger("gateway.access"), "request").write({"code": 200})
    logging.getLogger("gateway.state.store").warning("an engine hangs")
    logging.getLogger().handlers[0].flush()
    (only,) = capfd.readouterr().err.splitlines()
    assert only.endswith("WARNING an engine hangs")


def test_a_trace_tells_all_that_led_to_an_error_and_nothing_of_what_it_was_about() -> None:
    def failed(word: str) -> Exception:
        try:
            raise KeyError("planted " + word)
        except KeyError as error:
            return error

    try:
        raise ExceptionGroup("planted too", [failed("a"), failed("b")])
    except ExceptionGroup as error:
        error.add_note("planted as well")
        error.exceptions[0].__context__ = error  # a circle
        record = logging.LogRecord("gateway", logging.ERROR, "", 0, "fault", None, sys.exc_info())
    line = _Formatter("text").format(record)
    assert line.count("builtins.KeyError\n    which led to") == 2
    assert line.count("in failed") == 2
    assert line.count("    Traceback (most recent call last):\n") == 3
    assert line.endswith("builtins.ExceptionGroup")
    assert "planted a" not in line
    assert "planted b" not in line


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the one that restores the loggers
@given(st.text(), st.text(), st.text())
def test_nothing_that_is_logged_passes_for_another_line(message: str, field: str, told: str) -> None:
    try:
        raise ValueError(told)
    except ValueError:
        error = sys.exc_info()
    record = logging.LogRecord("gateway", logging.INFO, "", 0, message.replace("%", ""), None, error)
    record.fields = {"request_id": field}
    first, *rest = _Formatter("text").format(record).split("\n")
    assert first.isprintable()
    assert all(line.startswith("    ") and line.isprintable() for line in rest)
    line = _Formatter("json").format(record)
    assert line.isprintable()
    assert json.loads(line)["message"].isprintable()


@pytest.mark.parametrize("kind", ["text", "json"])
def test_lines_are_bounded(kind: Literal["text", "json"]) -> None:
    try:
        raise OSError(errno.EIO, "x" * 10**6 + "the end")
    except OSError:
        error = sys.exc_info()
    record = logging.LogRecord("gateway", logging.INFO, "", 0, "m" * 10**6, None, error)
    record.fields = {"request_id": "y" * 10**6, "candidates": ["z"] * 10**6, "code": 200, "first": None}
    line = _Formatter(kind).format(record)
    assert len(line) < 25_000
    assert "(1,000,000 characters)" in line
    assert "the end" in line


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (
            "Task exception was never retrieved\nfuture: <Task ... ValueError('planted')>",
            "Task exception was never retrieved",
        ),
        ("Exception in callback Receiver.data(b'planted') at here", "Exception in callback Receiver.data"),
    ],
)
def test_the_event_loop_quotes_nothing(message: str, told: str) -> None:
    record = logging.LogRecord("asyncio", logging.ERROR, "", 0, message, None, None)
    assert json.loads(_Formatter("json").format(record))["message"] == told


def test_a_list_stays_one_in_json() -> None:
    record = logging.LogRecord("gateway", logging.INFO, "", 0, "choice", None, None)
    record.fields = {"candidates": [["e:80", 1.5, "free"]]}
    assert json.loads(_Formatter("json").format(record))["candidates"] == [["e:80", 1.5, "free"]]
    assert "candidates=[['e:80', 1.5, 'free']]" in _Formatter("text").format(record)


def test_what_nobody_reads_is_lost_and_its_number_is_told_afterwards(
    pipe: tuple[int, Callable[[], bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.telemetry.logs._HELD_BYTES", 2000)
    monkeypatch.setattr("gateway.telemetry.logs._FLUSH_S", 0)
    writing, read = pipe
    handler, log = logger_to(writing)
    for number in range(1000):
        log.info("line %04d %s", number, "." * 90)
    lost = handler.lost
    assert lost > 900
    text = b""
    monkeypatch.setattr("gateway.telemetry.logs._FLUSH_S", 10)
    while handler._held:
        text += read()
    log.info("the last")
    handler.close()
    text += read()
    lines = text.decode().splitlines()
    assert lines[-1] == "the last"
    told = [int(line.split()[0]) for line in lines if line.endswith("standard error did not take them")]
    assert sum(told) == lost
    assert len(lines) == 1000 - lost + len(told) + 1


def test_a_pipe_that_somebody_made_non_blocking_loses_nothing(
    pipe: tuple[int, Callable[[], bytes]],
) -> None:
    writing, read = pipe
    os.set_blocking(writing, False)
    handler, log = logger_to(writing)
    for number in range(200):
        log.info("line %04d %s", number, "." * 90)
    text = b""
    while text.count(b"\n") < 200:
        text += read()
    handler.close()
    assert handler.lost == 0
    assert [row.split()[1] for row in text.decode().splitlines()] == [f"{n:04}" for n in range(200)]


def test_a_full_disk_is_no_error_of_whoever_logs() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    handler, log = logger_to(full)
    for _ in range(3):
        log.warning("disk full")
    handler.close()
    os.close(full)
    assert handler.lost == 3


def test_a_line_that_was_torn_does_not_spoil_the_next(
    pipe: tuple[int, Callable[[], bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, read = pipe
    disk = os.write
    takes = iter([6, 0, 100, 100])

    def write(fd: int, data: bytes) -> int:
        if taken := next(takes):
            return disk(fd, data[:taken])
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr("gateway.telemetry.logs.os.write", write)
    handler, log = logger_to(writing)
    log.warning("a line of which six bytes find room")
    handler.flush()
    log.warning("another")
    handler.close()
    assert read().decode().splitlines() == [
        "a line",
        "1 log lines were lost: standard error did not take them",
        "another",
    ]


def test_a_line_that_cannot_be_formatted_says_whose_it_was(pipe: tuple[int, Callable[[], bytes]]) -> None:
    writing, read = pipe
    handler, log = logger_to(writing)
    log.warning("%d", "no number")
    log.warning("\udcff")
    handler.close()
    first, second = read().decode().splitlines()
    assert first.startswith("a log line of test:")
    assert "TypeError" in first
    assert second == "\\udcff"


def test_a_closed_standard_error_is_not_taken_by_a_socket() -> None:
    code = (
        "import os; os.close(2); from gateway.telemetry import logs; logs.configure('text');"
        "import socket, logging;"
        "one = socket.socket(); logging.warning('unheard'); logging.shutdown();"
        "print(one.fileno(), os.readlink('/proc/self/fd/2'), os.get_inheritable(2), logs.lost())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    number, *rest = done.stdout.decode().split()
    assert int(number) > 2
    assert rest == ["/dev/null", "True", "0"]


@pytest.mark.parametrize("kind", ["text", "json"])
def test_a_line_for_every_request_is_a_record_like_any(
    kind: Literal["text", "json"], pipe: tuple[int, Callable[[], bytes]]
) -> None:
    writing, read = pipe
    handler, log = logger_to(writing)
    handler.setFormatter(_Formatter(kind))
    records: list[logging.LogRecord] = []

    def marked(record: logging.LogRecord) -> bool:
        records.append(record)
        record.fields = {"worker": 3, **record.fields}  # type: ignore[attr-defined]
        return True

    handler.addFilter(marked)
    fields = {"code": 200, "key": "", "path": "\x1b[2J", "long": "y" * 600, "depth": None, "tags": ["a", 1]}
    line = Line(log, "request")
    log.info("request", extra={"fields": fields})
    line.write(fields)
    line.write(fields | {"code": 404})
    log.disabled = True
    line.write(fields)
    handler.close()
    whole, first, second = read().decode().splitlines()
    at = len("2026-11-30T12:00:00.000+00:00") + 8
    assert whole[at:] == first[at:]
    assert "worker" in first
    assert "404" in second
    usual, ours, _ = records
    assert ours.__dict__.keys() == usual.__dict__.keys()
    assert usual.created <= ours.created < usual.created + 60
    assert ours.msecs == pytest.approx(ours.created % 1 * 1000)
    assert ours.relativeCreated - usual.relativeCreated == pytest.approx(
        (ours.created - usual.created) * 1000, abs=0.01
    )


def test_the_time_is_that_of_the_record() -> None:
    formatter = _Formatter("text")
    for created, told in ((0.0, "1970-01-01T00:00:00.000"), (1.0625, "1970-01-01T00:00:01.062")) * 2:
        record = logging.LogRecord("gateway", logging.INFO, "", 0, "m", None, None)
        record.created = created
        assert formatter.format(record).startswith(f"{told}+00:00 ")


def test_lines_gather_but_a_warning_takes_them_along_at_once(
    pipe: tuple[int, Callable[[], bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.telemetry.logs._GATHER_S", 600)
    writing, read = pipe
    handler, log = logger_to(writing)
    for last in ("warning", "flush", "close"):
        log.info("one")
        log.info("two")
        assert read() == b""
        log.warning("three") if last == "warning" else getattr(handler, last)()
        text = b""
        while text.count(b"\n") < (3 if last == "warning" else 2):
            text += read()
        assert text.split()[:2] == [b"one", b"two"]


@given(st.lists(st.integers(1, 6000).map(lambda size: b"x" * size), min_size=1))
def test_what_is_written_at_once_goes_into_a_pipe_as_one(lines: list[bytes]) -> None:
    blocks = list(_blocks(lines))
    assert [line for block in blocks for line in block] == lines
    assert all(len(block) == 1 or sum(map(len, block)) <= select.PIPE_BUF for block in blocks)


@given(
    st.lists(st.lists(st.sampled_from([b"one\n", b"a longer\n", b"trace\n    of two lines\n"]), min_size=1)),
    st.lists(st.integers(0, 40)),
)
def test_each_line_is_written_whole_or_counted_as_lost(batches: list[list[bytes]], takes: list[int]) -> None:
    written, left = bytearray(), iter(takes)

    def write(fd: int, data: bytes) -> int:
        taken = next(left, len(data))
        if not taken:
            raise OSError(errno.ENOSPC, "no space")
        written.extend(data[:taken])
        return min(taken, len(data))

    writer = _Writer(-1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.telemetry.logs.os.write", write)
        lost = sum(writer._write(batch) for batch in batches)
        writer._write([b"end\n"])
    writer.close()
    seen = bytes(written).split(b"\n")
    whole = sum(seen.count(line.splitlines()[-1]) for line in {line for batch in batches for line in batch})
    # Of one that lacks nothing but its end of line, that is made up later.
    assert sum(map(len, batches)) - lost <= whole <= sum(map(len, batches))
    parts = {part for batch in batches for line in batch for part in line.splitlines()} | {b"end"}
    assert all(any(part.startswith(piece) for part in parts) for piece in seen)
    assert b"end" in seen or takes


def access_line(caplog: pytest.LogCaptureFixture, one: RequestRecord) -> tuple[str, dict[str, Any]]:
    caplog.set_level(logging.INFO, "gateway.access")
    caplog.clear()
    logs.write_access(one)
    (logged,) = caplog.records
    return logged.getMessage(), logged.fields  # type: ignore[attr-defined]


def test_a_requests_line_has_these_fields(caplog: pytest.LogCaptureFixture) -> None:
    served = record(
        code=200,
        seconds=1.23456,
        key="team-a",
        route="table",
        reason="prompt",
        pool="mtp3",
        engine="e:1",
        depth=3,
        waited_s=0.123456,
        first_token_s=0.5,
        usage=Usage(7, 40),
        speculation=Speculation(3, 4),
        acceptance_length=1 + 4 / 3,
        speculation_source="request",
        trace_id="abc",
        retried=("died",),
        why="load, retried after died",
    )
    assert access_line(caplog, served) == (
        "request",
        {
            "request_id": "id",
            "path": "/v1/chat/completions",
            "code": 200,
            "key": "team-a",
            "route": "table",
            "reason": "prompt",
            "pool": "mtp3",
            "engine": "e:1",
            "depth": 3,
            "seconds": 1.2346,
            "waited": 0.1235,
            "first_token": 0.5,
            "completion_tokens": 40,
            "acceptance_length": 2.3333,
            "acceptance_source": "request",
            "trace_id": "abc",
        },
    )


def test_what_is_not_known_is_empty(caplog: pytest.LogCaptureFixture) -> None:
    assert access_line(caplog, record(error="model_not_found")) == (
        "request",
        {
            **{"request_id": "id", "path": "/v1/chat/completions", "code": 400, "seconds": 1.0},
            **dict.fromkeys(("key", "route", "reason", "pool", "engine"), ""),
            **dict.fromkeys(("depth", "waited", "first_token", "completion_tokens"), None),
            **dict.fromkeys(("acceptance_length", "acceptance_source", "trace_id"), None),
        },
    )


def test_a_document_has_a_line_of_its_own_beside_its_pages_and_else_one_like_a_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    known = {"request_id": "id", "path": "/v1/ocr", "code": 502, "key": "", "seconds": 1.0}
    read = record(path="/v1/ocr", code=502, error="engine_died", pages=PageCounts(5, 2, 7))
    assert access_line(caplog, read) == ("document", {**known, "pages": 5, "failed": 2})
    refused = read._replace(pages=PageCounts(5, 5, 0))
    assert access_line(caplog, refused) == ("request", {**known, "error": "engine_died"})
