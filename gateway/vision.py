"""Looks at images in worker threads, and only when asked to."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from gateway.policy import layout
from gateway.wire import images
from gateway.wire.pixels import thumbnail

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from gateway.model import LayoutGuess
    from gateway.policy.layout import LayoutModel
    from gateway.wire.images import ImageInfo

T = TypeVar("T")

# Below this, reading a header costs less than handing it to a thread.
_INLINE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Vision:
    """The layout classifier, the threads it works in, and how many seconds a request waits for them."""

    model: LayoutModel
    workers: Executor
    patience_s: float = 5.0

    async def guess(self, data: bytes) -> LayoutGuess | None:
        """Return the route that an encoded image looks like; None where the threads are too busy to tell.

        Raises:
            BadImage: its pixels cannot be decoded.
        """
        return await self._in_time(look, data, self.model)

    async def inspect(self, data: bytes, *, max_pixels: int, mended: bool) -> ImageInfo:
        """Read an image's header and tail; decode it where that leaves doubt that it is whole.

        Where the threads are too busy for that, the engine will tell.

        Args:
            data: the encoded image.
            max_pixels: as for wire.images.inspect.
            mended: its data URL had to be mended, so that its bytes are in doubt.

        Raises:
            BadImage: it must not be decoded, or cannot be.
        """
        if len(data) <= _INLINE_BYTES:
            info = images.inspect(data, max_pixels=max_pixels)
        else:
            info = await asyncio.to_thread(images.inspect, data, max_pixels=max_pixels)
        if mended or not info.complete:
            await self._in_time(thumbnail, data, layout.THUMBNAIL_SIDE)
        return info

    async def _in_time(self, work: Callable[..., T], *arguments: object) -> T | None:
        try:
            async with asyncio.timeout(self.patience_s):
                return await asyncio.get_running_loop().run_in_executor(self.workers, work, *arguments)
        except TimeoutError:
            return None


def look(data: bytes, model: LayoutModel) -> LayoutGuess:
    """Return the route that an encoded image looks like; blocks while it decodes.

    Raises:
        BadImage: its pixels cannot be decoded.
    """
    return layout.guess(thumbnail(data, layout.THUMBNAIL_SIDE), model)
