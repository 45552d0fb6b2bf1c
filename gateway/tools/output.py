"""What commands print, and to whom."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TextIO


def nobody_reads(stream: TextIO) -> None:
    """Let all that is still to be printed go nowhere, also what the stream holds back: after `| head`."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def printable(text: str, most: int = 300) -> str:
    """Return a name or a message in one line of bounded length, without what would steer a terminal."""
    line = " ".join(text.encode("utf-8", "replace").decode().split())
    line = "".join(character if character.isprintable() else "?" for character in line)
    return line if len(line) <= most else f"{line[:most]}..."
