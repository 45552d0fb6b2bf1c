"""Log lines for people (text) or for machines (json); fields travel in `extra={"fields": {...}}`."""

from __future__ import annotations

import json
import logging
import os
import re
import select
import threading
import traceback
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

LogFormat = Literal["text", "json"]

_STDERR = 2
# What may wait for a slow standard error: some thousand lines.
_HELD_BYTES = 4 * 1024 * 1024
# Characters of a message, of a field and of a trace, of which the end tells most.
_MESSAGE, _FIELD, _TRACE = 4000, 500, 16_000
# The longest that the process' end is held up by it.
_FLUSH_S = 1.0


class _Formatter(logging.Formatter):
    """Lines of bounded length without control characters: nothing that is logged can pass for another line.

    The lines of a trace are indented in text, and a string in json.
    """

    def __init__(self, kind: LogFormat) -> None:
        super().__init__()
        self._kind = kind

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        message = record.getMessage()
        if record.name == "asyncio":  # which goes on to quote what an error was about
            message = re.split(r"[\n(]", message, maxsplit=1)[0]
        message = _clean(message, _MESSAGE)
        fields = {name: self._field(value) for name, value in getattr(record, "fields", {}).items()}
        error = record.exc_info[1] if record.exc_info else None
        trace = "\n".join(_trace(error, set()))[-_TRACE:] if error else ""
        if self._kind == "json":
            line = {"at": at, "level": record.levelname, "logger": record.name, "message": message}
            return json.dumps({**line, **fields, **({"trace": trace} if trace else {})}, default=str)
        told = "".join(f" {name}={value}" for name, value in fields.items() if value not in ("", None))
        rest = "".join(f"\n    {_clean(line, _TRACE)}" for line in trace.split("\n")) if trace else ""
        return f"{at} {record.levelname:<7} {message}{told}{rest}"

    def _field(self, value: object) -> object:
        if value is None or isinstance(value, bool | int | float):
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
        self._closed = self._torn = False
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
            self._changed.notify_all()

    def flush(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._held, _FLUSH_S)

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
                lines, self._lines = self._lines, []
            if not lines:
                return
            lost = sum(not (self._tell_losses() and self._write(line)) for line in lines)
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
        if not self._write(self.format(record).encode() + b"\n"):
            return False
        self._told = lost
        return True

    def _write(self, line: bytes) -> bool:
        """Write a line; tell whether all of it was taken."""
        left = b"\n" + line if self._torn else line
        while left:
            try:
                written = os.write(self._fd, left)
            except BlockingIOError:  # whoever shares the descriptor may have made it so
                select.select([], [self._fd], [])
                continue
            except OSError:
                return False
            left = left[written:]
            self._torn = bool(left)
        return True


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
