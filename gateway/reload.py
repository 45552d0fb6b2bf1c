"""Takes a changed configuration file over while the gateway runs."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import TYPE_CHECKING

from gateway.config import load, require_safe
from gateway.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from gateway.config import Config

log = logging.getLogger(__name__)

# A look at some small files; Kubernetes itself takes up to a minute to bring a changed ConfigMap.
_LOOK_S = 1.0


class Reloader:
    """Watches the configuration file and the profiles it names; an invalid change changes nothing.

    It compares contents, not times: a Kubernetes ConfigMap changes by swapping a symbolic link.
    """

    def __init__(
        self,
        path: Path,
        config: Config,
        apply: Callable[[Config], Awaitable[None]],
        reloaded: Callable[[bool], None],
    ) -> None:
        """Watch a file.

        Args:
            path: the configuration file.
            config: what was loaded from it.
            apply: takes a valid configuration over; may raise ConfigError.
            reloaded: hears of each change whether it was taken over.
        """
        self._path = path
        self._config = config
        self._apply = apply
        self._reloaded = reloaded
        self._seen = self._fingerprint()
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Load the file again even if it has not changed (SIGHUP)."""
        self._asked.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._asked.wait()
            except TimeoutError:
                pass
            fingerprint = await asyncio.to_thread(self._fingerprint)
            if self._asked.is_set() or fingerprint != self._seen:
                self._asked.clear()
                self._seen = fingerprint
                await self._reload()

    async def _reload(self) -> None:
        try:
            config = await asyncio.to_thread(load, self._path)
            require_safe(config, self._path)
            await self._apply(config)
        except ConfigError as error:
            self._reloaded(False)
            for problem in error.problems:
                log.error("the changed configuration is not taken over: %s", problem)
            return
        except Exception:  # a fault of ours, which must not end the watch
            self._reloaded(False)
            log.exception("the changed configuration is not taken over")
            return
        self._config = config
        # It may name other profiles than the one before.
        self._seen = await asyncio.to_thread(self._fingerprint)
        self._reloaded(True)
        log.info("configuration %s has been taken over", self._path)

    def _fingerprint(self) -> bytes:
        """A digest of the file and of its profiles; what cannot be read counts as empty."""
        digest = hashlib.sha256()
        profiles = [route.profile for route in self._config.routes.values() if route.profile]
        for path in (self._path, *(self._path.parent / profile for profile in profiles)):
            try:
                content = path.read_bytes()
            except OSError:
                content = b""
            digest.update(b"%d:" % len(content) + content)
        return digest.digest()
