"""The trend of a series of measurements: the Theil-Sen slope, with Sen's confidence interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

# Of the standard normal distribution, for 95%.
_QUANTILE = 1.96


@dataclass(frozen=True, slots=True)
class Slope:
    """Growth per unit of time: the median of all pairs' slopes, and its 95% confidence interval."""

    median: float
    low: float
    high: float


def slope(times: Sequence[float], values: Sequence[float]) -> Slope:
    """Return the slope of a series, on which outliers have little influence.

    The method is P. K. Sen's ("Estimates of the regression coefficient based on Kendall's tau", 1968). It
    assumes independent measurements: for an autocorrelated series the interval is too narrow.

    Args:
        times: ascending, no two equal, at least two.
        values: as many.

    Raises:
        ValueError: fewer than two, or not as many values as times.
    """
    if len(times) < 2:
        raise ValueError(f"{len(times)} measurements have no slope")
    count = len(times)
    first, second = np.triu_indices(count, 1)
    at, value = np.asarray(times, float), np.asarray(values, float)
    slopes = np.sort((value[second] - value[first]) / (at[second] - at[first]))
    spread = _QUANTILE * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low = max(0, math.floor((len(slopes) - spread) / 2))
    high = min(len(slopes) - 1, math.ceil((len(slopes) + spread) / 2))
    return Slope(float(np.median(slopes)), float(slopes[low]), float(slopes[high]))
