"""A stream's ordinary steps, told by what they have in common: all of a chunk but the text that it adds."""

from __future__ import annotations

import re

import msgspec

from gateway.wire import sse
from gateway.wire.openai.completion import StreamChunk, read_chunk

# A chunk's text, where it may stand.
_TEXT = re.compile(rb'"(?:content|text)"\s*:\s*"((?:[^"\\]|\\.)++)"')
_STRING = msgspec.json.Decoder(str)
# Longer events may hold more than is read of a chunk; see completion.read_chunk.
_MAX_BYTES = 8192
# So many chunks are looked at for a pattern; some engines write theirs anew each time.
_TRIES = 3
_STEP = StreamChunk(is_chunk=True, has_output=True, is_step=True)


class Steps:
    """Recognises events that differ from an ordinary step in nothing but their text.

    Splitting and reading each takes 8 us of CPU, this takes under 2 (bench/results/costs.md).
    """

    __slots__ = ("_after", "_before", "_least", "_tries")

    def __init__(self) -> None:
        self._before = self._after = b""
        self._least = 0
        self._tries = _TRIES

    def learn(self, event: bytes) -> None:
        """Take an event for the pattern, if it is an ordinary step with text and nothing was learnt yet."""
        line = event.removesuffix(b"\n\n")
        if self._least or not self._tries or b"\n" in line or b"\r" in line:
            return
        self._tries -= 1
        text = _TEXT.search(line)
        if text is None:
            return
        before, after = line[: text.start(1)], line[text.end(1) :]
        # That nothing else depends on the text is seen by changing it.
        with_text, without = (_read(before + other + after) for other in (b"x", b""))
        if with_text == _STEP and not without.has_output:
            self._before, self._after = before, after
            self._least = len(before) + len(after) + 1

    def count(self, data: bytes) -> int:
        """Return how many events these are, if they are whole and ordinary steps with text; else 0."""
        before, after, least = self._before, self._after, self._least
        events = data.split(b"\n\n")
        if not least or events.pop():
            return 0
        for event in events:
            if not (least <= len(event) <= _MAX_BYTES and event.startswith(before) and event.endswith(after)):
                return 0
            try:
                _STRING.decode(event[len(before) - 1 : len(event) - len(after) + 1])
            except (msgspec.MsgspecError, UnicodeDecodeError):
                return 0
        return len(events)


def _read(line: bytes) -> StreamChunk:
    return read_chunk(sse.event_data(line) or b"")
