"""Reads and looks at images in worker threads, and only as far as is asked for."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from gateway.policy import layout
from gateway.turns import Turns
from gateway.wire import images
from gateway.wire.pixels import thumbnail

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor, Future

    from gateway.model import LayoutGuess
    from gateway.policy.layout import LayoutModel
    from gateway.wire.images import DataUrl, ImageInfo

T = TypeVar("T")

THREADS = 2
# As text. Up to this, reading an image costs a millisecond or two, and a thread would get to run only after
# many times that where the event loop is busy.
_INLINE_BYTES = 2 * 1024 * 1024
# What all images that are decoded at a time may take. One that needs more is not looked at.
DECODING_BYTES = 512 * 1024 * 1024
_READING_BYTES = 1024 * 1024 * 1024


def _readers() -> Turns:
    return Turns(THREADS, _READING_BYTES)


def _lookers() -> Turns:
    return Turns(THREADS, DECODING_BYTES)


@dataclass(frozen=True, slots=True)
class Vision:
    """The layout classifier, the threads it works in, and how many seconds a request waits for them."""

    model: LayoutModel
    workers: Executor
    patience_s: float = 5.0
    _reading: Turns = field(default_factory=_readers)
    _looking: Turns = field(default_factory=_lookers)

    async def guess(self, data: bytes, *, weight: int = 0, client: str = "") -> LayoutGuess | None:
        """Return the route that an encoded image looks like; None where that cannot be told soon enough.

        Args:
            data: the encoded image.
            weight: its `decoding_bytes`.
            client: who asks.

        Raises:
            BadImage: its pixels cannot be decoded.
        """
        until = asyncio.get_running_loop().time() + self.patience_s
        return await self._in_time(until, client, weight, look, data, self.model)

    async def read(
        self, make: Callable[[bytes], DataUrl], data: bytes, *, max_pixels: int, client: str = ""
    ) -> tuple[DataUrl, ImageInfo]:
        """Read an image's header and tail.

        Args:
            make: makes a data URL of `data`: parse_data_url, or as_data_url.
            data: an image or its URL.
            max_pixels: as for wire.images.inspect.
            client: who asks.

        Raises:
            BadImage: it must not be decoded, or cannot be.
        """
        if len(data) <= _INLINE_BYTES:
            return _read(make, data, max_pixels)
        await self._reading.enter(client, len(data))
        try:
            return await asyncio.to_thread(_read, make, data, max_pixels)
        finally:
            self._reading.leave(len(data))

    async def decode(self, data: bytes, until: float, *, weight: int, client: str = "") -> None:
        """See whether an image in doubt is whole. Where that cannot be told in time, the engine will tell.

        Args:
            data: the encoded image.
            until: when it must be known, on the event loop's clock.
            weight: its `decoding_bytes`.
            client: who asks.

        Raises:
            BadImage: its pixels cannot be decoded.
        """
        await self._in_time(until, client, weight, thumbnail, data, layout.THUMBNAIL_SIDE)

    async def _in_time(
        self, until: float, client: str, weight: int, work: Callable[..., T], *arguments: object
    ) -> T | None:
        if weight > self._looking.room:
            return None
        try:
            async with asyncio.timeout_at(until):
                await self._looking.enter(client, weight)
                return await asyncio.wrap_future(self._submit(weight, work, *arguments))
        except TimeoutError:
            return None

    def _submit(self, weight: int, work: Callable[..., T], *arguments: object) -> Future[T]:
        """Start work whose turn it is; the turn ends with it, not with the patience of who waits for it."""
        loop = asyncio.get_running_loop()
        done = self.workers.submit(work, *arguments)

        def leave(_: object) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._looking.leave, weight)

        done.add_done_callback(leave)
        return done


def look(data: bytes, model: LayoutModel) -> LayoutGuess:
    """Return the route that an encoded image looks like; blocks while it decodes.

    Raises:
        BadImage: its pixels cannot be decoded.
    """
    return layout.guess(thumbnail(data, layout.THUMBNAIL_SIDE), model)


def _read(make: Callable[[bytes], DataUrl], data: bytes, max_pixels: int) -> tuple[DataUrl, ImageInfo]:
    url = make(data)
    return url, images.inspect(url.data, max_pixels=max_pixels)
