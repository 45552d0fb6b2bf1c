"""Makes the synthetic training set: document number i is a function of the seed and i alone."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from gateway.policy.sort.layout import THUMBNAIL_SIDE
from gateway.wire.image.pixels import thumbnail
from training.layout import camera, pages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

ROUTES = ("text", "key-value", "table")
TAKES = 2
# How often a document of the route is photographed rather than scanned or exported.
PHOTO_SHARE = {"text": 0.15, "key-value": 0.3, "table": 0.12}


# Seed, kinds of document, and how many.
SETS = (("layout", pages.RECIPES, 8400), ("near", pages.NEAR, 2400))


def samples(
    seed: str, recipes: dict[str, list[tuple[Callable[[Random], Image.Image], float]]], start: int, stop: int
) -> Iterator[tuple[NDArray[np.uint8], int]]:
    """Thumbnails and route numbers of the documents start..stop of a set, each taken TAKES times."""
    for i in range(start, stop):
        route = i % len(ROUTES)
        rng = Random(f"{seed}/{i}")
        page = pages.document(rng, ROUTES[route], recipes)
        for _ in range(TAKES):
            data = camera.taken(rng, page, PHOTO_SHARE[ROUTES[route]])
            yield thumbnail(data, THUMBNAIL_SIDE), route
