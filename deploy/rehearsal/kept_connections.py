"""Connections that are kept for further requests, each for one request at a time.

httpx' own pool is no help here: where several requests share it, it may close an idle connection just as it
gives it to one of them, and every request that is lost in a rehearsal has to be the gateway's.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

# Shared: reading all trusted certificates takes longer than a request.
_TLS = ssl.create_default_context()


class KeptConnections:
    """HTTP clients that have one connection each; the one used last is used next."""

    def __init__(self, keep_s: float, headers: Mapping[str, str] | None = None) -> None:
        """Connect nowhere yet.

        Args:
            keep_s: how long an idle connection is kept, in seconds.
            headers: every request's.
        """
        self._keep_s = keep_s
        self._headers = dict(headers or {})
        self._idle: list[tuple[float, httpx.AsyncClient]] = []

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        """Have a client to oneself, for one request."""
        while self._idle and self._idle[0][0] < time.monotonic() - self._keep_s:
            await self._idle.pop(0)[1].aclose()
        http = self._idle.pop()[1] if self._idle else self._new()
        try:
            yield http
        finally:
            self._idle.append((time.monotonic(), http))

    async def aclose(self) -> None:
        """Close the idle connections."""
        while self._idle:
            await self._idle.pop()[1].aclose()

    def _new(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            verify=_TLS,
            headers=self._headers,
            limits=httpx.Limits(keepalive_expiry=self._keep_s),
            timeout=None,  # noqa: S113 - a request may wait for long
            trust_env=False,
        )
