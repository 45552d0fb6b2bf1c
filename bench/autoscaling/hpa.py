"""The HorizontalPodAutoscaler's arithmetic for an external metric with an AverageValue.

After kubernetes/pkg/controller/podautoscaler: the ratio of value and target within the tolerance changes
nothing, else ceil(value / target); stabilisation windows take the least (up) or the largest (down) of what
they saw; then the policies bound how fast it goes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

TOLERANCE = 0.1
SYNC_S = 15.0


class Behaviour(NamedTuple):
    """One direction: its stabilisation window, and pods that may come or go in a period."""

    window_s: float
    pods: int
    period_s: float


@dataclass
class Autoscaler:
    """One target's HPA."""

    target: float
    least: int
    most: int
    up: Behaviour
    down: Behaviour
    _seen: list[tuple[float, int]] = field(default_factory=list)
    _changes: list[tuple[float, int]] = field(default_factory=list)

    def replicas(self, now: float, current: int, value: float) -> int:
        """Return how many replicas there shall be.

        Args:
            now: seconds, ascending from call to call.
            current: the replicas that are wished for until now.
            value: the metric's.
        """
        ratio = value / (self.target * current)
        wanted = current if abs(ratio - 1) <= TOLERANCE else math.ceil(round(value / self.target, 9))
        wanted = min(max(wanted, self.least), self.most)
        if not self._seen:
            self._seen.append((now, current))
        longest = max(self.up.window_s, self.down.window_s)
        self._seen = [(at, count) for at, count in self._seen if at > now - longest]
        low = min([wanted, *(count for at, count in self._seen if at > now - self.up.window_s)])
        high = max([wanted, *(count for at, count in self._seen if at > now - self.down.window_s)])
        self._seen.append((now, wanted))
        stable = min(max(current, low), high)
        change = self._bounded(now, stable - current)
        if change:
            self._changes.append((now, change))
        return current + change

    def _bounded(self, now: float, change: int) -> int:
        behaviour = self.up if change > 0 else self.down
        sign = 1 if change > 0 else -1
        lately = sum(
            abs(by) for at, by in self._changes if at > now - behaviour.period_s and (by > 0) == (change > 0)
        )
        return sign * max(0, min(abs(change), behaviour.pods - lately))
