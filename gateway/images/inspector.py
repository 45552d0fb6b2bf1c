"""Inspects images off the event loop, each only as far as is asked for."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Self, TypeVar

from gateway.images.fair_limiter import FairLimiter
from gateway.images.worker_pool import WorkerPool
from gateway.wire.image import headers

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from gateway.model import Buffer, LayoutGuess
    from gateway.wire.image.headers import DataUrl, ImageInfo

T = TypeVar("T")

# Images that are decoded at once, each in a process, and whose headers are read at once, each in a thread.
WORKERS = 2
_READERS = 2
# A header is read at once where its image's text is no longer than this: it takes a millisecond, five for a
# hostile image. Where the event loop is busy, a thread would get to run only after many times that.
INLINE_BYTES = 4 * 1024 * 1024
# The memory of all images that are decoded at once. An image that needs more is not decoded.
DECODING_BYTES = 512 * 1024 * 1024
# The memory of a process: that, and the encoded image, as it came and as it is read.
_WORKER_BYTES = DECODING_BYTES + 256 * 1024 * 1024
_READING_BYTES = 1024 * 1024 * 1024


class ImageInspector:
    """Reads images' headers, decodes images and guesses their routes, a few at a time."""

    def __init__(self, patience_s: float = 5.0) -> None:
        """Start nothing yet.

        Args:
            patience_s: how many seconds a request waits for a guess.
        """
        self.patience_s = patience_s
        self._workers = WorkerPool(_WORKER_BYTES)
        self._reading = FairLimiter(_READERS, _READING_BYTES)
        self._decoding = FairLimiter(WORKERS, DECODING_BYTES)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._workers.__aexit__()

    async def guess(self, url: Buffer, *, weight: int = 0, client: str = "") -> LayoutGuess | None:
        """Return the route that an image looks like; None where that cannot be found out soon enough.

        Args:
            url: the image's data URL.
            weight: its `decoding_bytes`.
            client: who asks.

        Raises:
            BadImage: its pixels cannot be decoded.
        """
        until = asyncio.get_running_loop().time() + self.patience_s
        return await self._in_time(until, client, weight, functools.partial(self._workers.guess, url))

    async def read(
        self, make: Callable[[headers.T], DataUrl], data: headers.T, *, max_pixels: int, client: str = ""
    ) -> tuple[DataUrl, ImageInfo]:
        """Read a large image's header and tail, in a thread; see INLINE_BYTES.

        Args:
            make: makes a data URL of `data`: parse_data_url, from_whole_url or as_data_url.
            data: an image or its URL.
            max_pixels: as for wire.image.headers.inspect.
            client: who asks.

        Raises:
            BadImage: it must not be decoded, or cannot be.
        """
        work = functools.partial(asyncio.to_thread, headers.read, make, data, max_pixels=max_pixels)
        return await self._reading.run(client, len(data), work)

    async def decode(self, data: Buffer, until: float, *, weight: int, client: str = "") -> None:
        """Check that a doubtful image is whole. Where that takes too long, the engine will find out.

        Args:
            data: the encoded image.
            until: when it must be known, on the event loop's clock.
            weight: its `decoding_bytes`.
            client: who asks.

        Raises:
            BadImage: its pixels cannot be decoded.
        """
        await self._in_time(until, client, weight, functools.partial(self._workers.check, data))

    async def _in_time(
        self, until: float, client: str, weight: int, work: Callable[[], Coroutine[None, None, T]]
    ) -> T | None:
        if weight > self._decoding.capacity:
            return None
        try:
            async with asyncio.timeout_at(until):
                return await self._decoding.run(client, weight, work)
        except TimeoutError:
            return None
