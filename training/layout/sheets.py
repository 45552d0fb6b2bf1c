"""What all documents start and end with: the sheet's size and colours, and the cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

    from PIL import Image

    from training.layout.blocks import Sheet


def finish(sheet: Sheet, margin: float) -> Image.Image:
    """Cut the sheet to what was drawn, and a margin."""
    right = min(sheet.image.width, int(sheet.right + margin))
    bottom = min(sheet.image.height, int(sheet.bottom + margin))
    return sheet.image.crop((0, 0, max(8, right), max(8, bottom)))


def colours(rng: Random) -> tuple[int, int]:
    """Paper and ink: mostly dark on white, sometimes tinted, sometimes light on dark."""
    kind = rng.random()
    if kind < 0.72:
        return 255, rng.choice([0, 0, 0, 20, 45])
    if kind < 0.92:
        return rng.randint(200, 250), rng.randint(0, 70)
    return rng.randint(10, 70), rng.randint(190, 255)


def page_size(rng: Random) -> tuple[int, int]:
    """A sheet of paper in pixels."""
    width = rng.choice([600, 700, 850, 1000])
    return width, int(width * rng.choice([1.29, 1.41, 1.41, 1.33, 1.5]))
