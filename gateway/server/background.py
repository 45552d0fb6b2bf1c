"""Tasks that run beside others, and that nobody waits for."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

log = logging.getLogger(__name__)


@asynccontextmanager
async def background(*runs: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Run coroutines beside a block and cancel them when it is left; one that fails says so in the log."""
    tasks = [asyncio.create_task(run) for run in runs]
    for task in tasks:
        task.add_done_callback(report_failure)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def report_failure(task: asyncio.Task[None]) -> None:
    """Say in the log that a task failed: a callback for tasks nobody waits for."""
    if not task.cancelled() and (error := task.exception()):
        log.critical("a background task failed", exc_info=error)
