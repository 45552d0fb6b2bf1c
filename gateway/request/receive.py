"""A request's images on their way in: fetched where they are remote, looked at, mended."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from gateway.errors import BadImage
from gateway.images.fetch import failed, refused
from gateway.wire.image import headers, remote_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gateway.config import Limits
    from gateway.images.fetch import ImageFetcher
    from gateway.images.inspector import ImageInspector
    from gateway.model import Buffer
    from gateway.wire.image.headers import DataUrl
    from gateway.wire.image.remote_url import RemoteUrl
    from gateway.wire.openai.parts import ImagePart

# An image, or its URL.
T = TypeVar("T", bound="Buffer")

_FETCHES_AT_ONCE = 4


@dataclass(slots=True)
class Taken:
    """What is known of a request's images.

    Attributes:
        parts: all of them.
        limits: what they are held to.
        client: whose they are.
        keep: called with the length of what is about to be kept in memory; may raise.
        remote: those to fetch, each once, by their URL as it stands.
        repaired: image URLs to replace, JSON text by JSON text.
        first: the first image's data URL, as the engine gets it.
        first_weight: how much memory it takes to look at the first image.
        encoded_bytes: bytes of all encoded images.
        pixels: of all images.
    """

    parts: Sequence[ImagePart]
    limits: Limits
    client: str
    keep: Callable[[int], None]
    remote: dict[bytes, tuple[ImagePart, RemoteUrl]] = field(default_factory=dict)
    repaired: dict[bytes, bytes] = field(default_factory=dict)
    first: Buffer | None = None
    first_weight: int = 0
    encoded_bytes: int = 0
    pixels: int = 0


class Intake:
    """Takes images in; holds no state of its own."""

    def __init__(self, vision: ImageInspector, fetcher: ImageFetcher) -> None:
        self._vision = vision
        self._fetcher = fetcher

    async def look(self, taken: Taken) -> None:
        """Check the images that came along, and whether the others may be fetched.

        Raises:
            BadImage: one that is refused; `param` names its part.
        """
        here: list[ImagePart] = []
        for part in taken.parts:
            if not remote_url.is_remote(part.url):
                here.append(part)
                continue
            with _blamed(part):
                raw = bytes(part.url)
                url = remote_url.parse_remote(raw)
                if url is None:
                    raise refused("its URL is no plain http(s) URL: ASCII, a host, no credentials")
                self._fetcher.check(url)
                taken.remote.setdefault(raw, (part, url))
        until = asyncio.get_running_loop().time() + self._vision.patience_s
        for part in here:
            data, part.data = part.data, None
            with _blamed(part):
                if data is None:
                    await self._take(taken, part, headers.parse_data_url, part.url, until)
                else:
                    await self._take(taken, part, headers.from_whole_url, data, until)

    async def fetch(self, taken: Taken, left: int) -> None:
        """Fetch the images that are remote, and check them.

        Args:
            taken: what `look` has been given.
            left: by how many bytes the request may grow.

        Raises:
            BadImage: one that is refused, or not to be had; `param` names its part.
            Unavailable: there is no room for it now.
        """
        few = asyncio.Semaphore(_FETCHES_AT_ONCE)

        def keep(count: int) -> None:
            nonlocal left
            count = count * 4 // 3  # as base64 text
            left -= count
            if left < 0:
                limit = taken.limits.body_bytes
                raise failed(f"the request with its images is over {limit:,} bytes (limits.body_bytes)")
            taken.keep(count)

        async def one(part: ImagePart, url: RemoteUrl) -> bytes:
            async with few:
                with _blamed(part):
                    return await self._fetcher.fetch(url, taken.client, keep)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = {raw: group.create_task(one(*asked)) for raw, asked in taken.remote.items()}
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        until = asyncio.get_running_loop().time() + self._vision.patience_s
        for part in taken.parts:
            if remote_url.is_remote(part.url):
                with _blamed(part):
                    data = tasks[bytes(part.url)].result()
                    await self._take(taken, part, headers.as_data_url, data, until)

    async def _take(
        self,
        taken: Taken,
        part: ImagePart,
        make: Callable[[T], DataUrl],
        data: T,
        until: float,
    ) -> None:
        limits = taken.limits
        url, info = await self._vision.read(make, data, max_pixels=limits.image_pixels, client=taken.client)
        taken.encoded_bytes += len(url.data)
        taken.pixels += info.width * info.height
        if taken.pixels > limits.request_pixels:
            raise BadImage(
                f"with it the request has {taken.pixels:,} pixels; at most {limits.request_pixels:,} in all "
                "are accepted (limits.request_pixels)",
                code="image_too_large",
            )
        mended = make is headers.parse_data_url and url.repaired is not None
        if mended or not info.complete:
            await self._vision.decode(url.data, until, weight=info.decoding_bytes, client=taken.client)
        if url.repaired is None:
            whole = part.url
        else:
            text = taken.repaired[part.raw] = b'"%s"' % url.repaired
            whole = memoryview(text)[1:-1]
        if part is taken.parts[0]:
            taken.first, taken.first_weight = whole, info.decoding_bytes


@contextmanager
def _blamed(part: ImagePart) -> Iterator[None]:
    """Let an error name the part that it is about."""
    try:
        yield
    except BadImage as error:
        error.message = f"{part.param}: {error.message}"
        error.param = part.param
        raise
