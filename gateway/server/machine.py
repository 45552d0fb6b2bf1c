"""The memory that the process may use, and how its allocator keeps and returns it."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

# Where the system does not say.
_ASSUMED_BYTES = 4 * 2**30

# glibc's mallopt.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
# Larger blocks are the system's: few bodies are, and each goes back when it is freed.
_LARGE_BYTES = 8 * 2**20
_KEPT_BYTES = 256 * 2**20


def memory_bytes(root: Path = Path("/"), installed: int | None = None) -> int:
    """Return the bytes of memory the process may use: its control groups' least limit, or all there are.

    Args:
        root: of the file system, in which Linux shows control groups (version 1 or 2, or both).
        installed: bytes that the machine has; None asks the system.
    """
    return min([_installed() if installed is None else installed, *_limits(root)])


def keep_memory() -> bool:
    """Have the allocator keep freed memory for the next body; return whether it can.

    By default glibc maps each block of some 100 kB anew, and every page of it is a fault. To fill 200 kB took
    270 us in a virtual machine, and takes 50 so; 1.5 MB 1,700 and 470.
    """
    mallopt = getattr(_libc(), "mallopt", None)
    if mallopt is None:  # not glibc
        return False
    settings = {_MMAP_THRESHOLD: _LARGE_BYTES, _TRIM_THRESHOLD: _KEPT_BYTES, _TOP_PAD: _LARGE_BYTES}
    return all(mallopt(name, value) for name, value in settings.items())


def return_memory() -> None:
    """Give the pages that are free back to the system.

    Now and then, lest a burst's memory stays: one small block above it keeps the heap from shrinking.
    """
    if trim := getattr(_libc(), "malloc_trim", None):  # else not glibc
        trim(0)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _installed() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return _ASSUMED_BYTES


def _limits(root: Path) -> list[int]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except (OSError, UnicodeError):
        return []
    groups = [parts for line in lines if len(parts := line.split(":", 2)) == 3]
    found = []
    for _, controllers, path in groups:
        if controllers == "":
            base, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # A container sees its own group as the root, though it may be told its path on the host.
        own = base / path.lstrip("/")
        for folder in (own, *own.parents):
            found += _limit(folder / name)
            if folder == base:
                break
    return found


def _limit(file: Path) -> list[int]:
    """The limit in a file, if there is one: a group without a limit has `max`, the root has no such file."""
    try:
        return [int(file.read_text())]
    except (OSError, ValueError):
        return []
