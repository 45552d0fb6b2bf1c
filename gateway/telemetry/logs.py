"""Log lines for people (text) or for machines (json); the access log is written from requests' records."""

from __future__ import annotations

import logging
import os
import re
import select
import threading
import time
import traceback
from datetime import UTC, datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gateway.model import PageCounts, RequestRecord

LogFormat = Literal["text", "json"]

_STDERR = 2
# What may wait for a slow standard error: some thousand lines.
_HELD_BYTES = 4 * 1024 * 1024
# Characters of a message, of a field and of a trace, of which the end tells most.
_MESSAGE, _FIELD, _TRACE = 4000, 500, 16_000
# The longest that the process' end is held up by it.
_FLUSH_S = 1.0
_NUMBERS = (int, float)
# So long lines gather that are no warnings: to wake the thread for each took 60 us a request.
_GATHER_S = 0.01


class Line:
    """A message that is written for every request, with other fields each time.

    What its records share is worked out once: to make one from scratch takes 10 us.
    """

    def __init__(self, logger: logging.Logger, message: str) -> None:
        """Prepare a message of level INFO."""
        self._logger = logger
        self._shared = logging.LogRecord(logger.name, logging.INFO, __file__, 0, message, None, None).__dict__

    def write(self, fields: Mapping[str, object]) -> None:
        """Log it with fields."""
        if self._logger.isEnabledFor(logging.INFO):
            record = logging.LogRecord.__new__(logging.LogRecord)
            now = time.time()
            age_ms = (now - self._shared["created"]) * 1000
            record.__dict__ = {
                **self._shared,
                "created": now,
                "msecs": now % 1 * 1000,
                "relativeCreated": self._shared["relativeCreated"] + age_ms,
                "fields": fields,
            }
            self._logger.handle(record)


class _Formatter(logging.Formatter):
    """Lines of bounded length without control characters: nothing that is logged can pass for another line.

    The lines of a trace are indented in text, and a string in json.
    """

    def __init__(self, kind: LogFormat) -> None:
        super().__init__()
        self._kind = kind
        self._encode = msgspec.json.Encoder(enc_hook=str).encode
        self._second = (-1, "")

    def format(self, record: logging.LogRecord) -> str:
        at = self._at(record.created)
        message = record.getMessage()
        if record.name == "asyncio":  # which goes on to quote what an error was about
            message = re.split(r"[\n(]", message, maxsplit=1)[0]
        message = _clean(message, _MESSAGE)
        fields = self._fields(getattr(record, "fields", {}))
        error = record.exc_info[1] if record.exc_info else None
        trace = "\n".join(_trace(error, set()))[-_TRACE:] if error else ""
        if self._kind == "json":
            line = {"at": at, "level": record.levelname, "logger": record.name, "message": message}
            return self._encode({**line, **fields, **({"trace": trace} if trace else {})}).decode()
        told = "".join([f" {name}={value}" for name, value in fields.items() if value not in ("", None)])
        rest = "".join(f"\n    {_clean(line, _TRACE)}" for line in trace.split("\n")) if trace else ""
        return f"{at} {record.levelname:<7} {message}{told}{rest}"

    def _at(self, seconds: float) -> str:
        second, text = self._second
        if int(seconds) != second:
            second = int(seconds)
            text = datetime.fromtimestamp(second, UTC).isoformat().removesuffix("+00:00")
            self._second = second, text
        return f"{text}.{int(seconds % 1 * 1000):03}+00:00"

    def _fields(self, fields: Mapping[str, object]) -> Mapping[str, object]:
        """Fields of bounded length without control characters."""
        texts = []
        for value in fields.values():
            if isinstance(value, str):
                texts.append(value)
            elif not (value is None or isinstance(value, _NUMBERS)):
                break
        else:
            # A request's are looked at all at once, which is 4 us less.
            text = "".join(texts)
            if len(text) <= _FIELD and text.isprintable():
                return fields
        return {name: self._field(value) for name, value in fields.items()}

    def _field(self, value: object) -> object:
        if value is None or isinstance(value, _NUMBERS):
            return value
        if self._kind == "json" and isinstance(value, list | tuple) and len(str(value)) <= _MESSAGE:
            return value
        return _clean(value, _FIELD)


def _trace(error: BaseException, told: set[int]) -> Iterator[str]:
    """Yield where an error comes from, after what led to it.

    Its words are the system's or none: those of any other error may quote a request.
    """
    told.add(id(error))
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    for before in (cause, *getattr(error, "exceptions", ())):
        if before is not None and id(before) not in told:
            yield from _trace(before, told)
            yield "which led to"
    yield "Traceback (most recent call last):"
    for entry in traceback.format_tb(error.__traceback__):
        yield from entry.splitlines()
    words = f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""
    yield f"{type(error).__module__}.{type(error).__qualname__}{words}"


def _clean(value: object, most: int) -> str:
    text = str(value)
    if len(text) > most:
        text = f"{text[:most]}... ({len(text):,} characters)"
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


class _Writer(logging.Handler):
    """Writes to a descriptor from a thread: a full disk or a pipe that nobody reads stops nobody else.

    Lines beyond `_HELD_BYTES` and lines that cannot be written are lost, and counted; once the log goes on,
    it says how many.
    """

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self._lines: list[bytes] = []
        self._held = 0
        self._changed = threading.Condition()
        self._closed = self._torn = self._urgent = False
        self._told = self.lost = 0
        # A daemon: one that is stuck in a write must not keep the process.
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
        except Exception as error:  # a fault of the line, not of whoever logs it
            text = f"a log line of {record.name}:{record.lineno} cannot be formatted: {type(error).__name__}"
        line = text.encode("utf-8", "backslashreplace") + b"\n"
        with self._changed:
            if self._held + len(line) > _HELD_BYTES:
                self.lost += 1
                return
            self._held += len(line)
            self._lines.append(line)
            if record.levelno >= logging.WARNING:
                self._hurry()
            elif len(self._lines) == 1:
                self._changed.notify_all()

    def flush(self) -> None:
        with self._changed:
            self._hurry()
            self._changed.wait_for(lambda: not self._held, _FLUSH_S)

    def _hurry(self) -> None:
        """Have what there is written at once."""
        self._urgent = True
        self._changed.notify_all()

    def close(self) -> None:
        self.flush()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        super().close()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._closed)
                self._changed.wait_for(lambda: self._urgent or self._closed, _GATHER_S)
                lines, self._lines, self._urgent = self._lines, [], False
            if not lines:
                return
            lost = sum(self._write(block) if self._tell_losses() else len(block) for block in _blocks(lines))
            with self._changed:
                self.lost += lost
                self._held -= sum(map(len, lines))
                self._changed.notify_all()

    def _tell_losses(self) -> bool:
        """Write how many lines are missing, if more than were told; tell whether the next may follow."""
        lost = self.lost
        if lost == self._told:
            return True
        text = f"{lost - self._told} log lines were lost: standard error did not take them"
        record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None)
        if self._write([self.format(record).encode() + b"\n"]):
            return False
        self._told = lost
        return True

    def _write(self, lines: list[bytes]) -> int:
        """Write lines; return how many were not taken, or not all of one."""
        left = b"".join([b"\n", *lines] if self._torn else lines)
        while left:
            try:
                written = os.write(self._fd, left)
            except BlockingIOError:  # whoever shares the descriptor may have made it so
                select.select([], [self._fd], [])
                continue
            except OSError:
                ends = accumulate(map(len, reversed(lines)))
                return next((number for number, end in enumerate(ends, 1) if end >= len(left)), len(lines))
            self._torn = left[written - 1 : written] != b"\n" if written else self._torn
            left = left[written:]
        return 0


def _blocks(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Lines to write at once: as many as a pipe takes whole, whoever else writes to it."""
    block: list[bytes] = []
    size = 0
    for line in lines:
        size += len(line)
        if block and size > select.PIPE_BUF:
            yield block
            block, size = [], len(line)
        block.append(line)
    yield block


def configure(kind: LogFormat, level: str = "info") -> None:
    """Send everything from a level up to standard error in one format; other libraries' from INFO up."""
    _keep_stderr()
    handler = _Writer(_STDERR)
    handler.setFormatter(_Formatter(kind))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("gateway").setLevel(level.upper())


def lost() -> int:
    """Return how many lines standard error did not take."""
    return sum(handler.lost for handler in logging.getLogger().handlers if isinstance(handler, _Writer))


def _keep_stderr() -> None:
    """Occupy the descriptor where it is closed, lest a socket gets the number, and a client our log."""
    try:
        os.fstat(_STDERR)
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        if null != _STDERR:
            os.dup2(null, _STDERR)
            os.close(null)
        os.set_inheritable(_STDERR, True)


_LOG = logging.getLogger("gateway.access")
_REQUEST = Line(_LOG, "request")
_DOCUMENT = Line(_LOG, "document")


def write_access(record: RequestRecord) -> None:
    """Log what became of a request."""
    if record.pages:
        _write_document(record, record.pages)
        return
    seconds, length, usage = record.first_token_s, record.acceptance_length, record.usage
    _REQUEST.write(
        {
            "request_id": record.request_id,
            "path": record.path,
            "code": record.code,
            "key": record.key,
            "route": record.route,
            "reason": record.reason,
            "pool": record.pool or "",
            "engine": record.engine or "",
            "depth": record.depth,
            "seconds": round(record.seconds, 4),
            "waited": round(record.waited_s, 4) or None,
            "first_token": round(seconds, 4) if seconds else None,
            "completion_tokens": usage.completion_tokens if usage else None,
            "acceptance_length": round(length, 4) if length else None,
            "acceptance_source": record.speculation_source,
            "trace_id": record.trace_id,
        }
    )


def _write_document(record: RequestRecord, pages: PageCounts) -> None:
    fields: dict[str, object] = {
        "request_id": record.request_id,
        "path": record.path,
        "code": record.code,
        "key": record.key,
        "seconds": round(record.seconds, 4),
    }
    if pages.requests:  # which have lines of their own
        _DOCUMENT.write({**fields, "pages": pages.total, "failed": pages.failed})
    else:
        _REQUEST.write({**fields, "error": record.error})
