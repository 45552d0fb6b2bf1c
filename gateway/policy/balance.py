"""Which of several engines takes the next request."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from gateway.model import EngineView


def least_loaded(engines: Iterable[EngineView], rng: Random) -> EngineView | None:
    """Return a healthy engine with the fewest requests, ties at random; None where none is up."""
    up = [view for view in engines if view.up]
    if not up:
        return None
    lowest = min(view.load for view in up)
    return rng.choice([view for view in up if view.load == lowest])
