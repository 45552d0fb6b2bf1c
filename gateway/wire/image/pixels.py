"""Encoded images to upright pixels: every mode and orientation that documents arrive in."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps

from gateway.errors import BadImage
from gateway.wire.image.structure import check_structure, usual_jpeg, without_texts

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Pillow's own bomb guard warns at one fixed size; the configured limit is checked from the header instead.
Image.MAX_IMAGE_PIXELS = None
# Pillow warns of every odd tag of a damaged file, thousands in one image; damage that matters is raised.
warnings.filterwarnings("ignore", module=r"PIL\.")

# Where the pixels must begin, colour profiles and metadata before them included.
_HEADER_BYTES = 2 * 1024 * 1024

# Small images are not reduced before they are made upright and opaque, which takes several copies.
_UNREDUCED_PIXELS = 1664**2

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP")


def open_image(data: bytes, *, max_pixels: int | None = None, header_only: bool = False) -> Image.Image:
    """Read an image's header; no pixel is decoded, nor can be later if `header_only`.

    Raises:
        BadImage: the bytes are none of FORMATS, hold more than `max_pixels`, or too many parts.
    """
    # Opening a WebP file already allocates its canvas, so its size is read first.
    _check_pixels(_webp_size(data), max_pixels)
    check_structure(data)
    read = without_texts(_header(data), header_only=True) if header_only else without_texts(data)
    try:
        image = Image.open(io.BytesIO(read), formats=FORMATS)
    # A malformed header surfaces as whatever the format's parser tripped over.
    except Exception as error:
        raise BadImage(
            f"the image bytes are not a readable {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file"
        ) from error
    _check_pixels(image.size, max_pixels)
    return image


def read_head(data: bytes, *, max_pixels: int) -> tuple[str, int, int, bool]:
    """Return an image's format, as Pillow names it, width and height, and whether it has one scan for sure.

    Raises:
        BadImage: as open_image.
    """
    if usual := usual_jpeg(data):
        _check_pixels(usual[:2], max_pixels)
        return "JPEG", *usual
    image = open_image(data, max_pixels=max_pixels, header_only=True)
    return image.format or "", *image.size, image.format not in ("JPEG", "MPO")


def _header(data: bytes) -> bytes:
    """As much of an image as opening it may read; of some formats that may be anywhere."""
    anywhere = data[:4] == b"RIFF" or data[:2] in (b"II", b"MM")
    return data if anywhere or len(data) <= _HEADER_BYTES else data[:_HEADER_BYTES]


def decoding_bytes(kind: str, pixels: int, *, scans: int) -> int:
    """Return how much memory `thumbnail` takes at most; measured with Pillow 13.

    Args:
        kind: the image's format.
        pixels: how many it has.
        scans: of a JPEG, how many; 1 for other formats.
    """
    # One scan is decoded row by row at a fraction of its size; several have all coefficients in memory.
    jpeg = 0.5 if scans == 1 else 8
    each = {"JPEG": jpeg, "MPO": jpeg, "WEBP": 17}.get(kind, 8.5)
    return max(round(pixels * each), min(pixels, _UNREDUCED_PIXELS) * 22)


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


def _check_pixels(size: tuple[int, int], max_pixels: int | None) -> None:
    width, height = size
    if max_pixels is not None and width * height > max_pixels:
        raise BadImage(
            f"the image has {width} x {height} pixels; at most {max_pixels:,} in all are accepted",
            code="image_too_large",
        )


def _webp_size(data: bytes) -> tuple[int, int]:
    """Width and height by a WebP file's first chunk (RFC 9649); 0 and 0 where it is something else."""
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP":
        return 0, 0
    head = data[20:30].ljust(10, b"\0")
    match data[12:16]:
        case b"VP8X":
            return 1 + int.from_bytes(head[4:7], "little"), 1 + int.from_bytes(head[7:10], "little")
        case b"VP8L":
            bits = int.from_bytes(head[1:5], "little")
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        case b"VP8 ":
            return int.from_bytes(head[6:8], "little") & 0x3FFF, int.from_bytes(head[8:10], "little") & 0x3FFF
    return 0, 0
