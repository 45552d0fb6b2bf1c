"""The group `ocr-gateway-autoscaling` of deploy/prometheus/rules.yaml in Python, for one model.

tests/bench/test_autoscaling.py holds it against promtool, so that what is simulated here is what ships.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    # A replica's gauges: metric, then label values in alphabetical order of their labels, as exported.
    Page = Mapping[tuple[str, ...], float]

_OLD = 0.5
_REFUSED = 0.01


class Demand(NamedTuple):
    """One pool: engines that are up; see the rules for the others, whose names they have."""

    up: float
    pressure: float
    work: float
    engines: float


def demands(
    pages: Sequence[Page], refused: Mapping[str, float], before: Mapping[str, float]
) -> dict[str, Demand]:
    """Evaluate the rules once.

    Args:
        pages: the replicas' gauges, without the prefix `ocr_gateway_`.
        refused: by route, the share of its requests that got 503 in five minutes.
        before: by pool, the `engines` of the evaluation before.
    """
    useful = _largest(pages, "useful_load")  # (pool, route)
    up = _largest(pages, "engine_up")  # (engine, pool)
    busy = _largest(pages, "engine_busy_ratio")
    waiting: defaultdict[str, float] = defaultdict(float)
    age: defaultdict[str, float] = defaultdict(float)
    for page in pages:
        for name, *labels in page:
            if name == "waiting":
                (route,) = labels
                waiting[route] += page["waiting", route]
                old = page["oldest_wait_seconds", route] / page["queue_limit_seconds", route]
                age[route] = max(age[route], min(old, 1))
    room: defaultdict[str, float] = defaultdict(float)
    for (_, route), load in useful.items():
        room[route] += load
    found = {}
    for pool in {pool for pool, _ in useful}:
        routes = [route for other, route in useful if other == pool]
        ups = [value for (_, other), value in up.items() if other == pool]
        pressure = max(1 if refused.get(route, 0) > _REFUSED else age[route] for route in routes)
        work = sum(value for (_, other), value in busy.items() if other == pool)
        work += sum(waiting[route] / room[route] for route in routes)
        engines = work
        if pressure > _OLD:
            engines = max(engines, sum(ups) * (1 + pressure / 4))
        if pressure > _OLD or not sum(ups) or min(ups) == 0:
            engines = max(engines, before.get(pool, 0))
        found[pool] = Demand(sum(ups), pressure, work, engines)
    return found


def _largest(pages: Iterable[Page], metric: str) -> dict[tuple[str, str], float]:
    """By two labels, the largest of what the replicas read."""
    found: dict[tuple[str, str], float] = {}
    for page in pages:
        for (name, *labels), value in page.items():
            if name == metric:
                first, second = labels
                found[first, second] = max(value, found.get((first, second), value))
    return found
