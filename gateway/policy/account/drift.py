"""An engine's tokens per second as they are, against what its profile promises for the load it had."""

from __future__ import annotations

import math
from dataclasses import dataclass

_WINDOW_S = 30.0
# What a ratio must rest on before it is called a drift: most of a window, and some answers.
_ENOUGH_S, _ENOUGH_TOKENS = 25.0, 1000.0
_LOW, _HIGH = 0.67, 1.5


@dataclass(frozen=True, slots=True)
class Drift:
    """Exponentially decayed sums of about the last half minute.

    Attributes:
        seconds: time covered.
        tokens: tokens written in it.
        promised: tokens the profile promised for it.
        judged: the part of `tokens` written while there was a promise.
    """

    seconds: float = 0.0
    tokens: float = 0.0
    promised: float = 0.0
    judged: float = 0.0

    def after(self, tokens: float, seconds: float, promised_rate: float | None) -> Drift:
        """Return the sums after one more stretch of time.

        Args:
            tokens: what the engine's counter grew by.
            seconds: the time that took; above 0.
            promised_rate: tokens per second by the profile at the load it had; None where it has none.
        """
        keep = math.exp(-seconds / _WINDOW_S)
        known = promised_rate is not None
        return Drift(
            self.seconds * keep + seconds,
            self.tokens * keep + tokens,
            self.promised * keep + (promised_rate or 0.0) * seconds,
            self.judged * keep + (tokens if known else 0.0),
        )

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def ratio(self) -> float | None:
        """Live against profile; None while too little was promised to tell."""
        return self.judged / self.promised if self.promised >= 1 else None

    @property
    def off(self) -> bool:
        """Whether the profile no longer describes the engine."""
        if self.seconds < _ENOUGH_S or self.promised < _ENOUGH_TOKENS:
            return False
        return not _LOW <= self.judged / self.promised <= _HIGH
