"""Loads: how many requests of each route were in the system for how long, from a CSV file."""

from __future__ import annotations

import csv
import itertools
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from gateway.errors import ConfigError
from gateway.policy.choose.fleet_model import LoadHistogram

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_WEIGHTS = ("weight", "seconds", "share")
_TIME = "time"
# A file's size, and a cell's: more requests than any fleet has.
_MOST_BYTES = 256 << 20
_MOST_REQUESTS = 1e6
# Different populations that a search looks at, and how finely they are told apart, ever more coarsely.
_MOST_BINS = 64
_GRIDS = (1.02, 1.05, 1.1, 1.2, 1.35, 1.5, 2.0, 3.0)
# Where many routes make too many populations still: how finely their sums are, which always are few enough.
_SUMS = 1.5


@dataclass(frozen=True, slots=True)
class History:
    """What was in the system.

    Attributes:
        routes: names.
        rows: how long, in seconds or any other unit, and requests by route, in flight and waiting.
        source: where it is from, in words.
    """

    routes: tuple[str, ...]
    rows: Sequence[tuple[float, tuple[float, ...]]]
    source: str


def read_csv(path: Path) -> History:
    """Read a CSV file: a header, then a row for each population.

    The first column is `seconds`, `weight` or `share`, or it is `time` (ISO 8601, or seconds since 1970):
    then a row lasts until the next one, and the last one as long as the one before it. Every other column is
    a route.

    Raises:
        ConfigError: it cannot be read; one line `file:line: ...` for each fault.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigError([f"{path}: larger than {_MOST_BYTES >> 20} MiB; sum it up by populations"])
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [(number, line) for number, line in enumerate(csv.reader(file), start=1) if any(line)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError([f"{path}: {error}"]) from error
    if len(lines) < 2:
        raise ConfigError([f"{path}: a header and at least one row are needed"])
    (number, header), *body = lines
    kind, *routes = (name.strip() for name in header)
    if kind not in (*_WEIGHTS, _TIME):
        wanted = ", ".join((*_WEIGHTS, _TIME))
        raise ConfigError([f"{path}:{number}: the first column is one of {wanted}, not {kind!r}"])
    if not routes or not all(routes) or len(set(routes)) < len(routes):
        raise ConfigError([f"{path}:{number}: after {kind}, a column for each route, each once"])
    problems: list[str] = []
    rows = [row for row in (_row(path, *line, kind, routes, problems) for line in body) if row]
    if kind == _TIME and not problems:
        rows = list(_lasting(path, rows, [number for number, _ in body], problems))
    if problems:
        raise ConfigError(problems[:20])
    return History(tuple(routes), rows, path.name)


def _row(
    path: Path, number: int, cells: list[str], kind: str, routes: Sequence[str], problems: list[str]
) -> tuple[float, tuple[float, ...]] | None:
    if len(cells) != 1 + len(routes):
        problems.append(f"{path}:{number}: {len(cells)} cells, where the header has {1 + len(routes)}")
        return None
    values = []
    for name, cell in zip((kind, *routes), cells, strict=True):
        try:
            value = _seconds(cell) if name == _TIME == kind else float(cell)
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf or (name != kind and value > _MOST_REQUESTS):
            problems.append(f"{path}:{number}: {name}: must be a number of at least 0, not {cell!r}")
        values.append(value)
    return values[0], tuple(values[1:])


def _seconds(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        moment = datetime.fromisoformat(cell)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _lasting(
    path: Path, rows: Sequence[tuple[float, tuple[float, ...]]], lines: Sequence[int], problems: list[str]
) -> Iterator[tuple[float, tuple[float, ...]]]:
    """Turn rows that begin at a time into rows that last a while."""
    last = 1.0
    for line, ((start, _), (end, _)) in zip(lines[1:], itertools.pairwise(rows), strict=True):
        if end <= start:
            problems.append(f"{path}:{line}: time: must be later than in the row before")
    for (start, counts), following in itertools.zip_longest(rows, rows[1:]):
        last = following[0] - start if following else last
        yield last, counts


def binned(history: History, routes: Sequence[str]) -> LoadHistogram:
    """Return a history as a load of few populations, by routes in the order given.

    Populations that differ little are one, which has their mean; those with the most requests, of all routes
    and of each, stand for themselves, so that no peak is lost.

    Raises:
        ConfigError: it has a route that is not among those given, or never a request.
    """
    unknown = [
        route
        for place, route in enumerate(history.routes)
        if route not in routes and any(counts[place] for _, counts in history.rows)
    ]
    if unknown:
        raise ConfigError(
            [
                f"{history.source}: there is no profile of {', '.join(unknown)}; "
                f"the profiles are of {', '.join(routes)}"
            ]
        )
    weights = np.array([weight for weight, _ in history.rows], dtype=float)
    counts = np.zeros((len(history.rows), len(routes)))
    for place, route in enumerate(history.routes):
        if route in routes:
            counts[:, routes.index(route)] = [row[place] for _, row in history.rows]
    kept = weights > 0
    weights, counts = weights[kept], counts[kept]
    if not counts.any():
        raise ConfigError([f"{history.source}: there was never a request in the system"])
    totals = counts.sum(axis=1)
    peaks = {int(totals.argmax()), *counts.argmax(axis=0).tolist()}
    for told, grid in (*((counts, grid) for grid in _GRIDS), (totals[:, None], _SUMS)):
        marks = np.zeros(len(counts))
        marks[sorted(peaks)] = range(1, len(peaks) + 1)
        keys = np.column_stack([np.round(np.log1p(told) / np.log(grid)), marks])
        _, bins = np.unique(keys, axis=0, return_inverse=True)
        if bins.max() < _MOST_BINS:
            break
    bins = bins.reshape(-1)
    sums = np.bincount(bins, weights)
    means = np.stack([np.bincount(bins, weights * column) / sums for column in counts.T], axis=1)
    return LoadHistogram(sums / sums.sum(), means)
