"""Reads engines' /health in the background."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from gateway.client import EngineClient
    from gateway.model import Engine
    from gateway.state import State

log = logging.getLogger(__name__)

# A busy engine may be slow to say that it is well: silence counts only when it lasts.
_SILENT_POLLS = 3
_MIN_PATIENCE_S = 2.0
# An engine this long without a word will not find it again by itself.
_HUNG_POLLS = 15


class Poller:
    """Keeps the state's view of which engines answer; `on_hung` hears of one that accepts and never does."""

    def __init__(
        self,
        state: State,
        client: EngineClient,
        scrape_s: float,
        rng: Random,
        on_hung: Callable[[Engine], None] = lambda _: None,
    ) -> None:
        self._state = state
        self._client = client
        self._scrape_s = scrape_s
        self._rng = rng
        self._on_hung = on_hung

    async def run(self) -> None:
        """Poll every engine until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for view in self._state.snapshot().engines:
                tasks.create_task(self._watch(view.engine))

    async def _watch(self, engine: Engine) -> None:
        silent = 0
        while True:
            try:
                well = await self._client.healthy(engine, max(_MIN_PATIENCE_S, self._scrape_s))
            except Exception:  # one engine's trouble must not end the watch over the others
                log.exception("engine %s cannot be polled", engine.name)
                well = False
            silent = silent + 1 if well is None else 0
            if silent == _HUNG_POLLS:
                self._on_hung(engine)
            if well is not None or silent >= _SILENT_POLLS:
                self._note(engine, up=bool(well))
            # Jitter keeps many gateways from asking in step.
            await asyncio.sleep(self._scrape_s * self._rng.uniform(0.8, 1.2))

    def _note(self, engine: Engine, *, up: bool) -> None:
        if self._state.mark(engine.name, up=up):
            log.log(
                logging.INFO if up else logging.WARNING,
                "engine %s is %s",
                engine.name,
                "up" if up else "down",
            )
