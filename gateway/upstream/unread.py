"""Whether a connection has bytes that nobody has read yet."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


def has_unread(transport: asyncio.BaseTransport) -> bool:
    """Return whether bytes, or the end, have come to a transport's socket and were not read yet."""
    return watch(transport)()


def watch(transport: asyncio.BaseTransport) -> Callable[[], bool]:
    """Return what tells the same again and again, for as long as the transport is open."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return lambda: bool(poll.poll(0))
