"""Pictures that the tests draw themselves, and readers that need no models."""

from __future__ import annotations

import json
import struct
import time
import zlib
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageDraw, ImageFont

from gateway.engines.embedded.lines import Box
from tests import support
from tests.support import data_url

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Sequence

Placed = tuple[int, int, str]


def draw(size: tuple[int, int], texts: Iterable[Placed], *, font: float = 26) -> Image.Image:
    """Draw texts at (left, top) in black on white."""
    image = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(image)
    for left, top, text in texts:
        pen.text((left, top), text, fill="black", font=ImageFont.load_default(size=font))
    return image


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    """An image as it is: other helpers make it RGB."""
    return support.encoded(image, kind, image.mode)


def png_header(width: int, height: int) -> bytes:
    """A PNG that ends where its pixels should begin."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    chunks = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunks
        + struct.pack(">I", 0)
        + b"IDAT"
        + struct.pack(">I", zlib.crc32(b"IDAT"))
    )


RECEIPT = (
    (40, 30, "CORNER BAKERY"),
    (40, 80, "12 Mill Street, Springfield"),
    (40, 130, "Date: 2024-05-17"),
    (40, 180, "Bread"),
    (420, 180, "3.50"),
    (40, 230, "Total"),
    (420, 230, "8.25"),
)


def receipt() -> bytes:
    return encoded(draw((560, 300), RECEIPT))


def chat(*images: bytes, prompt: str = "Text Recognition:", model: str = "glm-ocr", **fields: Any) -> bytes:
    """The body of a chat request with images before its prompt."""
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": data_url(image)}} for image in images
    ]
    parts.append({"type": "text", "text": prompt})
    return json.dumps({"model": model, "messages": [{"role": "user", "content": parts}], **fields}).encode()


class FakePage:
    def __init__(self, boxes: Sequence[Box]) -> None:
        self.boxes = list(boxes)

    def crop(self, index: int) -> int:
        return index


class FakeReader:
    """Finds the given texts one below another, whatever the picture.

    Args:
        texts: what it reads; an exception among them is raised instead.
        pause_s: how long it takes over each.
        gate: it begins no text while this is unset.
    """

    def __init__(
        self,
        texts: Sequence[str | Exception] = ("one", "two"),
        *,
        pause_s: float = 0.0,
        gate: threading.Event | None = None,
    ) -> None:
        self.texts = texts
        self.pause_s = pause_s
        self.gate = gate
        self.detected = 0
        self.read = 0

    def detect(self, pixels: object) -> FakePage:
        self.detected += 1
        return FakePage([Box(10, 40 * n, 300, 40 * n + 30) for n in range(len(self.texts))])

    def recognise(self, crops: Sequence[int]) -> list[str]:
        if self.gate is not None:
            assert self.gate.wait(30)
        time.sleep(self.pause_s)
        found = []
        for crop in crops:
            text = self.texts[crop]
            if isinstance(text, Exception):
                raise text
            self.read += 1
            found.append(text)
        return found
