"""What the process may use of the machine it runs on."""

from __future__ import annotations

import os
from pathlib import Path

# Where nothing tells.
_ASSUMED_BYTES = 4 * 2**30


def memory_bytes(root: Path = Path("/"), installed: int | None = None) -> int:
    """Return the bytes of memory the process may use: its control groups' least limit, or all there are.

    Args:
        root: of the file system, in which Linux tells of control groups (version 1 or 2, or both).
        installed: bytes that the machine has; asked of the system unless given.
    """
    return min([_installed() if installed is None else installed, *_limits(root)])


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
    """The limit that a file tells, if it does: a group without one says `max`, the root has no such file."""
    try:
        return [int(file.read_text())]
    except (OSError, ValueError):
        return []
