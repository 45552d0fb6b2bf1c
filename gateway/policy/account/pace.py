"""How long a route's answers are, and how fast they come: output tokens of all its engines together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

_WINDOW_S = 30.0
# Less time than this tells no rate.
_LEAST_S = 1.0
# Expected output of a route before it has answered (tokens), and how much each later answer counts.
_FIRST_GUESS = 256.0
_WEIGHT = 0.05
# More than one answer can hold; an engine that claims more must not cost its route all its turns.
_MOST_TOKENS = 1_000_000


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


class MeanTokens(NamedTuple):
    """Running mean of a route's output length; a guess, which counts as one answer, until some are known."""

    tokens: float = _FIRST_GUESS
    answers: int = 1

    def after(self, tokens: int) -> MeanTokens:
        """Return the mean after one more answer; the latest ones, about twenty, count most."""
        answers = self.answers + 1
        weight = max(1 / answers, _WEIGHT)
        length = min(max(tokens, 1), _MOST_TOKENS)
        return MeanTokens(self.tokens + weight * (length - self.tokens), answers)
