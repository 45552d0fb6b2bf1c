"""Reads small files that others may change or replace at any time."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = 16 * 1024 * 1024


def read_file(path: Path, *, or_pipe: bool = False) -> bytes:
    """Return what a file holds.

    Args:
        path: the file.
        or_pipe: whether it may be a pipe, such as /dev/stdin, which is then read to its end.

    Raises:
        OSError: it cannot be read, is larger than MAX_BYTES, or is no regular file and might never end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        kind = os.fstat(descriptor).st_mode
        if or_pipe and stat.S_ISFIFO(kind):
            os.set_blocking(descriptor, True)
        elif not stat.S_ISREG(kind):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {MAX_BYTES:,} bytes", str(path))
    return content


def digest_of(path: Path) -> bytes:
    """Return what tells one content of a file from another, b"" where it cannot be read."""
    try:
        return digest(read_file(path))
    except OSError:
        return b""


def digest(content: bytes) -> bytes:
    """Return a content's SHA-256."""
    return hashlib.sha256(content).digest()
