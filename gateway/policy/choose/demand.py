"""How many requests an engine is good for, and how much of that it has: what autoscaling goes by."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.policy.choose.gain import SpeedTable

# Without a profile an engine at a tenth of its useful load is taken to write a little more than half of what
# it can: the middle of three routes on two simulated GPUs (plain, at a quarter: .59 to 1; this says .79).
_HALFWAY = 0.1


def useful_load(table: SpeedTable, route: int) -> int:
    """Return the requests of a route up to which one engine of a pool is the right place for them.

    That is the crossover where another depth wins beyond it, else the load from which requests wait.
    """
    alone = [0] * route + [1] + [0] * (table.routes - route - 1)
    full, crossover = table.cap(alone), table.crossover(route)
    return min(full, crossover.load) if crossover.left else full


def counts(own: Sequence[int], load: int, mix: Sequence[float]) -> list[float]:
    """Return an engine's requests by route, those that others sent taken to be like ours.

    Args:
        own: our requests there.
        load: all requests there.
        mix: what stands in where none are ours; all 0 is an equal share of every route.
    """
    weights = own if any(own) else mix if any(mix) else [1] * len(own)
    total = sum(weights)
    return [load * weight / total for weight in weights]


def busy(table: SpeedTable, useful: Sequence[int], requests: Sequence[float]) -> float:
    """Return the tokens per second an engine writes at its load over those at its useful load.

    It is 1 at the useful load, and beyond that grows as the load does. Tokens per second say how much of an
    engine is used, requests do not: where steps take hardly longer for more requests, a quarter of the
    requests may already write most of the tokens, and an engine that is taken away by their number is missed
    at once.

    Args:
        table: the pool's.
        useful: the useful load by route; see useful_load.
        requests: requests there by route.
    """
    load = sum(requests)
    if not load:
        return 0.0
    full = load / sum(count / most for count, most in zip(requests, useful, strict=True))
    if load >= full:
        return load / full
    if all(table.profiled(route) for route, count in enumerate(requests) if count):
        return min(1.0, table.rate(requests) / table.rate([count * full / load for count in requests]))
    return load * (1 + _HALFWAY) / (load + _HALFWAY * full)
