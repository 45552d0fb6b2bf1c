"""What commands print, and to whom: words and tables that several of them share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TextIO


def nobody_reads(stream: TextIO) -> None:
    """Discard what the stream still holds and all that is printed later: its reader has left (`| head`)."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def say(text: str, stream: TextIO) -> None:
    """Print a text at once; a reader that has left is no reason to end."""
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        nobody_reads(stream)


def printable(text: str, most: int = 300) -> str:
    """Return a name or a message in one line of bounded length, without what would steer a terminal."""
    line = " ".join(text.encode("utf-8", "replace").decode().split())
    line = "".join(character if character.isprintable() else "?" for character in line)
    return line if len(line) <= most else f"{line[:most]}..."


def counted(number: int, what: str) -> str:
    """Return `1 page`, `2 pages`."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def listed(parts: Sequence[str]) -> str:
    """Return `a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def duration(seconds: float) -> str:
    """Return a duration as people read it: `45 s`, `12 min`, `3 h 05 min`."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02} min"


def aligned(rows: Sequence[Sequence[str]], *, right: bool = False) -> Iterator[str]:
    """Yield a table's rows as lines, their columns to the left or to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.rjust(width) if right else cell.ljust(width) for cell, width in zip(row, widths, strict=True)
        )
        yield "  ".join(cells).rstrip()
