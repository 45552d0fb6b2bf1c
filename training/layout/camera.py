"""What happens to a document before it reaches a server: scanner, telephone camera, fax, screenshot, JPEG."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageFilter, ImageOps

if TYPE_CHECKING:
    from random import Random


def taken(rng: Random, page: Image.Image, photo_share: float) -> bytes:
    """A document as an encoded file."""
    if rng.random() < 0.10:
        page = _cut(rng, page)
    elif rng.random() < 0.12:
        page = _margins(rng, page)
    kind = rng.random()
    if kind < photo_share:
        page = _photo(rng, page)
    elif kind < photo_share + 0.3:
        page = _scan(rng, page)
    elif kind < photo_share + 0.34:
        page = _fax(rng, page)
    page = _resampled(rng, page)
    return _encoded(rng, page)


def _noise(rng: Random, size: tuple[int, int], spread: float) -> np.ndarray:
    generator = np.random.default_rng(rng.getrandbits(32))
    return generator.standard_normal((size[1], size[0]), dtype=np.float32) * spread


def _smooth(rng: Random, size: tuple[int, int], cells: int, low: float, high: float) -> np.ndarray:
    """A slowly changing field: light, stains, creases' shading."""
    generator = np.random.default_rng(rng.getrandbits(32))
    coarse = generator.uniform(low, high, (cells, cells)).astype(np.float32)
    return np.asarray(Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC))


def _clip(pixels: np.ndarray) -> Image.Image:
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def _cut(rng: Random, page: Image.Image) -> Image.Image:
    width, height = page.size
    left, right = (
        width * rng.choice([0, 0, rng.uniform(0, 0.08)]),
        width * rng.choice([1, 1, rng.uniform(0.92, 1)]),
    )
    top, bottom = (
        height * rng.choice([0, rng.uniform(0, 0.35)]),
        height * rng.choice([1, rng.uniform(0.7, 1)]),
    )
    return page.crop((int(left), int(top), max(int(right), int(left) + 24), max(int(bottom), int(top) + 24)))


def _margins(rng: Random, page: Image.Image) -> Image.Image:
    """Much empty paper around: a small slip on a large scan."""
    width, height = page.size
    size = int(width * rng.uniform(1.0, 2.2)), int(height * rng.uniform(1.0, 1.8))
    ground = Image.new("L", size, page.getpixel((0, 0)))
    ground.paste(page, (rng.randint(0, size[0] - width), rng.randint(0, size[1] - height)))
    return ground


def _scan(rng: Random, page: Image.Image) -> Image.Image:
    if rng.random() < 0.6:
        page = page.rotate(rng.gauss(0, 0.8), Image.Resampling.BILINEAR, fillcolor=page.getpixel((0, 0)))
    if rng.random() < 0.5:
        page = page.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 1.2)))
    pixels = np.asarray(page, dtype=np.float32)
    if rng.random() < 0.4:
        pixels = pixels * _smooth(rng, page.size, 3, 0.85, 1.02)
    pixels = pixels + _noise(rng, page.size, rng.choice([1, 4, 10]))
    page = _clip(pixels)
    if rng.random() < 0.2:
        edge = [rng.choice([0, 0, rng.randint(2, max(3, page.width // 12))]) for _ in range(4)]
        page = ImageOps.expand(page, (edge[0], edge[1], edge[2], edge[3]), fill=rng.choice([0, 10, 60, 255]))
    return page


def _fax(rng: Random, page: Image.Image) -> Image.Image:
    pixels = np.asarray(
        page.rotate(rng.gauss(0, 0.7), Image.Resampling.BILINEAR, fillcolor=255), dtype=np.float32
    )
    pixels = pixels + _noise(rng, page.size, rng.choice([10, 40, 60]))
    return _clip(np.where(pixels > rng.uniform(90, 190), 255.0, 0.0))


def _ground(rng: Random, size: tuple[int, int]) -> np.ndarray:
    """A table top, cloth or floor."""
    base = rng.choice([rng.uniform(10, 90), rng.uniform(60, 200), rng.uniform(150, 240)])
    field = base + _smooth(rng, size, rng.randint(2, 6), -25, 25)
    kind = rng.random()
    if kind < 0.4:
        grain = _noise(rng, (size[0] if rng.random() < 0.5 else 8, 8 if rng.random() < 0.5 else size[1]), 14)
        stripes = np.asarray(Image.fromarray(grain).resize(size, Image.Resampling.BICUBIC))
        field = field + stripes
    return field + _noise(rng, size, rng.choice([1, 4, 9]))


def _photo(rng: Random, page: Image.Image) -> Image.Image:
    """Paper on a ground, in perspective, unevenly lit, perhaps creased."""
    if max(page.size) > 1100:
        page.thumbnail((1100, 1100), Image.Resampling.BOX)
    pixels = np.asarray(page, dtype=np.float32)
    if rng.random() < 0.5:
        pixels = pixels * rng.uniform(0.5, 0.9) + 255 * rng.uniform(0.02, 0.1)
    if rng.random() < 0.35:
        pixels = pixels * _creases(rng, page.size)
    width, height = page.size
    border = rng.choice([0.0, 0.02, 0.1, 0.3, 0.5])
    outer = (
        int(width * (1 + border * rng.uniform(0.5, 2))) + 4,
        int(height * (1 + border * rng.uniform(0.3, 1))) + 4,
    )
    x0, y0 = (outer[0] - width) * rng.random(), (outer[1] - height) * rng.random()
    wobble = rng.choice([0, 0.01, 0.03, 0.06])
    corners = []
    for cx, cy in ((x0, y0), (x0 + width, y0), (x0 + width, y0 + height), (x0, y0 + height)):
        corners.append(
            (cx + width * rng.uniform(-wobble, wobble), cy + height * rng.uniform(-wobble, wobble))
        )
    source = [(0, 0), (width, 0), (width, height), (0, height)]
    data = _perspective(corners, source)
    sheet = _clip(pixels)
    warped = sheet.transform(outer, Image.Transform.PERSPECTIVE, data, Image.Resampling.BILINEAR)
    mask = Image.new("L", page.size, 255).transform(
        outer, Image.Transform.PERSPECTIVE, data, Image.Resampling.BILINEAR
    )
    share = np.asarray(mask, dtype=np.float32) / 255
    whole = np.asarray(warped, dtype=np.float32) * share + _ground(rng, outer) * (1 - share)
    whole = whole * _smooth(rng, outer, rng.randint(2, 4), rng.uniform(0.55, 0.9), 1.05)
    picture = _clip(whole + _noise(rng, outer, rng.choice([1, 4, 8])))
    if rng.random() < 0.5:
        picture = picture.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 1.5)))
    if rng.random() < 0.4:
        angle = rng.gauss(0, 3)
        picture = picture.rotate(angle, Image.Resampling.BILINEAR, fillcolor=int(whole[0, 0].clip(0, 255)))
    return picture


def _perspective(target: list[tuple[float, float]], source: list[tuple[float, float]]) -> list[float]:
    rows = []
    for (x, y), (u, v) in zip(target, source, strict=True):
        rows.append([x, y, 1, 0, 0, 0, -u * x, -u * y])
        rows.append([0, 0, 0, x, y, 1, -v * x, -v * y])
    return list(
        np.linalg.solve(np.array(rows), np.array([c for point in source for c in point], dtype=float))
    )


def _creases(rng: Random, size: tuple[int, int]) -> np.ndarray:
    field = np.ones((size[1], size[0]), dtype=np.float32)
    for _ in range(rng.randint(1, 4)):
        axis = rng.random() < 0.6
        length = size[0] if axis else size[1]
        at = rng.uniform(0.1, 0.9) * length
        ramp = np.arange(length, dtype=np.float32) - at
        shade = 1 - rng.uniform(0.05, 0.3) * np.exp(-np.abs(ramp) / (length * rng.uniform(0.01, 0.15))) * (
            ramp > 0
        )
        field *= shade[None, :] if axis else shade[:, None]
    return field


def _resampled(rng: Random, page: Image.Image) -> Image.Image:
    """Another resolution: from the small crops of data sets to large pages."""
    longest = max(page.size)
    want = int(rng.choice([rng.uniform(200, 420), rng.uniform(350, 800), rng.uniform(600, 1400), longest]))
    # Letters below about 5 pixels cannot be read by anyone; such files are not sent.
    want = max(want, longest // 3)
    if want == longest:
        return page
    factor = want / longest
    size = max(8, round(page.width * factor)), max(8, round(page.height * factor))
    kind = rng.choice(
        [Image.Resampling.BILINEAR, Image.Resampling.LANCZOS, Image.Resampling.BOX, Image.Resampling.BICUBIC]
    )
    return page.resize(size, kind)


def _encoded(rng: Random, page: Image.Image) -> bytes:
    if rng.random() < 0.03:
        page = ImageOps.invert(page)
    if rng.random() < 0.1:
        page = _clip(np.asarray(page, dtype=np.float32) * rng.uniform(0.4, 0.9) + rng.uniform(0, 60))
    out = io.BytesIO()
    if rng.random() < 0.6:
        page.save(out, "JPEG", quality=rng.randint(25, 95))
    else:
        page.save(out, "PNG", compress_level=1)
    return out.getvalue()
