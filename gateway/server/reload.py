"""Takes a changed configuration file over while the gateway runs."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from gateway.config import load
from gateway.config.small_files import digest_of
from gateway.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from gateway.config import Config

log = logging.getLogger(__name__)

# A look at some small files; Kubernetes itself takes up to a minute to bring a changed ConfigMap.
_LOOK_S = 1.0


class Reloader:
    """Watches the configuration file, the profiles and the keys it names; an invalid change changes nothing.

    It watches what the file named when it was read last, valid or not, and be it not there yet: a profile may
    come a second later than the file that names it. It compares contents, not times: a Kubernetes ConfigMap
    changes by swapping a symbolic link.
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
        self._workers = config.workers
        self._apply = apply
        self._reloaded = reloaded
        self._seen: Mapping[Path, bytes] = config.sources
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
            found = await asyncio.to_thread(self._look)
            if self._asked.is_set() or found != self._seen:
                self._asked.clear()
                self._seen = found
                await self._reload()

    async def _reload(self) -> None:
        try:
            config = await asyncio.to_thread(load, self._path, again=True, workers=self._workers)
            # Not what the files hold by now: a change since they were read is one to take over.
            self._seen = config.sources
            await self._apply(config)
        except ConfigError as error:
            self._seen = error.sources or self._seen
            self._reloaded(False)
            for problem in error.problems:
                log.error("the changed configuration is not taken over: %s", problem)
            return
        except Exception:  # a fault of ours, which must not end the watch
            self._reloaded(False)
            log.exception("the changed configuration is not taken over")
            return
        self._reloaded(True)
        log.info("configuration %s has been taken over", self._path)

    def _look(self) -> Mapping[Path, bytes]:
        """What the configuration's files hold now."""
        return {path: digest_of(path) for path in self._seen}
