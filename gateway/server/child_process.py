"""Python processes beside this one: started, and started again when they end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from gateway import child

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0
# A process that lived this long was well: the next death starts counting anew.
_WELL_S = 30.0


async def start(
    *arguments: str, descriptor: int, environment: Mapping[str, str] | None = None
) -> asyncio.subprocess.Process:
    """Start a Python process, which inherits a file descriptor; its standard input ends with this process.

    Args:
        arguments: those behind the interpreter.
        descriptor: inherited under its number.
        environment: its variables; None for those of this process.

    Raises:
        OSError: there are no descriptors or processes left.
    """
    # A session of its own: Ctrl-C is for this process, which lets its children finish what is in flight.
    return await asyncio.create_subprocess_exec(
        *child.interpreter(*arguments),
        stdin=asyncio.subprocess.PIPE,
        pass_fds=(descriptor,),
        env=environment,
        start_new_session=True,
    )


async def keep_running(
    name: str, run: Callable[[], Awaitable[int]], stopping: asyncio.Event, restarts: Callable[[int], bool]
) -> None:
    """Run a process again and again, with ever longer pauses, until `stopping`.

    Args:
        name: what the log calls it.
        run: runs it once and returns its exit status; an OSError says that it cannot be started.
        stopping: when that is set it is not started again.
        restarts: hears of each end and returns whether it is to be started again.
    """
    loop = asyncio.get_running_loop()
    pause = _FIRST_PAUSE_S
    while True:
        began = loop.time()
        try:
            status = await run()
            trouble = f"has ended ({f'signal {-status}' if status < 0 else f'exit status {status}'})"
        except OSError as error:  # no descriptors or processes left: they may be freed
            status, trouble = 1, f"cannot be started ({error})"
        if not restarts(status) or stopping.is_set():
            return
        pause = _FIRST_PAUSE_S if loop.time() - began > _WELL_S else min(2 * pause, _LONGEST_PAUSE_S)
        log.error("%s %s; restart in %.1f s", name, trouble, pause)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await stopping.wait()
            return
