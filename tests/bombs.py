"""Images made to cost whoever opens them: small files, or at least small requests, that are much work.

`python -m tests.bombs SIDE [FILE...]` prints what comes of them and what they cost, at SIDE pixels a side.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import struct
import sys
import time
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageFile

from gateway.errors import BadImage
from gateway.images.inspector import DECODING_BYTES
from gateway.policy.sort.layout import THUMBNAIL_SIDE
from gateway.wire.image import headers
from gateway.wire.image.pixels import thumbnail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

WHITE = (64, 64)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def plain(mode: str, size: tuple[int, int]) -> Image.Image:
    return Image.new(mode, size, {"P": 0, "1": 1}.get(mode, "white"))


def png(*chunks: tuple[bytes, bytes], size: tuple[int, int] = WHITE, pixels: bytes | None = None) -> bytes:
    """A grey PNG with further chunks before its pixels, which may be fewer than it says."""
    head = struct.pack(">IIBBBBB", *size, 8, 0, 0, 0, 0)
    width, height = size
    rows = zlib.compress(bytes((width + 1) * height)) if pixels is None else pixels
    parts = [(b"IHDR", head), *chunks, (b"IDAT", rows), (b"IEND", b"")]
    framed = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


def packed_text(kind: bytes, size: int) -> tuple[bytes, bytes]:
    """A PNG chunk that unpacks to `size` zeros."""
    between = b"\0\1\0\0\0" if kind == b"iTXt" else b"\0\0"
    return kind, b"a" + between + zlib.compress(bytes(size), 9)


def jpeg(*segments: bytes, size: tuple[int, int] = WHITE, **options: Any) -> bytes:
    """A JPEG with further segments (with their markers) before all others."""
    data = encoded(plain("RGB", size), "JPEG", **options)
    return data[:2] + b"".join(segments) + data[2:]


def segment(marker: int, data: bytes) -> bytes:
    return bytes((0xFF, marker)) + struct.pack(">H", len(data) + 2) + data


def scans(count: int, size: tuple[int, int]) -> bytes:
    """A progressive JPEG whose last scan comes so many times more."""
    data = encoded(plain("RGB", size), "JPEG", progressive=True)
    return data[:-2] + data[data.rindex(b"\xff\xda") : -2] * count + data[-2:]


def tiff(tags: Iterable[tuple[int, int, int, int]], behind: bytes = b"", big_endian: bool = False) -> bytes:
    """A TIFF of these tags (number, type, count, value or place) and what they point to."""
    order = ">" if big_endian else "<"
    entries = sorted(tags)
    listed = b"".join(struct.pack(f"{order}HHII", *entry) for entry in entries)
    head = (b"MM\0*" if big_endian else b"II*\0") + struct.pack(f"{order}I", 8)
    return head + struct.pack(f"{order}H", len(entries)) + listed + bytes(4) + behind


def strips(count: int, size: tuple[int, int] = (64, 64)) -> bytes:
    """A TIFF that says to lie in so many strips, all of them the same bytes."""
    at = 8 + 2 + 12 * 9 + 4
    width, height = size
    tags = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)]
    tags += [(273, 4, count, at), (277, 3, 1, 1), (278, 4, 1, 1), (279, 4, count, at + 4 * count)]
    return tiff(tags, struct.pack("<I", 8) * count * 2)


def shared_tags(count: int, size: int) -> bytes:
    """A TIFF whose tags all hold the same bytes: read tag by tag it is `count` times as large."""
    tags = [(256, 4, 1, 64), (257, 4, 1, 64), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)]
    tags += [(273, 4, 1, 8), (277, 3, 1, 1), (278, 4, 1, 64), (279, 4, 1, 4096)]
    at = 8 + 2 + 12 * (len(tags) + count) + 4
    return tiff([*tags, *((1000 + n & 0xFFFF, 7, size, at) for n in range(count))], bytes(size))


def gif(comments: int, frames: int = 1) -> bytes:
    """A GIF with so many blocks of comment before its first frame."""
    pages = [Image.new("L", WHITE, page % 2 * 255) for page in range(frames)]
    data = encoded(pages[0], "GIF", save_all=frames > 1, append_images=pages[1:])
    at = 13 + (3 << (data[10] & 7) + 1 if data[10] & 0x80 else 0)
    return data[:at] + (b"!\xfe" + (b"\xff" + b"c" * 255) + b"\0") * comments + data[at:]


def bmp(size: tuple[int, int], **fields: int) -> bytes:
    """A BMP that says what it likes about itself; its pixels are missing."""
    said = {"bits": 24, "compression": 0, "colors": 0, **fields}
    info = struct.pack(
        "<IiiHHIIiiII", 40, *size, 1, said["bits"], said["compression"], 0, 0, 0, said["colors"], 0
    )
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + info


def webp(size: tuple[int, int]) -> bytes:
    """A WebP that says to be of this size."""
    data = encoded(plain("RGB", WHITE), "WEBP", lossless=True)
    width, height = size
    return data[:21] + struct.pack("<I", width - 1 | (height - 1) << 14) + data[25:]


HUGE = (30_000, 30_000)

# Refused before anything is decoded.
REFUSED: dict[str, Callable[[], bytes]] = {
    "PNG of too many pixels": lambda: png(size=HUGE, pixels=b""),
    "PNG of a million rows": lambda: png(size=(8, 1_000_000), pixels=b""),
    "PNG of 2 ** 31 columns": lambda: png(size=(2**31 - 1, 2**31 - 1), pixels=b""),
    "PNG with 17 packed texts": lambda: png(*[packed_text(b"zTXt", 10**6)] * 17),
    "PNG with 60 packed texts": lambda: png(*[packed_text(b"zTXt", 10**6)] * 60),
    "PNG with 60 packed international texts": lambda: png(*[packed_text(b"iTXt", 10**6)] * 60),
    "PNG with 20,000 texts": lambda: png(*[(b"tEXt", b"a\0b")] * 20_000),
    "PNG with 20,000 chunks of nothing": lambda: png(*[(b"abCd", b"")] * 20_000),
    "PNG with 200,000 empty chunks of pixels": lambda: png(*[(b"IDAT", b"")] * 200_000),
    "JPEG with 60,000 comments": lambda: jpeg(segment(0xFE, b"") * 60_000),
    "JPEG with a megabyte of fill": lambda: jpeg(b"\xff" * 1_000_000),
    "JPEG with a megabyte of junk": lambda: jpeg(segment(0xFE, b""), b"\0" * 1_000_000),
    "JPEG that is junk": lambda: b"\xff\xd8\xff\xfe\0\2" + b"\0" * 2_000_000,
    "JPEG of 5,000 scans": lambda: scans(5_000, (2000, 2000)),
    "JPEG of too many pixels": lambda: jpeg()[:-2].replace(
        struct.pack(">HH", *WHITE), b"\xff\xff\xff\xff", 1
    ),
    "TIFF of 100,000 strips": lambda: strips(100_000),
    "TIFF of 65,535 tags": lambda: shared_tags(65_000, 100),
    "TIFF whose tags share a megabyte": lambda: shared_tags(900, 1_000_000),
    "TIFF of too many pixels": lambda: strips(1, HUGE),
    "GIF with 60,000 comments": lambda: gif(60_000),
    "BMP of 2 ** 31 columns": lambda: bmp((2**31 - 1, 2**31 - 1)),
    "BMP of no height": lambda: bmp((100, 0)),
    "WebP of too many pixels": lambda: webp((16_383, 16_383)),
}


def taken(side: int) -> dict[str, Callable[[], bytes]]:
    """Images that are taken, of `side` x `side` pixels or of many parts: looking at them is bounded."""
    size = (side, side)
    return {
        "PNG, grey": lambda: encoded(plain("L", size), "PNG"),
        "PNG of a palette that is transparent": lambda: encoded(plain("P", size), "PNG", transparency=1),
        "PNG in black and white": lambda: encoded(plain("1", size), "PNG"),
        "PNG with an alpha channel": lambda: encoded(plain("RGBA", size), "PNG", compress_level=1),
        "PNG of 16 bits": lambda: encoded(Image.new("I;16", size), "PNG", compress_level=1),
        "PNG that is turned": lambda: encoded(plain("RGB", size), "PNG", compress_level=1, exif=TURNED),
        "PNG, interlaced": lambda: interlaced(side),
        "PNG with a profile of 30 megabytes": lambda: png(packed_text(b"iCCP", 3 * 10**7)),
        "PNG that ends in its pixels": lambda: encoded(plain("RGB", size), "PNG")[:-100],
        "JPEG": lambda: jpeg(size=size),
        "JPEG, CMYK": lambda: encoded(Image.new("CMYK", size), "JPEG"),
        "JPEG, progressive": lambda: jpeg(size=size, progressive=True, subsampling=0),
        "JPEG of 15 scans": lambda: scans(5, size),
        "JPEG of 100,000 scans": lambda: scans(100_000, (8, 8)),
        "JPEG with a megabyte of Exif": lambda: jpeg(segment(0xE1, b"Exif\0\0II*\0" + bytes(65_000)) * 16),
        "JPEG with Exif of shared tags": lambda: jpeg(segment(0xE1, b"Exif\0\0" + shared_tags(2400, 30_000))),
        "JPEG with an index of pictures": lambda: jpeg(segment(0xE2, b"MPF\0" + shared_tags(2400, 30_000))),
        "TIFF by fax": lambda: encoded(plain("1", size), "TIFF", compression="group4"),
        "TIFF, LZW": lambda: encoded(plain("RGB", size), "TIFF", compression="tiff_lzw"),
        "TIFF, CMYK": lambda: encoded(Image.new("CMYK", size), "TIFF", compression="tiff_adobe_deflate"),
        "TIFF of floats": lambda: encoded(Image.new("F", size), "TIFF", compression="tiff_adobe_deflate"),
        "TIFF in 19,000 strips": lambda: strips(19_000, (64, 12_800)),
        "GIF": lambda: encoded(plain("P", size), "GIF"),
        "GIF of 1,000 frames": lambda: gif(0, frames=1000),
        "WebP": lambda: encoded(plain("RGB", size), "WEBP", lossless=True, method=0),
        "WebP with an alpha channel": lambda: encoded(plain("RGBA", size), "WEBP", lossless=True, method=0),
        "BMP whose pixels are missing": lambda: bmp(size),
        "BMP, run-length": lambda: bmp(size, bits=8, compression=1) + bytes(100),
    }


TURNED = Image.Exif()
TURNED[0x0112] = 6


def interlaced(side: int) -> bytes:
    """A grey PNG in Adam7's seven passes."""
    passes = [
        (0, 0, 8, 8),
        (4, 0, 8, 8),
        (0, 4, 4, 8),
        (2, 0, 4, 4),
        (0, 2, 2, 4),
        (1, 0, 2, 2),
        (0, 1, 1, 2),
    ]
    rows = b"".join(
        bytes((1 + len(range(x, side, right))) * len(range(y, side, down))) for x, y, right, down in passes
    )
    whole = png(size=(side, side), pixels=zlib.compress(rows, 1))
    head = whole[12:28] + b"\1"
    return whole[:12] + head + struct.pack(">I", zlib.crc32(head)) + whole[33:]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an image.

    Attributes:
        what: `refused`, `looked at`, `corrupt` (found out by looking), or `left`, as looking costs too much.
        decoded: pixels that were decoded.
        weight: bytes that looking was said to take.
        peak: bytes that it took at most, by the process's resident memory.
        seconds: all of it.
    """

    what: str
    decoded: int
    weight: int
    peak: int
    seconds: float


def outcome_of(data: bytes, max_pixels: int) -> Outcome:
    """Read an image, and look at it as the gateway would; in a process of its own, which it should be."""
    decoded = weight = 0
    load = ImageFile.ImageFile.load

    def counting(image: ImageFile.ImageFile) -> Any:
        nonlocal decoded
        decoded = max(decoded, image.width * image.height)
        return load(image)

    ImageFile.ImageFile.load = counting  # type: ignore[method-assign]
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")
    before, started = resident("VmRSS"), time.perf_counter()
    try:
        weight = headers.inspect(data, max_pixels=max_pixels).decoding_bytes
        what = "left"
        if weight <= DECODING_BYTES:
            thumbnail(data, THUMBNAIL_SIDE)
            what = "looked at"
    except BadImage:
        what = "corrupt" if weight else "refused"
    return Outcome(what, decoded, weight, resident("VmHWM") - before, time.perf_counter() - started)


def resident(name: str) -> int:
    """Bytes, by /proc/self/status."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name))


def outcomes(cases: Iterable[tuple[str, bytes]], max_pixels: int) -> Iterator[tuple[str, int, Outcome]]:
    """Yield each case's name, bytes and outcome, from a fresh process each."""
    # What is loaded on first use, such as decoders, is no image's own cost.
    for kind in ("PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"):
        small = encoded(plain("RGB", (600, 600)), kind)
        headers.inspect(small, max_pixels=max_pixels)
        thumbnail(small, THUMBNAIL_SIDE)
    for name, data in cases:
        with multiprocessing.get_context("fork").Pool(1) as pool:
            yield name, len(data), pool.apply(outcome_of, (data, max_pixels))


def main(side: int, *paths: str) -> None:
    """Print what comes of all of them, and of files: a table, or JSON where a program reads it."""
    every = [*REFUSED.items(), *taken(side).items(), *((path, Path(path).read_bytes) for path in paths)]
    if not sys.stdout.isatty():
        cases = ((name, make()) for name, make in every)
        print(json.dumps({name: asdict(told) for name, _, told in outcomes(cases, 100_000_000)}))
        return
    print(f"{'':42} {'bytes':>10} {'outcome':>10} {'Mpixels':>8} {'said MB':>8} {'peak MB':>8} {'s':>6}")
    for name, size, told in outcomes(((name, make()) for name, make in every), 100_000_000):
        print(
            f"{name:42} {size:10,} {told.what:>10} {told.decoded / 1e6:8.1f} {told.weight / 1e6:8.0f} "
            f"{told.peak / 1e6:8.0f} {told.seconds:6.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
