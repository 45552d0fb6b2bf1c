"""Connections to one port, accepted here and handed to worker processes."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import TYPE_CHECKING

from gateway.server.listen import BACKLOG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.server.worker_channel import WorkerHandle

log = logging.getLogger(__name__)

# Connections that are taken before others get their turn.
_TURN = 64
# While no worker can take a connection, or none can be accepted.
_FULL_S = 0.05


class ConnectionSharing:
    """Hands each connection to the worker that has the fewest."""

    def __init__(self, workers: Sequence[WorkerHandle]) -> None:
        """Share between `workers`, once `bind` and `listen` have been called."""
        self._workers = workers
        self._listeners: list[socket.socket] = []
        self._waiting: socket.socket | None = None  # accepted, and taken by no worker yet
        self._given = 0

    async def bind(self, host: str, port: int) -> None:
        """Take the port, 0 for a free one.

        Raises:
            OSError: somebody else has it.
        """
        loop = asyncio.get_running_loop()
        bound = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
        self._listeners = [socket.socket(fileno=os.dup(one.fileno())) for one in bound.sockets]
        bound.close()

    def listen(self) -> str:
        """Accept connections from now on; return the URL."""
        for listener in self._listeners:
            listener.setblocking(False)
            listener.listen(BACKLOG)
        self._watch()
        host, port = self._listeners[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def close(self) -> None:
        """Accept no more."""
        self._unwatch()
        for listener in self._listeners:
            listener.close()
        self._listeners = []

    def give(self, connection: socket.socket) -> bool:
        """Hand a connection to the worker that has the fewest; of several, to who has waited longest."""
        staying = [worker for worker in self._workers if not worker.draining] or self._workers
        for worker in sorted(staying, key=lambda one: (one.connections, one.given)):
            if worker.hand_over(connection, self._given + 1):
                self._given += 1
                return True
        return False

    def _watch(self) -> None:
        for listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _unwatch(self) -> None:
        for listener in self._listeners:
            asyncio.get_running_loop().remove_reader(listener)

    def _accept(self, listener: socket.socket) -> None:
        """Accept some connections and hand them over; pause where that cannot be."""
        for _ in range(_TURN):
            try:
                self._waiting = self._waiting or listener.accept()[0]
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptors left: they may be freed
                log.warning("no connection can be accepted: %s", error)
                break
            if not self.give(self._waiting):
                break
            self._waiting.close()
            self._waiting = None
        else:
            return
        self._unwatch()
        asyncio.get_running_loop().call_later(_FULL_S, self._watch)
