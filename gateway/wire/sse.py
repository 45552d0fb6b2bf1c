"""Server-sent events: a byte stream cut into whole events, every byte kept."""

from __future__ import annotations

import re

from gateway.errors import EngineFailed

# A blank line: two line ends in a row, be they of different kinds. (CR LF is one.)
_END = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")

DONE = b"[DONE]"


class EventSplitter:
    """Cuts a stream into events; joined together again they are the stream."""

    def __init__(self, max_event_bytes: int = 4 * 1024 * 1024) -> None:
        self._buffer = bytearray()
        self._max = max_event_bytes

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that `data` completes, each with its closing blank line.

        Raises:
            EngineFailed: an event grew past the limit.
        """
        if not self._buffer and b"\r" not in data:  # as nearly always: takes half the time
            *whole, rest = data.split(b"\n\n")
            self._keep(rest)
            return [event + b"\n\n" for event in whole]
        # An end mark may straddle two reads, but never starts more than three bytes before the new data.
        seen = max(0, len(self._buffer) - 3)
        self._buffer += data
        events = []
        start = 0
        # Cut between a CR and its LF, an event leaves the LF to the next one, where it says nothing.
        for mark in _END.finditer(self._buffer, seen):
            events.append(bytes(self._buffer[start : mark.end()]))
            start = mark.end()
        del self._buffer[:start]
        self._keep(b"")
        return events

    def _keep(self, more: bytes) -> None:
        self._buffer += more
        if len(self._buffer) > self._max:
            raise EngineFailed(
                f"the engine sent an event of more than {self._max:,} bytes", code="bad_stream"
            )

    @property
    def pending(self) -> int:
        """Bytes of the event that is not whole yet."""
        return len(self._buffer)

    def rest(self) -> bytes:
        """Return what came after the last whole event."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest


def event_data(event: bytes) -> bytes | None:
    """Return the joined `data` lines of one event; None for comments and events without data."""
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2 and b"\r" not in event:
        return event[6:-2]  # as nearly always
    lines = [
        line[5:].removeprefix(b" ")
        for line in event.splitlines()
        if line == b"data" or line.startswith(b"data:")
    ]
    return b"\n".join(lines) if lines else None


def data_event(data: bytes) -> bytes:
    """Return an event that carries `data`, which holds no line break."""
    return b"data: %s\n\n" % data
