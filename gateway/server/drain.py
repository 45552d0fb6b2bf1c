"""Stopping without breaking anything off: work is taken for a while, then finished."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.api.connection_registry import ConnectionRegistry
    from gateway.state.store import State

log = logging.getLogger(__name__)

_LOOK_S = 0.05
# Without lingering, too, a client that has just been answered gets time to ask again where it is heard.
_PATIENCE_S = 0.5


async def drain(state: State, connections: ConnectionRegistry, *, linger: bool) -> None:
    """Return once work has ended: taken for `server.linger_s` more, then finished within `server.drain_s`.

    Args:
        state: the requests that there are, and the configuration.
        connections: those of the server that stops.
        linger: take work for `linger_s`; else for no time.
    """
    requests, server = state.requests, state.fleet.config.server
    requests.announce_stop()
    linger_s = server.linger_s if linger else 0
    patience_s = max(linger_s, _PATIENCE_S)
    end = time.monotonic() + linger_s
    if linger_s:
        log.info("stopping: work is taken for another %g s", linger_s)
    while (left := end - time.monotonic()) > 0:
        connections.close_idle(time.monotonic(), patience_s)
        await asyncio.sleep(min(left, _LOOK_S))
    kept = connections.close_idle(time.monotonic(), patience_s)
    requests.drain(kept)
    end = time.monotonic() + server.drain_s
    # Those that still come, such as a balancer's checks, are not waited for: they might never end.
    while kept & connections.close_idle(time.monotonic(), patience_s) or requests.open:
        if time.monotonic() > end:
            if requests.open:
                log.warning("stopping: %d requests are broken off (server.drain_s)", requests.open)
            return
        await asyncio.sleep(_LOOK_S)
