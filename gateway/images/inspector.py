"""Reads and looks at images beside the event loop, and only as far as is asked for."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Self, TypeVar

from gateway.images.turns import Turns
from gateway.images.worker_pool import Lookers
from gateway.wire.image import headers

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from gateway.model import Buffer, LayoutGuess
    from gateway.wire.image.headers import DataUrl, ImageInfo

T = TypeVar("T")
D = TypeVar("D", bound="Buffer")

# Images that are looked at at a time, each by a process, and read at a time, each by a thread.
LOOKERS = 2
_READERS = 2
# As text. Up to this, reading an image costs a millisecond, or five where it is made to; and a thread would
# get to run only after many times that where the event loop is busy.
_INLINE_BYTES = 4 * 1024 * 1024
# What all images that are decoded at a time may take. One that needs more is not looked at.
DECODING_BYTES = 512 * 1024 * 1024
# What a process may take: that, and the encoded image, as it came and as it is read.
_LOOKER_BYTES = DECODING_BYTES + 256 * 1024 * 1024
_READING_BYTES = 1024 * 1024 * 1024


class Vision:
    """Who reads and looks at images, a few at a time."""

    def __init__(self, patience_s: float = 5.0) -> None:
        """Start nothing yet.

        Args:
            patience_s: how many seconds a request waits for it.
        """
        self.patience_s = patience_s
        self._lookers = Lookers(_LOOKER_BYTES)
        self._reading = Turns(_READERS, _READING_BYTES)
        self._looking = Turns(LOOKERS, DECODING_BYTES)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._lookers.__aexit__()

    async def guess(self, url: Buffer, *, weight: int = 0, client: str = "") -> LayoutGuess | None:
        """Return the route that an image looks like; None where that cannot be told soon enough.

        Args:
            url: the image's data URL.
            weight: its `decoding_bytes`.
            client: who asks.

        Raises:
            BadImage: its pixels cannot be decoded.
        """
        until = asyncio.get_running_loop().time() + self.patience_s
        return await self._in_time(until, client, weight, functools.partial(self._lookers.guess, url))

    async def read(
        self, make: Callable[[D], DataUrl], data: D, *, max_pixels: int, client: str = ""
    ) -> tuple[DataUrl, ImageInfo]:
        """Read an image's header and tail.

        Args:
            make: makes a data URL of `data`: parse_data_url, from_whole_url or as_data_url.
            data: an image or its URL.
            max_pixels: as for wire.images.inspect.
            client: who asks.

        Raises:
            BadImage: it must not be decoded, or cannot be.
        """
        if len(data) <= _INLINE_BYTES:
            return _read(make, data, max_pixels)
        work = functools.partial(asyncio.to_thread, _read, make, data, max_pixels)
        return await self._reading.run(client, len(data), work)

    async def decode(self, data: Buffer, until: float, *, weight: int, client: str = "") -> None:
        """See whether an image in doubt is whole. Where that cannot be told in time, the engine will tell.

        Args:
            data: the encoded image.
            until: when it must be known, on the event loop's clock.
            weight: its `decoding_bytes`.
            client: who asks.

        Raises:
            BadImage: its pixels cannot be decoded.
        """
        await self._in_time(until, client, weight, functools.partial(self._lookers.check, data))

    async def _in_time(
        self, until: float, client: str, weight: int, work: Callable[[], Coroutine[None, None, T]]
    ) -> T | None:
        if weight > self._looking.room:
            return None
        try:
            async with asyncio.timeout_at(until):
                return await self._looking.run(client, weight, work)
        except TimeoutError:
            return None


def _read(make: Callable[[D], DataUrl], data: D, max_pixels: int) -> tuple[DataUrl, ImageInfo]:
    url = make(data)
    return url, headers.inspect(url.data, max_pixels=max_pixels)
