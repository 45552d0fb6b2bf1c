"""What an answer says of speculation, how sure that is, and which figures to believe.

Sums are kept, never means: the acceptance length of many requests is 1 + accepted / drafts of them all, and
without a draft there is none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum, auto
from functools import reduce
from itertools import zip_longest
from typing import TYPE_CHECKING

from gateway.model import Speculation, SpeculationFault

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gateway.model import ToldSpeculation

# An estimate is low by what the end of an answer threw away, half a step's tokens on average: by less than 5%
# from so many tokens on, for each that a step may write.
_TOKENS_PER_STEP_TOKEN = 10
# By so much may chunks differ from drafts and be steps: 1 merged of 100 makes a length of 2.75 into 2.78.
_TOLERANCE = 0.01
# So many drafts are needed to tell, and so many for each step by which the two counts may be apart.
_ENOUGH_DRAFTS = 8
_DRAFTS_PER_STEP_APART = 40
_NOTHING = Speculation(0.0, 0.0)
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
    """Speculation of one request, or with Source.ENGINE of some time, and where that is known from.

    Attributes:
        length: the acceptance length, in tokens per step; None without a draft.
    """

    source: Source
    speculation: Speculation
    length: float | None = field(init=False)

    def __post_init__(self) -> None:
        drafts = self.speculation.drafts
        object.__setattr__(self, "length", 1 + self.speculation.accepted / drafts if drafts else None)


def of_answer(told: ToldSpeculation, *, completion_tokens: int, steps: int, depth: int) -> Sample | None:
    """Return the best figure an answer gives; None where it gives none.

    Args:
        told: what the engine said of it; what is no figure is as good as nothing.
        completion_tokens: the answer's length.
        steps: chunks of its stream that carried tokens; 0 where it was not streamed.
        depth: its engine's; 0 where a step need not draft.
    """
    if isinstance(told, Speculation):
        return Sample(Source.REQUEST, told) if 0 < told.drafts <= completion_tokens else None
    estimate = of_stream(completion_tokens, steps, depth)
    return Sample(Source.STREAM, estimate) if estimate else None


def fault_of(told: ToldSpeculation, completion_tokens: int) -> SpeculationFault | None:
    """Return why what an answer told of its speculation is no figure; None where it is one, or told nothing.

    Args:
        told: what the engine said of it.
        completion_tokens: the answer's length; 0 where that is not known.
    """
    if isinstance(told, Speculation):
        return SpeculationFault.DRAFTS_OVER_TOKENS if 0 < completion_tokens < told.drafts else None
    return told


def of_stream(completion_tokens: int, steps: int, depth: int) -> Speculation | None:
    """Estimate speculation from a stream: (completion tokens - 1) / (chunks with tokens - 1) tokens a step.

    The first chunk is the prompt's own step and has no drafts. The estimate is low on short answers, since
    tokens accepted past the end are never delivered, and high where chunks were merged. None for an answer of
    few tokens, where a step need not draft, and where the mean is more than the deepest draft can give. (Few
    steps are no reason: it would pick the answers of which little was accepted.)
    """
    drafts, tokens = steps - 1, completion_tokens - 1
    few = completion_tokens < _TOKENS_PER_STEP_TOKEN * (depth + 1)
    if few or not depth or not 1 <= drafts <= tokens or are_merged(completion_tokens, steps, depth):
        return None
    return Speculation(drafts, tokens - drafts)


def are_merged(completion_tokens: int, steps: int, depth: int) -> bool:
    """Whether a stream's chunks carried more tokens than its steps can have written; see of_answer."""
    return depth > 0 and steps > 1 and completion_tokens - 1 > (steps - 1) * (depth + 1)


def is_step_by_step(chunks: int, drafts: float, *, apart: int) -> bool | None:
    """Whether an engine's streams carried one step a chunk; None where that cannot be told.

    Chunks are fewer where they carry several steps: vLLM's --stream-interval, an API server that lags behind,
    a parser that holds back. More of them than drafts tell nothing: they are ahead, or steps have no drafts.

    Args:
        chunks: of its streams, but the first of each.
        drafts: what its counter grew by in the same time, in which it did nothing else.
        apart: by how many steps the two counts may be apart, since they are not taken at the same moment.
    """
    if drafts < max(_ENOUGH_DRAFTS, _DRAFTS_PER_STEP_APART * apart):
        return None
    allowed = apart + _TOLERANCE * drafts
    if chunks > drafts + allowed:
        return None
    return chunks >= drafts - allowed


def total(first: Speculation | None, second: Speculation) -> Speculation:
    """Add up; what one of them does not know the sum does not, but for positions one has more of."""
    return _combined(first, second) if first else second


def added(parts: Iterable[Speculation | None]) -> Speculation | None:
    """Add up all that has drafts; None where nothing has."""
    return reduce(total, (part for part in parts if part and part.drafts), None)


def difference(first: Speculation, second: Speculation) -> Speculation:
    """Subtract the second from the first."""
    return _combined(first, second, sign=-1)


def gain(before: Mapping[str, Speculation], after: Mapping[str, Speculation]) -> Speculation | None:
    """Return what an engine's counters grew by, all its data-parallel ranks together.

    None where that is not known: there are no ranks, or others than before, one of whose counters fell, so
    that it has been started anew, or figures that do not go together.
    """
    if not before or before.keys() != after.keys():
        return None
    sums: Speculation | None = None
    for rank, now in after.items():
        grown = difference(now, before[rank])
        counts = (grown.drafts, grown.accepted, grown.draft_tokens or 0, *grown.accepted_per_position)
        if min(counts) < 0 or not grown.adds_up:
            return None
        sums = total(sums, grown)
    return sums


@dataclass(frozen=True, slots=True)
class Recent:
    """Exponentially decayed sums of about the last five minutes; `at` is when they were last added to."""

    sums: Speculation = _NOTHING
    at: float = -math.inf

    def after(self, more: Speculation, now: float) -> Recent:
        """Return the sums with one more sample."""
        return Recent(_combined(self.sums, more, keep=self._kept(now)) if self.sums.drafts else more, now)

    def drafts(self, now: float) -> float:
        """Return on how many drafts the figures still rest."""
        return self.sums.drafts * self._kept(now)

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
