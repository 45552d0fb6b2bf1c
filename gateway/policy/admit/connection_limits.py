"""How long a connection may take over what it sends or reads, and how many there may be."""

from __future__ import annotations

# Bytes per second that any client manages: a tenth of a bad mobile uplink.
SLOWEST = 4096
# Open files beside connections: listeners, logs, the embedded engine, names being resolved, files being read.
SPARE_FILES = 256
# Connections to the admin port are few, and never have to make way for others.
ADMIN_CONNECTIONS = 64
# Of heads that are not complete yet, all together.
_HEADS_BYTES = 64 * 2**20


def overdue(elapsed_s: float, moved_bytes: int, allowed_s: float) -> bool:
    """Whether a body, or the reading of an answer, has taken too long.

    The rule of Apache's mod_reqtimeout: a fixed time, and more of it for what has come at the slowest rate.

    Args:
        elapsed_s: since the first byte could have come.
        moved_bytes: that came since.
        allowed_s: seconds for nothing or little.
    """
    return elapsed_s > allowed_s + moved_bytes / SLOWEST


def capacity(files: int, configured: int | None, places: int) -> int:
    """Return how many clients may be connected at once; at least 1.

    Args:
        files: that the process may have open.
        configured: limits.connections; None for as many as there can be.
        places: requests that engines may have at once, each on a connection of its own. Each has a client's
            connection, too, so that they never need more than half the files.
    """
    free = files - SPARE_FILES - ADMIN_CONNECTIONS
    return max(1, configured or free - min(places, free // 2))


def files_needed(configured: int | None, places: int, waiting: int) -> int:
    """Return how many open files the configured limits may come to need.

    Args:
        configured: limits.connections, if set.
        places: requests that engines may have at once.
        waiting: requests that may wait for one.
    """
    return SPARE_FILES + ADMIN_CONNECTIONS + places + (configured or places + waiting)


def heads_in_parts(header_bytes: int) -> int:
    """Return how many connections may have sent a part of a head.

    Args:
        header_bytes: that a head may have: limits.header_bytes.
    """
    return _HEADS_BYTES // header_bytes
