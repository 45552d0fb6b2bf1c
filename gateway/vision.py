"""Looks at images in worker threads, and only when asked to."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.policy import layout
from gateway.wire.pixels import thumbnail

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from gateway.model import LayoutGuess
    from gateway.policy.layout import LayoutModel


@dataclass(frozen=True, slots=True)
class Vision:
    """The layout classifier and the threads it works in."""

    model: LayoutModel
    workers: Executor

    async def guess(self, data: bytes) -> LayoutGuess:
        """Return the route that an encoded image looks like.

        Raises:
            BadImage: its pixels cannot be decoded.
        """
        return await asyncio.get_running_loop().run_in_executor(self.workers, look, data, self.model)

    async def verify(self, data: bytes) -> None:
        """Decode an encoded image, to be sure that it is whole.

        Raises:
            BadImage: its pixels cannot be decoded.
        """
        await asyncio.get_running_loop().run_in_executor(self.workers, thumbnail, data, layout.THUMBNAIL_SIDE)


def look(data: bytes, model: LayoutModel) -> LayoutGuess:
    """Return the route that an encoded image looks like; blocks while it decodes.

    Raises:
        BadImage: its pixels cannot be decoded.
    """
    return layout.guess(thumbnail(data, layout.THUMBNAIL_SIDE), model)
