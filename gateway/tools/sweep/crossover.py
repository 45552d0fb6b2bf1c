"""Which depth wins at which load, where that changes, and how certain both are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from gateway.policy.choose.gain import depth_at
from gateway.tools.sweep.curves import Noise, drawn, noise_of, points_of, scales, usable
from gateway.tools.sweep.sweep_values import DepthChange, DepthRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from gateway.tools.sweep.curves import Floats
    from gateway.tools.sweep.sweep_values import MeasuredPoint, SweptPool, Window

LAST = 4096
# A 95% interval, as percentiles of draws.
ENDS = (2.5, 97.5)
# A depth that is the best in fewer draws than this is certainly not the best.
_BEATEN = 0.025
# Loads at which curves are compared: all integers up to 40, then 2.5% apart.
_FINENESS = 1.025
# A pool measured at fewer loads than this has no curve; it is compared where all others have as few.
_FEWEST = 3


@dataclass(frozen=True)
class Comparison:
    """Curves of some pools at the same loads, and which depth each runs at.

    Attributes:
        pools: names.
        loads: where they are compared, ascending.
        measured: those of the loads at which pools were measured.
        depths: by pool and load.
        mean: logarithm of tokens per second, by pool and load.
        draws: what else it may be: by draw, pool and load.
        noise: of one window.
    """

    pools: tuple[str, ...]
    loads: Floats
    measured: tuple[int, ...]
    depths: NDArray[np.int64]
    mean: Floats
    draws: Floats
    noise: Noise

    def best(self, depth: int, curves: Floats) -> Floats:
        """The fastest pool's curve among those that run at a depth; minus infinity where none does."""
        fastest: Floats = np.where(self.depths == depth, curves, -np.inf).max(axis=-2)
        return fastest

    def chances(self) -> dict[int, Floats]:
        """By depth, the share of draws in which it is the best, by load."""
        fastest = np.take_along_axis(self.depths[None], self.draws.argmax(axis=1)[:, None], axis=1)[:, 0]
        return {int(depth): (fastest == depth).mean(axis=0) for depth in np.unique(self.depths)}

    @cached_property
    def contenders(self) -> dict[int, list[int]]:
        """By measured load, the depths that may be the best there: one where it wins beyond the noise."""
        chances = self.chances()
        at = np.searchsorted(self.loads, self.measured)
        return {
            load: [depth for depth, chance in chances.items() if chance[place] >= _BEATEN]
            for load, place in zip(self.measured, at.tolist(), strict=True)
        }

    def advantage(self, first: int, last: int, ahead: Floats, behind: Floats) -> Floats:
        """Mean over a range of the logarithm of how many times as fast one curve is, evenly over log load."""
        inside = (self.loads >= first) & (self.loads <= last)
        weight = self._weights()[inside]
        return np.asarray((ahead - behind)[..., inside] @ (weight / weight.sum()))

    def _weights(self) -> Floats:
        return np.gradient(np.log(self.loads)) if len(self.loads) > 1 else np.ones(1)

    def split(self, before: int, after: int, first: int, last: int, curves: Floats) -> Floats:
        """The load within a range from which another depth is the better one.

        That is where the most is won on both sides together, so that a curve's wiggles do not count.
        """
        inside = (self.loads >= first) & (self.loads <= last)
        ahead = self.best(before, curves)[..., inside], self.best(after, curves)[..., inside]
        with np.errstate(invalid="ignore"):
            gain = np.clip(np.nan_to_num(ahead[0] - ahead[1]), -1, 1) * self._weights()[inside]
        total = np.concatenate([np.zeros((*gain.shape[:-1], 1)), np.cumsum(gain, axis=-1)], axis=-1)
        places: Floats = np.append(self.loads[inside], last + 1.0)
        found: Floats = places[total.argmax(axis=-1)]
        return found


def compare(
    pools: Mapping[str, SweptPool],
    windows: Iterable[Window],
    routes: Sequence[str],
    *,
    seed: int = 0,
    draws: int = 1000,
) -> Comparison | None:
    """Compare pools over the loads at which all of them were measured for all of some routes.

    For several routes what counts is the geometric mean of their rates: each route's percent are worth the
    same. A pool with fewer loads than others, too few for a curve, is left out.

    Args:
        pools: those of the setting.
        windows: of any routes.
        routes: whose count.
        seed: of the draws.
        draws: how many.

    Returns:
        The comparison, or None where there is nothing to compare.
    """
    windows = tuple(windows)
    points = [_compared(points_of(windows, route)) for route in routes]
    names = sorted(set.intersection(*map(set, points))) if points else []
    curves = [route[name] for route in points for name in names]
    if not curves:
        return None
    first, last = max(curve[0].load for curve in curves), min(curve[-1].load for curve in curves)
    if first > last:
        return None
    measured = sorted({point.load for curve in curves for point in curve})
    inside = [load for load in measured if first <= load <= last]
    loads = np.union1d(_between(first, last), inside)
    everywhere = np.union1d(loads, measured)
    rng = np.random.default_rng(seed)
    mean, draws_of = np.zeros((len(names), len(loads))), np.zeros((draws, len(names), len(loads)))
    noises = [noise_of(usable(windows, route).values()) for route in routes]
    for route, noise in zip(points, noises, strict=True):
        scale = scales(noise, draws, rng)
        for place, name in enumerate(names):
            curve = drawn(route[name], pools[name], everywhere, scale, rng)
            mean[place] += curve.mean[np.isin(everywhere, loads)] / len(routes)
            draws_of[:, place] += curve.draws[:, np.isin(everywhere, loads)] / len(routes)
    return Comparison(
        pools=tuple(names),
        loads=loads,
        measured=tuple(inside),
        depths=np.array(
            [[depth_at(pools[name].ranges, int(at), pools[name].depth) for at in loads] for name in names]
        ),
        mean=mean,
        draws=draws_of,
        noise=min(noises, key=lambda noise: noise.freedom),
    )


def _compared(points: Mapping[str, Sequence[MeasuredPoint]]) -> Mapping[str, Sequence[MeasuredPoint]]:
    """Leave out pools that were measured at too few loads for a curve, unless all were."""
    return {name: found for name, found in points.items() if len(found) >= _FEWEST} or points


def _between(first: int, last: int) -> Floats:
    """Loads from one to another: all integers, or ever wider apart."""
    count = math.ceil(math.log(last / first) / math.log(_FINENESS)) + 2
    return np.unique(np.round(np.geomspace(first, last, count)))


@dataclass(frozen=True)
class DepthSchedule:
    """The fewest ranges in which no depth certainly loses, and the crossovers between them."""

    ranges: tuple[DepthRange, ...]
    changes: tuple[DepthChange, ...]

    @property
    def as_vllm(self) -> tuple[tuple[int, int, int], ...]:
        """As `num_speculative_tokens_per_batch_size`: from 1 on, ascending, without gaps."""
        return tuple((entry.first, entry.last, entry.depth) for entry in self.ranges)

    def near(self, load: int) -> bool:
        """Whether a crossover may lie at a load."""
        return any(change.low <= load <= change.high for change in self.changes)


def decide(comparison: Comparison) -> DepthSchedule:
    """Find the schedule: the fewest ranges in which no depth stands at a load where it certainly loses."""
    blocks = _blocks(comparison)
    spans = [_change(comparison, *pair) for pair in pairwise(blocks)]
    starts = [1, *(load for load, _, _ in spans)]
    ends = [*(start - 1 for start in starts[1:]), LAST]
    ranges = tuple(
        _range(comparison, first, last, block.depth)
        for first, last, block in zip(starts, ends, blocks, strict=True)
    )
    changes = tuple(
        DepthChange(load, low, high, before.pool, after.pool, comparison.noise.seen is not None)
        for (load, low, high), (before, after) in zip(spans, pairwise(ranges), strict=True)
    )
    return DepthSchedule(ranges, changes)


@dataclass(frozen=True)
class _Block:
    """Neighbouring measured loads that get the same depth."""

    depth: int
    loads: tuple[int, ...]


def _blocks(comparison: Comparison) -> list[_Block]:
    """The fewest blocks in which no depth certainly loses; of those the fastest."""
    ways: dict[int, tuple[int, float, tuple[int, ...]]] = {}
    for load, depths in comparison.contenders.items():
        place = int(np.searchsorted(comparison.loads, load))
        ways = {
            depth: min(
                (
                    (count + (depth != before), slow - _at(comparison, depth, place), (*path, depth))
                    for before, (count, slow, path) in ways.items()
                ),
                default=(0, -_at(comparison, depth, place), (depth,)),
            )
            for depth in depths
        }
    path = zip(min(ways.values())[2], comparison.measured, strict=True)
    return [
        _Block(depth, tuple(load for _, load in some)) for depth, some in groupby(path, key=itemgetter(0))
    ]


def _at(comparison: Comparison, depth: int, place: int) -> float:
    return float(comparison.best(depth, comparison.mean)[place])


def _change(comparison: Comparison, before: _Block, after: _Block) -> tuple[int, int, int]:
    """The load at which one block ends and the next begins, with its interval."""
    may = comparison.contenders
    loads = [*before.loads, *after.loads]
    lost = max((load for load in loads if after.depth not in may[load]), default=loads[0])
    won = min((load for load in loads if load > lost and before.depth not in may[load]), default=loads[-1])
    load = int(comparison.split(before.depth, after.depth, lost + 1, won - 1, comparison.mean))
    drawn = comparison.split(before.depth, after.depth, loads[0], loads[-1], comparison.draws)
    low, high = np.percentile(drawn, ENDS, method="nearest")
    return load, min(load, int(low)), max(load, int(high))


def _range(comparison: Comparison, first: int, last: int, depth: int) -> DepthRange:
    """A range with the pool that is the fastest at its depth, and by how much."""
    low, high = max(first, int(comparison.loads[0])), min(last, int(comparison.loads[-1]))
    inside = (comparison.loads >= low) & (comparison.loads <= high)
    nothing = np.zeros_like(comparison.loads)
    worth = comparison.advantage(low, high, comparison.mean, nothing)
    runs = (comparison.depths[:, inside] == depth).mean(axis=1)
    mine = max(range(len(comparison.pools)), key=lambda pool: (runs[pool] > 0, worth[pool]))
    others = [pool for pool in range(len(comparison.pools)) if runs[pool] < 1 and pool != mine]
    if not others:
        return DepthRange(first, last, comparison.pools[mine], depth, "", 0.0, 0.0, 0.0)
    other = max(others, key=lambda pool: worth[pool])
    drawn = comparison.advantage(low, high, comparison.draws[:, mine], comparison.draws[:, other])
    ends = np.expm1(np.percentile(drawn, ENDS))
    margin = float(np.expm1(worth[mine] - worth[other]))
    return DepthRange(
        first, last, comparison.pools[mine], depth, comparison.pools[other], margin, *map(float, ends)
    )
