"""How far the reading of documents is: a bar in a terminal, else a line for each document."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.tools.output import counted, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO

    from gateway.tools.ocr.document_result import DocumentResult

_BAR = 24
_REDRAWN_S = 0.1
_CLEAR = "\r\x1b[K"


@dataclass(slots=True)
class DocumentTally:
    """Counts the documents that were read, skipped or failed.

    Attributes:
        documents: how many there are.
        read: names of those of which every page was read.
        skipped: of those whose whole results were there.
        failed: what failed, each with its reason.
        broken: names of documents of which something failed.
        cut: pages whose text is cut short.
        pages: pages read.
        under_way: what has come of documents that are being read, by name.
    """

    documents: int
    read: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    pages: int = 0
    under_way: dict[str, DocumentResult] = field(default_factory=dict)

    def skip(self, name: str) -> None:
        """Note that a result was there."""
        self.skipped.append(name)

    def fail(self, name: str, reason: str) -> None:
        """Note that a document could not be read."""
        self.under_way.pop(name, None)
        self.broken.append(name)
        self.failed.append(f"{name}: {reason}")

    def finish(self, name: str, answer: DocumentResult) -> None:
        """Note what was read of a document."""
        self.under_way.pop(name, None)
        failures = answer.failures()
        (self.broken if failures else self.read).append(name)
        self.failed += [f"{name}, {failure}" for failure in failures]
        self.cut += [f"{name}, page {index}" for index in answer.cut_short()]
        self.pages += len(answer.pages) - len(answer.broken())

    @property
    def done(self) -> int:
        """Documents that are done with."""
        return len(self.read) + len(self.skipped) + len(self.broken)

    @property
    def share(self) -> float:
        """The share of the work that is done, 0 to 1; all pages of a document count the same."""
        part = sum(len(answer.pages) / max(answer.expected, 1) for answer in self.under_way.values())
        return min(1.0, (self.done + part) / max(self.documents, 1))

    def summary(self, seconds: float) -> Iterator[str]:
        """Yield a summary, then a line for each failure and each page that was cut short.

        Args:
            seconds: how long it took.
        """
        parts = [f"{counted(len(self.read), 'document')} read"]
        if self.broken:
            parts.append(f"{len(self.broken)} failed, all or in part")
        if self.skipped:
            parts.append(f"{len(self.skipped)} skipped, whose results were there")
        rate = self.pages / seconds if seconds > 0 else 0.0
        yield f"{', '.join(parts)}; {counted(self.pages, 'page')} in {seconds:.1f} s, {rate:.1f} pages/s"
        yield from (f"failed: {line}" for line in self.failed)
        yield from (f"cut short at the longest answer: {page}" for page in self.cut)


class ProgressBar:
    """Shows a tally on a stream; a context manager, which removes the bar in the end."""

    def __init__(self, stream: TextIO, tally: DocumentTally, clock: Callable[[], float]) -> None:
        """Draw a bar where the stream is a terminal that can.

        Args:
            stream: where to.
            tally: what is told.
            clock: returns the time in seconds.
        """
        self._stream = stream
        self._tally = tally
        self._clock = clock
        self._started = clock()
        self._drawn_at = -1.0
        self._bar = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    def __enter__(self) -> ProgressBar:
        """Begin."""
        self.update()
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bar away."""
        if self._bar:
            self._print(_CLEAR)

    def update(self) -> None:
        """Draw the bar, unless that was just done."""
        now = self._clock()
        if self._bar and now - self._drawn_at >= _REDRAWN_S:
            self._drawn_at = now
            width = shutil.get_terminal_size().columns - 1
            self._print(f"{_CLEAR}{self.bar(now)[:width]}")

    def line(self, text: str) -> None:
        """Print a line about a document; in a terminal the bar alone is shown."""
        if self._bar:
            self._drawn_at = -1.0
            self.update()
        else:
            self._print(f"{text}\n")

    def bar(self, now: float) -> str:
        """Return the bar."""
        tally, seconds = self._tally, now - self._started
        filled = int(_BAR * tally.share)
        pages = tally.pages + sum(len(answer.pages) for answer in tally.under_way.values())
        rate = f", {pages / seconds:.1f} pages/s" if seconds > 0 else ""
        failed = f", {len(tally.broken)} failed" if tally.broken else ""
        current = printable(next(iter(tally.under_way), ""), 40)
        return (
            f"[{'#' * filled}{'.' * (_BAR - filled)}] "
            f"{tally.done} of {counted(tally.documents, 'document')}, "
            f"{counted(pages, 'page')}{rate}{failed}  {current}"
        )

    def _print(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
