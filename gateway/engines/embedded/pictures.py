"""Encoded images to pages of bounded size, so that memory is bounded too."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from gateway.wire.image.headers import open_image
from gateway.wire.image.pixels import decode_rgb

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_PIXELS = 100_000_000
PAGE_PIXELS = 4_000_000  # a decoded page is shrunk to these: A4 at 200 dpi, where body text is over 20 high
PAGE_SIDE = 16_000

# Two big pages decoding at once would need a gigabyte that neither needs a moment later.
_BIG_PIXELS = 16_000_000
_big_decode = threading.Lock()


def check_header(data: bytes) -> tuple[int, int]:
    """Read an image's size without decoding it.

    Returns:
        (width, height) in pixels as stored, before EXIF rotation.

    Raises:
        BadImage: no readable image, or more than MAX_PIXELS.
    """
    return open_image(data, max_pixels=MAX_PIXELS).size


def decode(data: bytes) -> NDArray[np.uint8]:
    """Decode an image and shrink it to a page.

    Returns:
        BGR pixels, uint8 (height, width, 3), at most PAGE_PIXELS of them and PAGE_SIDE along a side.

    Raises:
        BadImage: as `check_header`, or truncated or corrupt.
    """
    width, height = check_header(data)
    if width * height < _BIG_PIXELS:
        return _page(decode_rgb(data))
    with _big_decode:
        return _page(decode_rgb(data))


def _page(image: Image.Image) -> NDArray[np.uint8]:
    scale = min((PAGE_PIXELS / (image.width * image.height)) ** 0.5, PAGE_SIDE / max(image.size))
    if scale < 1:
        size = (max(1, int(image.width * scale)), max(1, int(image.height * scale)))
        image = image.resize(size, Image.Resampling.BOX)
    return np.ascontiguousarray(np.asarray(image)[:, :, ::-1])
