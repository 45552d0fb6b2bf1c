"""Encoded images to upright pixels: every mode and orientation that documents arrive in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps

from gateway.errors import BadImage
from gateway.wire.image.headers import open_image

if TYPE_CHECKING:
    from numpy.typing import NDArray


def decode_rgb(data: bytes) -> Image.Image:
    """Decode the first frame to upright RGB (EXIF applied, transparency on white, deep greys scaled).

    Raises:
        BadImage: unknown format, or truncated or corrupt pixel data.
    """
    return _rgb(_decoded(open_image(data)))


def upright(image: Image.Image, side: int) -> Image.Image:
    """Decode an open image's frame to upright RGB whose longer side is at most `side` pixels.

    Raises:
        BadImage: truncated or corrupt pixel data.
    """
    image.draft(None, (side, side))  # a JPEG decodes straight to a fraction of its size
    image = _decoded(image)
    if (factor := max(image.size) // side) > 1:
        image = _reducible(image).reduce(factor)
    image = _rgb(image)
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    return image


def thumbnail(data: bytes, side: int) -> NDArray[np.uint8]:
    """Decode the first frame to an upright grey picture whose longer side is at most `side` pixels.

    Returns:
        uint8 array (height, width), 255 = white.

    Raises:
        BadImage: unknown format, or truncated or corrupt pixel data.
    """
    image = open_image(data)
    # JPEG decodes straight to a fraction of its size: asked for less than the side, it gives 1/8 of a scan.
    image.draft("L", (int(side * 0.78), side))
    image = _decoded(image)
    if max(image.size) > 3 * side:
        image = _reducible(image)  # which lets the other go, before there is a third
        image = image.reduce(max(image.size) // (2 * side))
    grey = _rgb(image).convert("L")
    grey.thumbnail((side, side), Image.Resampling.BOX)
    return np.asarray(grey, dtype=np.uint8)


def _decoded(image: Image.Image) -> Image.Image:
    try:
        image.load()
        ImageOps.exif_transpose(image, in_place=True)  # most are upright, and a copy would cost 3 ms a page
    except MemoryError:  # which says nothing of the image
        raise
    # Decoders raise OSError, SyntaxError, ValueError, zlib.error ... for broken data: all mean the same here.
    except Exception as error:
        raise BadImage("the image is truncated or corrupt: its pixels cannot be decoded") from error
    return image


def _reducible(image: Image.Image) -> Image.Image:
    """An image in a mode whose pixels can be averaged."""
    if image.mode == "1":
        return image.convert("L")
    if image.mode == "P":
        return image.convert("RGBA" if image.has_transparency_data else "RGB")
    return image.convert("I") if image.mode.startswith("I;16") else image


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        deep = np.asarray(image, dtype=np.float32)
        image = Image.fromarray((deep * (255 / max(float(deep.max()), 255.0))).clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")
