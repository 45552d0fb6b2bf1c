"""Whether a connection has bytes that nobody has read yet."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


def has_unread(transport: asyncio.BaseTransport) -> bool:
    """Return whether unread bytes, or the peer's end of the connection, wait in a transport's socket."""
    return unread_check(transport)()


def unread_check(transport: asyncio.BaseTransport) -> Callable[[], bool]:
    """Return a function that says so each time it is called, for as long as the transport is open."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return lambda: bool(poll.poll(0))
