"""What an answer says of speculation, how sure that is, and which figures to believe.

Sums are kept, never means: the acceptance length of many requests is 1 + accepted / drafts of them all, and
without a draft there is none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum, auto
from itertools import zip_longest
from typing import TYPE_CHECKING

from gateway.model import Speculation

if TYPE_CHECKING:
    from collections.abc import Collection

# By so much may streams claim more accepted tokens than their engine counted before too many chunks have been
# merged. 1% more accepted tokens and as many fewer steps make an acceptance length of 2.75 into 2.79.
_SLACK = 0.01
# About how long /status looks back.
_RECENT_S = 300.0


class Source(StrEnum):
    """Where a figure comes from, best first.

    Attributes:
        REQUEST: the engine told it in the answer: exact.
        STREAM: estimated from a stream's chunks.
        ENGINE: the difference of the engine's own counters while it served one route only.
    """

    REQUEST = auto()
    STREAM = auto()
    ENGINE = auto()


@dataclass(frozen=True, slots=True)
class Sample:
    """Speculation of one request, or with Source.ENGINE of one window, and where that is known from."""

    source: Source
    speculation: Speculation


def of_answer(
    told: Speculation | None, *, completion_tokens: int, steps: int, depths: Collection[int]
) -> Sample | None:
    """Return the best figure an answer gives; None where it gives none.

    Args:
        told: what the engine said of it.
        completion_tokens: the answer's length.
        steps: chunks of its stream that carried tokens; 0 where it was not streamed.
        depths: every depth its engine may have run it at.
    """
    if told is not None:
        return Sample(Source.REQUEST, told) if told.drafts else None
    estimate = of_stream(completion_tokens, steps, depths)
    return Sample(Source.STREAM, estimate) if estimate else None


def of_stream(completion_tokens: int, steps: int, depths: Collection[int]) -> Speculation | None:
    """Estimate speculation from a stream: (completion tokens - 1) / (chunks with tokens - 1) tokens a step.

    The first chunk is the prompt's own step and has no drafts. The estimate is low on short answers, since
    tokens accepted past the end are never delivered, and high where chunks were merged. None where there was
    but one step, where a step need not draft, and where the mean is more than the deepest draft can give.
    """
    drafts, tokens = steps - 1, completion_tokens - 1
    if drafts < 1 or 0 in depths or not drafts <= tokens <= drafts * (max(depths, default=0) + 1):
        return None
    return Speculation(drafts, tokens - drafts)


def total(first: Speculation | None, second: Speculation) -> Speculation:
    """Add up; what one of them does not know the sum does not, but for positions one has more of."""
    return _combined(first, second) if first else second


def gain(before: Speculation, after: Speculation) -> Speculation | None:
    """Return what an engine's counters grew by; None where one fell: it has been restarted."""
    grown = _combined(after, before, sign=-1)
    counts = (grown.drafts, grown.accepted, grown.draft_tokens or 0.0, *grown.accepted_per_position)
    return grown if min(counts) >= 0 else None


def believable(claimed: float, counted: float) -> bool:
    """Whether streams can have had so many tokens accepted, of those their engine counted at the same time.

    The engine counts at least what streams deliver, whoever else uses it; where streams claim more, one chunk
    carried the tokens of several steps (vLLM's --stream-interval, a slow reader, a parser that holds back).
    """
    return claimed <= counted * (1 + _SLACK)


@dataclass(frozen=True, slots=True)
class Recent:
    """Exponentially decayed sums of about the last five minutes; `at` is when they were last added to."""

    sums: Speculation | None = None
    at: float = -math.inf

    def after(self, more: Speculation, now: float) -> Recent:
        """Return the sums with one more sample."""
        return Recent(_combined(self.sums, more, keep=self._kept(now)) if self.sums else more, now)

    def drafts(self, now: float) -> float:
        """Return on how many drafts the figures still rest."""
        return self.sums.drafts * self._kept(now) if self.sums else 0.0

    def _kept(self, now: float) -> float:
        return math.exp(-max(0.0, now - self.at) / _RECENT_S)


def _combined(first: Speculation, second: Speculation, *, keep: float = 1, sign: int = 1) -> Speculation:
    """`keep` times the first and `sign` times the second."""
    known = first.draft_tokens is not None and second.draft_tokens is not None
    return Speculation(
        keep * first.drafts + sign * second.drafts,
        keep * first.accepted + sign * second.accepted,
        keep * (first.draft_tokens or 0) + sign * (second.draft_tokens or 0) if known else None,
        tuple(
            [
                keep * one + sign * other
                for one, other in zip_longest(
                    first.accepted_per_position, second.accepted_per_position, fillvalue=0
                )
            ]
        ),
    )
