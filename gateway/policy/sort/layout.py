"""Sorts a document image by its layout alone: measures of words, gaps, rules and columns, and small trees.

The picture is first freed of what does not matter: paper, light, polarity, empty margins, size. The measures
then depend little on the script, since their unit is the distance between text lines. The trees are trained
on synthetic documents only: see training/layout.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gateway.model import LayoutGuess

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Plane = NDArray[np.float32]
    Mask = NDArray[np.bool_]

# The longer side of the pictures that `guess` takes: enough for the text lines of a full page to stay apart.
THUMBNAIL_SIDE = 384
# The longer side of what is measured: the part of the picture that holds ink, enlarged or reduced.
SIDE = 256
# Paper is taken to be even within tiles of this many pixels.
TILE = 16
# Contrast below this many grey levels is noise, even where a picture holds nothing stronger.
FAINT = 24.0
# Ink of this strength counts as a stroke.
INK = 0.3
# Stands for the end of a blank that reaches the edge; more than any distance within the picture.
FAR = 8 * SIDE


def features(grey: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Measures of a picture (height, width), 255 = white; all finite, in a fixed order."""
    ink, fills, frame = _normalised(grey)
    mask = ink > INK
    flat, upright = _rules(ink), _rules(ink.T).T
    words = mask & ~_thickened(flat) & ~_thickened(upright)
    pitch, strength = _line_pitch(words)
    gaps = _gaps(words)
    measures = [
        *frame,
        *_of_rules(flat, upright, mask),
        pitch / SIDE,
        strength,
        words.shape[0] / pitch,
        words.shape[1] / pitch,
        *_of_gaps(words, gaps, pitch),
        *_of_gaps(words.T, _gaps(words.T), pitch),
        *_of_segments(words, gaps, pitch),
        *_of_fills(fills),
        *_of_places(words, ink),
    ]
    return np.array(measures, dtype=np.float32)


def _normalised(grey: NDArray[np.uint8]) -> tuple[Plane, Plane, list[float]]:
    """Ink against local paper and filled areas (0..1, cut to what holds ink), and how the cut lies."""
    pixels = grey.astype(np.float32)
    contrast = np.abs(pixels - _paper(pixels))
    some = contrast[::2, ::2].ravel()
    strongest = float(np.partition(some, len(some) * 99 // 100)[len(some) * 99 // 100])
    ink = np.minimum(contrast / max(strongest, FAINT), 1.0)
    height, width = grey.shape
    top, bottom = _extent(ink.sum(axis=1))
    left, right = _extent(ink.sum(axis=0))
    step = max(bottom - top, right - left) / SIDE
    frame = [
        float(np.log((right - left) / (bottom - top))),
        float(np.log(width / height)),
        (right - left) / width,
        (bottom - top) / height,
        float(ink.mean()),
        strongest / 255.0,
    ]
    rows = _taps((bottom - top) / step, step, top, height)
    columns = _taps((right - left) / step, step, left, width)
    inside = pixels[int(top) : int(np.ceil(bottom)), int(left) : int(np.ceil(right))]
    fills = np.abs(inside - np.median(pixels[::4, ::4])) / np.float32(255)
    return _sampled(_sampled(ink, rows).T, columns).T.copy(), fills, frame


def _paper(pixels: Plane) -> Plane:
    """Brightness of the paper (or of the dark screen) under each pixel: medians of tiles, joined smoothly."""
    height, width = pixels.shape
    padded = np.pad(pixels, ((0, -height % TILE), (0, -width % TILE)), mode="edge")
    down, across = padded.shape[0] // TILE, padded.shape[1] // TILE
    # Every other pixel is enough for a median, and four times as fast.
    tiles = padded.reshape(down, TILE, across, TILE)[:, ::2, :, ::2].swapaxes(1, 2).reshape(down, across, -1)
    medians = _median(tiles)
    columns = _taps(width, 1 / TILE, 0.0, across)
    return _sampled(_sampled(medians.T, columns).T, _taps(height, 1 / TILE, 0.0, down))


def _median(values: Plane) -> Plane:
    """Median along the last axis, in a fifth of np.median's time."""
    ordered = np.sort(values, axis=-1)
    last = ordered.shape[-1] - 1
    return np.asarray((ordered[..., last // 2] + ordered[..., (last + 1) // 2]) / np.float32(2))


def _taps(count: float, step: float, start: float, length: int) -> tuple[NDArray[np.intp], Plane]:
    """Which of `length` places to take, and how much of each, for values at every step from start on."""
    centre = start + (np.arange(max(2, round(count))) + 0.5) * step
    reach = max(step, 1.0)
    place = np.floor(centre - reach)[None, :] + np.arange(int(2 * reach) + 2)[:, None]
    weight = np.maximum(0, 1 - np.abs(place + 0.5 - centre) / reach)
    weight /= weight.sum(axis=0)
    return place.astype(np.intp).clip(0, length - 1), weight.astype(np.float32)


def _sampled(plane: Plane, taps: tuple[NDArray[np.intp], Plane]) -> Plane:
    """Mix rows; a few taps cost less than the product with a matrix, which would also wake other threads."""
    places, weights = taps
    mixed = np.zeros((places.shape[1], plane.shape[1]), dtype=np.float32)
    for place, weight in zip(places, weights, strict=True):
        part = plane.take(place, axis=0)
        part *= weight[:, None]
        mixed += part
    return mixed


def _extent(ink: Plane) -> tuple[float, float]:
    """Where along one side the ink begins and ends, with a little margin; specks at the rim do not count."""
    clear = np.maximum(ink - 0.2 * ink.mean(), 0)
    sums = np.cumsum(clear, dtype=np.float64)
    first, last = np.searchsorted(sums, (0.004 * sums[-1], 0.996 * sums[-1]))
    margin = 1 + 0.03 * float(last - first)
    return max(0.0, float(first) - margin), min(float(len(ink)), float(last) + 1 + margin)


def _windows(plane: Plane, length: int) -> Plane:
    """Mean over each stretch of a row; the result is shorter by length - 1."""
    sums = np.zeros((plane.shape[0], plane.shape[1] + 1), dtype=np.float32)
    np.cumsum(plane, axis=1, out=sums[:, 1:])
    return np.asarray((sums[:, length:] - sums[:, :-length]) / np.float32(length), dtype=np.float32)


def _across(mask: Mask) -> Plane:
    """Number of pixels set in each row (several times faster than a sum of booleans)."""
    return np.asarray(mask.astype(np.float32).sum(axis=1))


def _down(mask: Mask) -> Plane:
    """Number of pixels set in each column."""
    return np.asarray(mask.astype(np.float32).sum(axis=0))


def _lagged(mask: Mask) -> Mask:
    """The mask moved one pixel to the right."""
    moved = np.zeros_like(mask)
    moved[:, 1:] = mask[:, :-1]
    return moved


def _rules(ink: Plane) -> Mask:
    """Pixels on long even strokes along the rows: ruling lines, and the edges of filled areas."""
    length = max(6, ink.shape[1] // 10)
    if ink.shape[1] <= length:
        return np.zeros(ink.shape, dtype=np.bool_)
    mean = _windows(ink, length)
    spread = _windows(ink * ink, length) - mean * mean
    even = (mean > 0.15) & (spread < 0.012 + 0.02 * mean * mean)
    # Paper that is dark in all rows around is no stroke.
    rows = np.arange(ink.shape[0])
    above, below = mean[np.maximum(rows - 3, 0)], mean[np.minimum(rows + 3, len(rows) - 1)]
    even &= np.minimum(above, below) < 0.5 * mean
    padded = np.zeros((ink.shape[0], ink.shape[1] + length - 1), dtype=np.float32)
    padded[:, length - 1 : ink.shape[1]] = even
    return _windows(padded, length) > 0


def _thickened(mask: Mask) -> Mask:
    wide = mask.copy()
    wide[1:] |= mask[:-1]
    wide[:-1] |= mask[1:]
    wide[:, 1:] |= mask[:, :-1]
    wide[:, :-1] |= mask[:, 1:]
    return wide


def _of_rules(flat: Mask, upright: Mask, mask: Mask) -> list[float]:
    """Share, number, length and crossings of the ruling lines."""
    found = [float(np.count_nonzero(flat) / flat.size), float(np.count_nonzero(upright) / flat.size)]
    for rules in (flat, upright.T):
        lengths = _across(rules) / rules.shape[1]
        share = np.sort(lengths)[::-1]
        lines, gaps = _starts(lengths > 0.3), np.diff(_starts(lengths > 0.3))
        found += [
            float(len(lines)),
            float(len(_starts(lengths > 0.7))),
            float(share[0]),
            float(share[: min(8, len(share))].mean()),
            float(gaps.std() / gaps.mean()) if len(gaps) > 1 else -1.0,
            float((lines[-1] - lines[0]) / len(rules)) if len(lines) else -1.0,
        ]
    crossings = float(np.count_nonzero(_thickened(flat) & _thickened(upright)))
    ruled = float(np.count_nonzero(flat | upright))
    return [*found, crossings, crossings / (ruled + 1), ruled / (float(np.count_nonzero(mask)) + 1)]


def _starts(flags: Mask) -> NDArray[np.intp]:
    """Where runs of true values begin."""
    return np.flatnonzero(flags & ~np.concatenate(([False], flags[:-1])))


def _line_pitch(words: Mask) -> tuple[float, float]:
    """Distance between text lines, and how regular it is: the first peak of the rows' autocorrelation."""
    height, width = words.shape
    cuts = np.arange(min(6, width)) * width // min(6, width)
    strips = np.add.reduceat(words.astype(np.float32), cuts, axis=1) / width
    spectrum = np.abs(np.fft.rfft(strips - strips.mean(axis=0), 2 * SIDE, axis=0)) ** 2
    echo = np.fft.irfft(spectrum.sum(axis=1), 2 * SIDE)[:height] / np.arange(2 * height, height, -1)
    if height < 8 or echo[0] <= 1e-9:
        return float(max(2, height)), 0.0
    echo = echo / echo[0]
    rising = np.flatnonzero(np.diff(echo) > 0)
    start = int(rising[0]) if len(rising) else height
    if start >= height * 2 // 3:
        return float(max(2, min(height, start * 2))), 0.0
    peak = start + int(np.argmax(echo[start : max(start + 1, height * 2 // 3)]))
    # A later peak may be higher by chance: the first that comes near it is the pitch.
    middle = echo[start + 1 : peak]
    tops = (middle >= echo[start : peak - 1]) & (middle >= echo[start + 2 : peak + 1])
    near = np.flatnonzero(tops & (middle > 0.75 * echo[peak]))
    pitch = start + 1 + int(near[0]) if len(near) else peak
    return float(max(2, pitch)), float(echo[pitch])


def _gaps(words: Mask) -> NDArray[np.int16]:
    """How long the blank around each pixel of a row is, from ink to ink; 0 on ink, about FAR at the ends."""
    width = words.shape[1]
    place = np.arange(width, dtype=np.int16)
    before = np.maximum.accumulate(np.where(words, place, np.int16(-FAR)), axis=1)
    after = np.minimum.accumulate(np.where(words, place, np.int16(FAR))[:, ::-1], axis=1)[:, ::-1]
    return np.where(words, np.int16(0), after - before - np.int16(1))


def _of_gaps(words: Mask, gaps: NDArray[np.int16], pitch: float) -> list[float]:
    """How much of the rows is blanks and strokes of each length, in units of the line pitch."""
    edges = np.array([0.15, 0.3, 0.6, 1.0, 1.6, 2.5, 4.0, 7.0, 12.0]) * pitch
    found = []
    for runs in (gaps, _gaps(~words)):
        pixels = np.bincount(runs.ravel(), minlength=FAR)[1 : SIDE + 2]
        total = int(pixels.sum())
        kinds = np.searchsorted(edges, np.arange(1, SIDE + 2))
        counts = np.bincount(kinds, weights=pixels, minlength=10) / (total + 1)
        found += [*counts.tolist(), total / words.size]
    return found


def _of_segments(words: Mask, gaps: NDArray[np.int16], pitch: float) -> list[float]:
    """Rows of words joined at several distances: how many parts, how full, and how they line up."""
    width = words.shape[1]
    inked = _across(words) > 0.01 * width
    found = [float(inked.mean())]
    gaps = gaps[inked] if inked.any() else gaps
    # Where the pitch is mistaken, distances in plain pixels still tell something.
    for reach in (0.7 * pitch, 1.2 * pitch, 2.2 * pitch, 4.0 * pitch, 0.02 * SIDE, 0.05 * SIDE):
        joined = gaps < max(2.0, reach)
        lagged = _lagged(joined)
        first, last = joined > lagged, lagged > joined
        parts, filled = _across(first), _across(joined)
        shares = np.sort(filled / width)
        found += [float(parts.mean()), float(parts.std())]
        found += [float((parts == n).mean()) for n in (1, 2, 3)] + [float((parts > n).mean()) for n in (3, 5)]
        found += [float(shares[int(share * (len(shares) - 1))]) for share in (0.1, 0.5, 0.9)]
        found.append(float((filled / np.maximum(1, parts)).mean() / pitch))
        found += _of_alignment(first, last, joined, pitch)
    return found


def _of_alignment(first: Mask, last: Mask, joined: Mask, pitch: float) -> list[float]:
    """How many starts and ends of parts stand above each other, and how clear the gutters of columns are."""
    rows, width = joined.shape
    found = []
    for edges in (first, last):
        profile = np.convolve(_down(edges), np.ones(3), "same") / rows
        best = np.sort(profile)[::-1]
        found += [float(best[0]), float(best[:12:3].mean())]
        found.append(float((profile**2).sum() / (profile.sum() + 1e-6)))
    cover = _down(joined) / rows
    deep = cover < 0.25 * cover.max()
    begins, ends = _starts(deep), width - _starts(deep[::-1])[::-1]
    inner = (begins > 0) & (ends < width) & (ends - begins >= 0.4 * pitch)
    found += [float(inner.sum()), float((ends - begins)[inner].sum() / width)]
    found += [float(cover.std()), float(cover.mean())]
    found += [float(cover[: max(1, width // 3)].mean()), float(cover[width * 2 // 3 :].mean())]
    for lag in (1, 2, 4):
        shift = min(rows - 1, round(lag * pitch))
        over, under = joined[shift:], joined[: rows - shift]
        both = np.count_nonzero(over & under)
        either = np.count_nonzero(over) + np.count_nonzero(under) - both
        found.append(float(both / (either + 1)))
    return found


def _of_fills(fills: Plane) -> list[float]:
    """How much of the picture, and of its fullest rows, is filled."""
    rows = _median(fills[:, ::3])
    return [
        float(np.count_nonzero(fills > 0.06) / fills.size),
        float(np.count_nonzero(fills > 0.3) / fills.size),
        float((rows > 0.06).mean()),
        float((rows > 0.3).mean()),
        float(np.median(fills[:, :4])),
        float(np.median(fills[:, -4:])),
    ]


def _of_places(words: Mask, ink: Plane) -> list[float]:
    """Where the ink is: shares of the thirds, and how uneven rows and columns are."""
    total = float(np.count_nonzero(words)) + 1.0
    found = [total / words.size, float(ink.mean()), float(ink[words].sum() / total)]
    for profile, across in ((_across(words), words.shape[1]), (_down(words), words.shape[0])):
        found += [float(part.sum()) / total for part in np.array_split(profile, 3)]
        found.append(float(profile.std() / (profile.mean() + 0.01 * across)))
        found.append(float((profile < 0.005 * across).mean()))
    blocks = np.add.reduceat(words.astype(np.float32), _cuts(words.shape[0]), axis=0)
    blocks = np.add.reduceat(blocks, _cuts(words.shape[1]), axis=1)
    return [*found, *(blocks.ravel() / total).tolist()]


def _cuts(length: int) -> NDArray[np.intp]:
    return np.minimum(np.arange(4) * length // 4, length - 1)


@dataclass(frozen=True)
class LayoutModel:
    """Boosted trees as flat arrays; leaves point to themselves, so that all trees are walked at once."""

    routes: tuple[str, ...]
    feature: NDArray[np.int16]
    threshold: Plane
    left: NDArray[np.uint16]
    right: NDArray[np.uint16]
    value: Plane
    roots: NDArray[np.uint16]
    depth: int
    temperature: float

    @classmethod
    def from_bytes(cls, data: bytes) -> LayoutModel:
        """Read what training/layout wrote."""
        with np.load(io.BytesIO(data), allow_pickle=False) as stored:
            return cls(
                routes=tuple(stored["routes"].tolist()),
                feature=stored["feature"],
                threshold=stored["threshold"],
                left=stored["left"],
                right=stored["right"],
                value=stored["value"],
                roots=stored["roots"],
                depth=int(stored["depth"]),
                temperature=float(stored["temperature"]),
            )

    def probabilities(self, measures: NDArray[np.float32]) -> NDArray[np.float64]:
        """Probability of each route."""
        node = self.roots
        for _ in range(self.depth):
            lower = measures[self.feature[node]] <= self.threshold[node]
            node = np.where(lower, self.left[node], self.right[node])
        # Trees are stored round by round, one for each route.
        votes = self.value[node].reshape(-1, len(self.routes)).sum(axis=0, dtype=np.float64)
        odds = np.exp((votes - votes.max()) / self.temperature)
        return np.asarray(odds / odds.sum(), dtype=np.float64)


def guess(grey: NDArray[np.uint8], model: LayoutModel) -> LayoutGuess:
    """Return the likeliest route of a picture (height, width), 255 = white, and its probability."""
    probabilities = model.probabilities(features(grey))
    best = int(np.argmax(probabilities))
    return LayoutGuess(model.routes[best], float(probabilities[best]))
