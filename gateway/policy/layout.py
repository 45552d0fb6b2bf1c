"""Sorts a document image by its layout alone: a very small convolutional network in numpy.

The picture is first made independent of what does not matter (paper, light, polarity, empty margins, size), then a
network of six convolutions looks for words, rules, gaps and columns, and the strength of each, averaged and at its
highest over the picture, decides. It is trained on synthetic documents only: see training/layout.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gateway.model import LayoutGuess

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The longer side of the pictures that `guess` takes: enough for the text lines of a full page to stay apart.
THUMBNAIL_SIDE = 384
# The side of the square that the network sees.
SIDE = 192
# Paper is taken to be even within tiles of this many pixels.
TILE = 16
# Contrast below this many grey levels is noise, even where a picture holds nothing stronger.
FAINT = 24.0


def features(grey: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Picture (height, width), 255 = white, to (2, SIDE, SIDE) in 0..1: ink against local paper, and filled areas."""
    pixels = grey.astype(np.float32)
    contrast = np.abs(pixels - _paper(pixels))
    strongest = float(np.percentile(contrast[::2, ::2], 99.0))
    ink = np.minimum(contrast / max(strongest, FAINT), 1.0)
    fills = np.abs(pixels - np.median(pixels[::2, ::2])) / 255.0
    top, bottom = _extent(ink.sum(axis=1))
    left, right = _extent(ink.sum(axis=0))
    rows = _sampling(top, bottom, right - left, grey.shape[0])
    columns = _sampling(left, right, bottom - top, grey.shape[1])
    return np.stack([rows @ plane @ columns.T for plane in (ink, fills)])


def _paper(pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    """Brightness of the paper (or of the dark screen) under each pixel: medians of tiles, joined smoothly."""
    height, width = pixels.shape
    padded = np.pad(pixels, ((0, -height % TILE), (0, -width % TILE)), mode="edge")
    down, across = padded.shape[0] // TILE, padded.shape[1] // TILE
    # Every other pixel is enough for a median, and four times as fast.
    tiles = padded.reshape(down, TILE, across, TILE)[:, ::2, :, ::2].transpose(0, 2, 1, 3).reshape(down, across, -1)
    between_rows, between_columns = _between(height, down), _between(width, across)
    return np.asarray(between_rows @ np.median(tiles, axis=2) @ between_columns.T, dtype=np.float32)


def _between(pixels: int, tiles: int) -> NDArray[np.float32]:
    """Matrix that interpolates values at the tiles' centres to every pixel."""
    place = ((np.arange(pixels) + 0.5) / TILE - 0.5).clip(0, tiles - 1)
    return np.maximum(0, 1 - np.abs(place[:, None] - np.arange(tiles))).astype(np.float32)


def _extent(ink: NDArray[np.float32]) -> tuple[float, float]:
    """Where along one side the ink begins and ends, with a little margin; specks at the rim do not count."""
    length = len(ink)
    clear = np.maximum(ink - 0.2 * ink.mean(), 0)
    sums = np.cumsum(clear, dtype=np.float64)
    first, last = np.searchsorted(sums, (0.004 * sums[-1], 0.996 * sums[-1]))
    margin = 1 + 0.03 * (last - first)
    return max(0.0, first - margin), min(float(length), last + 1 + margin)


def _sampling(start: float, stop: float, other: float, length: int) -> NDArray[np.float32]:
    """Matrix that samples start..stop of one side into SIDE places, at the scale that fits the longer side."""
    step = max(stop - start, other) / SIDE
    centre = (start + stop) / 2 + (np.arange(SIDE) + 0.5 - SIDE / 2) * step
    reach = max(step, 1.0)
    weight = np.maximum(0, 1 - np.abs(np.arange(length) + 0.5 - centre[:, None]) / reach)
    weight *= ((centre > start) & (centre < stop))[:, None]
    total = weight.sum(axis=1, keepdims=True)
    return np.divide(weight, total, out=np.zeros_like(weight), where=total > 0).astype(np.float32)
