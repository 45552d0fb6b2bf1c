"""Whether a connection has bytes that nobody has read yet."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


def has_unread(transport: asyncio.BaseTransport) -> bool:
    """Return whether bytes, or the end, have come to a transport's socket and were not read yet."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(poll.poll(0))
