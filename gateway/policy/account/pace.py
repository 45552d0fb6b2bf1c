"""How fast a route's answers come, in output tokens per second of all its engines together."""

from __future__ import annotations

import math
from dataclasses import dataclass

_WINDOW_S = 30.0
# Less time than this tells no rate.
_LEAST_S = 1.0


@dataclass(frozen=True, slots=True)
class Pace:
    """An exponentially decayed sum of about the last half minute; times are seconds on any one clock.

    Attributes:
        since: when counting began.
        tokens: of the answers that have ended, as of `at`.
        at: when they were last added to.
    """

    since: float
    tokens: float = 0.0
    at: float = -math.inf

    def after(self, tokens: float, now: float) -> Pace:
        """Return the sum with one more answer's tokens."""
        return Pace(self.since, self._kept(now) + tokens, now)

    def rate(self, now: float) -> float:
        """Return tokens per second; at first, of the time there has been."""
        seconds = _WINDOW_S * (1 - math.exp((self.since - now) / _WINDOW_S))
        return self._kept(now) / max(seconds, _LEAST_S)

    def _kept(self, now: float) -> float:
        return self.tokens * math.exp((self.at - now) / _WINDOW_S)
