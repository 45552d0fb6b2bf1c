"""The documents that a sweep sends: an operator's own images, or pages drawn for a first try."""

from __future__ import annotations

import hashlib
import io
import textwrap
from typing import TYPE_CHECKING

from PIL import Image as Picture
from PIL import ImageDraw, ImageFont

from gateway.errors import BadImage, ConfigError
from gateway.policy.sort.prompts import KEY_VALUE, TABLE
from gateway.tools.sweep.request_bodies import FIELDS, Image
from gateway.wire.image.headers import inspect
from gateway.wire.image.pixels import decode_rgb

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from random import Random

_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif")

_VOCABULARY = """
the of and to in is that for it as was with be by on not at are this have from or had which one you
were all there would their been has when who will no more if out so said what up about than into
them can only other time new some could these two may first then now over such most made after also
many before must through years where much way down should because long each just state people how
little good world very account agreement balance carrier charge condition contract customer delivery
department discount due insurance invoice item ledger license material notice office order payment
period policy premium product purchase quantity receipt record reference region report request
schedule section service shipment statement storage subject summary supply tariff transfer vendor
voucher warehouse weight
"""
_WORDS = _VOCABULARY.split()
_LABELS = (
    "phone",
    "reference",
    "customer",
    "due date",
    "payment",
    "signature",
    "country",
    "branch",
    "amount",
)
_COLUMNS = ("item", "region", "quantity", "price", "amount", "share", "change", "date", "code", "weight")


def images(
    folder: Path,
    route: str,
    *,
    limit: int = 256,
    max_bytes: int = 256 * 1024 * 1024,
    max_pixels: int = 100_000_000,
) -> list[Image]:
    """Read a route's images: the files with an image's suffix in the folder that is named like the route.

    Where there are too many, every second, third ... by name is read.

    Args:
        folder: holds a folder for each route.
        route: whose images.
        limit: the most that are read.
        max_bytes: the most that they may have together.
        max_pixels: the most that one may have.

    Raises:
        ConfigError: there is none, or one is no image that an engine can read.
    """
    own = folder / route
    found = [path for path in own.iterdir() if path.suffix.lower() in _SUFFIXES] if own.is_dir() else []
    if not found:
        problem = "holds no image" if own.is_dir() else "is not there"
        raise ConfigError(
            [f"{own}: {problem}; put some of this route's documents there (*{', *'.join(_SUFFIXES)})"]
        )
    found.sort()
    sizes = [path.stat().st_size for path in found]
    every = -(-len(found) // limit)
    while every < len(found) and sum(sizes[::every]) > max_bytes:
        every += 1
    return [_read(path, max_pixels) for path in found[::every]]


def _read(path: Path, max_pixels: int) -> Image:
    try:
        data = path.read_bytes()
        info = inspect(data, max_pixels=max_pixels)
        if not info.complete:  # or of a format that has no end mark
            decode_rgb(data)
    except (BadImage, OSError) as error:
        raise ConfigError([f"{path}: {error}"]) from error
    kind = "jpeg" if info.format == "MPO" else info.format.lower()
    return Image(data, f"image/{kind}")


def rendered(route: str, count: int, rng: Random) -> list[Image]:
    """Draw documents: forms for `key-value`, tables for `table`, pages of text for all else.

    Args:
        route: whose documents.
        count: how many; no two are the same.
        rng: decides all about them; the same state gives the same documents.
    """
    draw = {KEY_VALUE: _form, TABLE: _table}.get(route, _page)
    return [_encoded(draw(rng), rng) for _ in range(count)]


def _encoded(picture: Picture.Image, rng: Random) -> Image:
    data = io.BytesIO()
    if rng.random() < 0.5:
        picture.save(data, "JPEG", quality=85)
        return Image(data.getvalue(), "image/jpeg")
    picture.save(data, "PNG", compress_level=3)
    return Image(data.getvalue(), "image/png")


def _page(rng: Random) -> Picture.Image:
    """Headings and paragraphs on a sheet about as high as A4 at 120 to 145 dpi."""
    height = rng.randint(1400, 1700)
    width, margin, size = round(height / 2**0.5), height // 14, rng.randint(18, 26)
    picture, draw = _sheet(width, height)
    top = margin
    while top < height - margin:
        draw.text((margin, top), _words(rng, 3, 6).capitalize(), fill=0, font=_font(size * 1.5))
        top += 3 * size
        for _ in range(rng.randint(1, 3)):
            for line in textwrap.wrap(_words(rng, 40, 120), int((width - 2 * margin) / (0.46 * size))):
                draw.text((margin, top), line, fill=0, font=_font(size))
                top += round(1.4 * size)
            top += size
    return picture


def _form(rng: Random) -> Picture.Image:
    """Labels and values, one below another."""
    labels = [*FIELDS, *rng.sample(_LABELS, rng.randint(2, len(_LABELS)))]
    rng.shuffle(labels)
    size, ruled = rng.randint(22, 30), rng.random() < 0.5
    step = 2 * size
    picture, draw = _sheet(rng.randint(24, 34) * size, (len(labels) + 4) * step)
    draw.text((step, step), _words(rng, 2, 3).upper(), fill=0, font=_font(size * 1.4))
    for place, label in enumerate(labels):
        top = (place + 3) * step
        draw.text((step, top), f"{label.capitalize()}:", fill=0, font=_font(size))
        draw.text((10 * size, top), _value(label, rng), fill=0, font=_font(size))
        if ruled:
            draw.line((step, top + 1.5 * size, picture.width - step, top + 1.5 * size), fill=128)
    return picture


def _table(rng: Random) -> Picture.Image:
    """A grid of words and numbers, with lines or without."""
    columns = rng.sample(_COLUMNS, rng.randint(3, 7))
    rows, size, ruled = rng.randint(6, 24), rng.randint(18, 24), rng.random() < 0.7
    step, wide, margin = round(1.9 * size), 8 * size, size
    picture, draw = _sheet(len(columns) * wide + 2 * margin, (rows + 1) * step + 2 * margin)
    for row in range(rows + 1):
        top = margin + row * step
        for place, column in enumerate(columns):
            text = _value(column, rng) if row else column.capitalize()
            draw.text((margin + place * wide + size // 2, top + size // 3), text, fill=0, font=_font(size))
        if ruled or row == 1:
            draw.line((margin, top, picture.width - margin, top), fill=0, width=2)
    if ruled:
        bottom = margin + (rows + 1) * step
        draw.line((margin, bottom, picture.width - margin, bottom), fill=0, width=2)
        for place in range(len(columns) + 1):
            draw.line((margin + place * wide, margin, margin + place * wide, bottom), fill=0, width=2)
    return picture


def _sheet(width: int, height: int) -> tuple[Picture.Image, ImageDraw.ImageDraw]:
    picture = Picture.new("L", (width, height), 255)
    return picture, ImageDraw.Draw(picture)


def _font(size: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _words(rng: Random, least: int, most: int) -> str:
    return " ".join(rng.choices(_WORDS, k=rng.randint(least, most)))


def _value(label: str, rng: Random) -> str:
    match label:
        case "item" | "region" | "branch" | "country":
            return rng.choice(_WORDS).title()
        case "name" | "customer" | "signature":
            return _words(rng, 2, 2).title()
        case "address":
            return f"{rng.randint(1, 300)} {_words(rng, 1, 2).title()} Street"
        case "date" | "due date":
            return f"20{rng.randint(10, 29)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
        case "total" | "amount" | "price":
            return f"{rng.uniform(1, 99_999):,.2f}"
    return str(rng.randint(1, 999_999))


def digest(images: Iterable[Image]) -> str:
    """Return a digest of images in any order: the start of a SHA-256."""
    each = sorted(hashlib.sha256(image.data).digest() for image in images)
    return hashlib.sha256(b"".join(each)).hexdigest()[:16]
