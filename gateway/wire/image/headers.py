"""Image parts as they travel: data URLs, and what an image's header and tail tell without decoding it."""

from __future__ import annotations

import binascii
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pybase64

from gateway.errors import BadImage
from gateway.wire.image.pixels import decoding_bytes, read_head
from gateway.wire.image.structure import count_scans, has_second_page

if TYPE_CHECKING:
    from gateway.model import Buffer

# Vision processors divide an image into patches and fail outside these; no glyph fits below.
MIN_SIDE_PIXELS = 8
MAX_ASPECT = 200

# Scans of the largest accepted progressive JPEG; smaller ones may have more.
_MAX_SCANS = 20

# Trailing bytes some writers add after an image's end mark.
_TAIL = 4096

_HEADER = re.compile(rb"data:([^,]{0,256}?)(;\s*base64\s*)?,", re.IGNORECASE)
_PLAIN_HEADER = re.compile(rb"data:[^;,]*;base64,")
_MAGIC = (
    (b"\xff\xd8", b"jpeg"),
    (b"GIF8", b"gif"),
    (b"RIFF", b"webp"),
    (b"II", b"tiff"),
    (b"MM", b"tiff"),
    (b"BM", b"bmp"),
)
_URLSAFE = bytes.maketrans(b"-_", b"+/")
_SPACES = b" \t\r\n\f\v"
_PERCENT = tuple(
    (escape, plain)
    for code, plain in ((b"%2B", b"+"), (b"%2F", b"/"), (b"%3D", b"="), (b"%0A", b"\n"), (b"%0D", b"\r"))
    for escape in (code, code.lower())
)


@dataclass(frozen=True, slots=True)
class DataUrl:
    """A data URL's bytes; `repaired` is the same as every engine reads it, None where it already was so."""

    data: bytes
    repaired: bytes | None


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """An image by its header.

    Attributes:
        format: as Pillow names it.
        width: in pixels.
        height: in pixels.
        complete: its end mark is where it should be.
        decoding_bytes: the most memory that a look at it takes.
    """

    format: str
    width: int
    height: int
    complete: bool
    decoding_bytes: int = 0


def parse_data_url(url: Buffer) -> DataUrl:
    """Decode a base64 data URL, mending what clients commonly get wrong.

    Mended: parameters such as `;charset=utf-8`, a missing type, capitals, line breaks, percent-encoding, the
    url-safe alphabet, missing or surplus padding.

    Raises:
        BadImage: not a data URL, or not base64 even so.
    """
    header = _HEADER.match(url)
    if header is None or not (header.group(2) or header.group(1).lower().endswith(b"base64")):
        raise BadImage(_what_is_wrong(url))
    payload = memoryview(url)[header.end() :]
    if _PLAIN_HEADER.fullmatch(header.group()):
        try:
            return DataUrl(pybase64.b64decode(payload, validate=True), None)
        except binascii.Error:
            pass
    return as_data_url(_decode_mended(bytes(payload)))


def from_whole_url(data: bytes) -> DataUrl:
    """Return an image that is known to have come as every engine reads it."""
    return DataUrl(data, None)


def as_data_url(data: bytes) -> DataUrl:
    """Return an image as the data URL that every engine reads."""
    return DataUrl(data, b"data:image/%s;base64,%s" % (_subtype(data), pybase64.b64encode(data)))


def inspect(data: bytes, *, max_pixels: int) -> ImageInfo:
    """Read an image's header and tail.

    Raises:
        BadImage: no image that is read here, sides out of bounds, more than `max_pixels`, or several pages.
    """
    if not data:
        raise BadImage("the image is empty (0 bytes)")
    kind, width, height, has_one_scan = read_head(data, max_pixels=max_pixels)
    check_sides(width, height)
    # Real progressive JPEGs have about ten.
    scans = 1 if has_one_scan else count_scans(data)
    if scans * width * height > _MAX_SCANS * max_pixels:
        raise BadImage(f"the JPEG has {scans:,} scans, too many for its size", code="image_too_large")
    if kind == "TIFF" and has_second_page(data):
        raise BadImage("the TIFF has several pages; send one page per image part", code="multi_page_image")
    return ImageInfo(
        kind,
        width,
        height,
        complete=_ends_properly(data, kind),
        decoding_bytes=decoding_bytes(kind, width * height, scans=scans),
    )


def check_sides(width: int, height: int) -> None:
    """See whether an image has sides that an engine takes.

    Raises:
        BadImage: one is too short, or far shorter than the other.
    """
    if min(width, height) < MIN_SIDE_PIXELS:
        raise BadImage(
            f"the image is {width} x {height} pixels; each side needs at least {MIN_SIDE_PIXELS}",
            code="image_too_small",
        )
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise BadImage(
            f"the image is {width} x {height} pixels; one side may be at most {MAX_ASPECT} times the other",
            code="image_too_narrow",
        )


def _decode_mended(payload: bytes) -> bytes:
    text = payload.strip()
    if b"%" in text:
        for escape, plain in _PERCENT:
            text = text.replace(escape, plain)
    if b"\n" not in text and b"\r" not in text:
        # Form decoding turns each + into a space; only wrapped lines have other spaces.
        text = text.replace(b" ", b"+")
    text = text.translate(_URLSAFE, _SPACES).rstrip(b"=")
    if len(text) % 4 == 1:
        raise BadImage("the image's base64 text is cut short: its length fits no whole number of bytes")
    try:
        return pybase64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except binascii.Error as error:
        raise BadImage("the image's data URL holds characters that are not base64") from error


def _what_is_wrong(url: Buffer) -> str:
    start = bytes(url[:300]).lower()
    if not start.startswith(b"data:"):
        return "an image must be a data URL: data:image/png;base64,..."
    if b"," not in start:
        return "the image's data URL lacks the comma before its data: data:image/png;base64,..."
    return "an image's data URL must be base64-encoded: data:image/png;base64,..."


def _subtype(data: bytes) -> bytes:
    return next((subtype for magic, subtype in _MAGIC if data.startswith(magic)), b"png")


def _ends_properly(data: bytes, kind: str) -> bool:
    """Whether the format's end mark is there; formats without one are never trusted."""
    match kind:
        case "JPEG" | "MPO":
            return data.rfind(b"\xff\xd9", -_TAIL) >= 0
        case "PNG":
            return data.rfind(b"IEND", -_TAIL) >= 0
        case "GIF":
            return data.rstrip(b"\0").endswith(b";")
        case "WEBP":
            return len(data) >= 8 + int.from_bytes(data[4:8], "little")
    return False
