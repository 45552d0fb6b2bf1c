"""Image parts as they travel: data URLs, and what an image's header and tail tell without decoding it."""

from __future__ import annotations

import binascii
import io
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import pybase64
from PIL import Image

from gateway.errors import BadImage
from gateway.wire.image.structure import (
    check_structure,
    count_scans,
    has_second_page,
    usual_jpeg,
    without_texts,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.model import Buffer

# An image, or its URL.
T = TypeVar("T", bound="Buffer")

# Pillow's own bomb guard warns at one fixed size; the configured limit is checked from the header instead.
Image.MAX_IMAGE_PIXELS = None
# Pillow warns of every odd tag of a damaged file, thousands in one image; damage that matters is raised.
warnings.filterwarnings("ignore", module=r"PIL\.")

# Where the pixels must begin, colour profiles and metadata before them included.
_HEADER_BYTES = 2 * 1024 * 1024

# Small images are not reduced before they are made upright and opaque, which takes several copies.
_UNREDUCED_PIXELS = 1664**2

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP")

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


def read(make: Callable[[T], DataUrl], data: T, *, max_pixels: int) -> tuple[DataUrl, ImageInfo]:
    """Read an image's header and tail.

    Args:
        make: makes a data URL of `data`: parse_data_url, from_whole_url or as_data_url.
        data: an image or its URL.
        max_pixels: as for `inspect`.

    Raises:
        BadImage: as `make` and `inspect`.
    """
    url = make(data)
    return url, inspect(url.data, max_pixels=max_pixels)


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
