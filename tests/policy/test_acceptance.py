"""Which figures an answer gives, how they add up, and when an estimate is not to be believed."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model import Speculation
from gateway.policy.acceptance import Recent, Sample, Source, believable, gain, of_answer, of_stream, total

# A recorded answer of 301 tokens at depth 3: its own figures, and what its 111 chunks make of them.
TOLD = Speculation(110, 192, 330, (90, 64, 38))

counts = st.integers(0, 2**40)
speculations = st.builds(
    Speculation, counts, counts, counts, st.lists(counts, min_size=3, max_size=3).map(tuple)
)


def test_what_the_engine_told_is_better_than_any_estimate() -> None:
    assert of_answer(TOLD, completion_tokens=301, steps=111, depths={3}) == Sample(Source.REQUEST, TOLD)


def test_a_stream_is_estimated_where_nothing_is_told() -> None:
    sample = of_answer(None, completion_tokens=301, steps=111, depths={3})
    assert sample == Sample(Source.STREAM, Speculation(110, 190))
    assert sample.speculation.length == pytest.approx(TOLD.length, rel=0.03)


def test_no_drafts_are_no_data() -> None:
    assert of_answer(Speculation(0, 0, 0, (0,)), completion_tokens=1, steps=1, depths={1}) is None
    assert Speculation(0, 0).length is None


@pytest.mark.parametrize(
    ("completion_tokens", "steps", "depths", "why"),
    [
        (301, 0, {3}, "it was not streamed"),
        (1, 1, {3}, "the only step is the prompt's"),
        (301, 111, {0}, "the pool does not draft"),
        (301, 111, {3, 0}, "the pool need not draft at each step"),
        (301, 111, (), "the pool is no more"),
        (301, 51, {3}, "six tokens a step at depth 3: chunks were merged"),
        (301, 111, {1}, "2.7 tokens a step at depth 1"),
        (50, 111, {3}, "fewer tokens than steps"),
        (0, 5, {3}, "no usage"),
    ],
)
def test_no_estimate(completion_tokens: int, steps: int, depths: set[int], why: str) -> None:
    assert of_stream(completion_tokens, steps, depths) is None, why


@given(st.lists(st.integers(1, 4), min_size=1, max_size=200), st.integers(0, 3))
def test_an_estimate_is_the_truth_less_what_the_end_threw_away(steps: list[int], thrown: int) -> None:
    """Each step writes its accepted tokens and one more; the last loses some of its own."""
    delivered = [*steps[:-1], max(1, steps[-1] - thrown)]
    truth = Speculation(len(steps), sum(steps) - len(steps))
    estimate = of_stream(1 + sum(delivered), 1 + len(steps), {3})
    assert estimate is not None
    assert estimate.drafts == truth.drafts
    assert truth.accepted - thrown <= estimate.accepted <= truth.accepted


@given(st.lists(speculations, min_size=1, max_size=8))
def test_sums_weigh_each_draft_alike(parts: list[Speculation]) -> None:
    summed: Speculation | None = None
    for part in parts:
        summed = total(summed, part)
    assert summed is not None
    assert summed.drafts == sum(part.drafts for part in parts)
    assert summed.accepted_per_position == tuple(
        sum(position) for position in zip(*(part.accepted_per_position for part in parts), strict=True)
    )
    if summed.drafts:
        assert summed.length == 1 + sum(part.accepted for part in parts) / sum(part.drafts for part in parts)


@given(speculations, speculations)
def test_a_gain_is_what_was_added(before: Speculation, more: Speculation) -> None:
    assert gain(before, total(before, more)) == more


@given(st.lists(speculations, min_size=2, max_size=2))
def test_counters_that_fell_tell_nothing(readings: list[Speculation]) -> None:
    before, after = readings
    pairs = [(before.drafts, after.drafts), (before.accepted, after.accepted)]
    pairs += [(before.draft_tokens or 0, after.draft_tokens or 0)]
    pairs += zip(before.accepted_per_position, after.accepted_per_position, strict=True)
    assert (gain(before, after) is None) == any(late < early for early, late in pairs)


def test_another_depth_is_another_engine() -> None:
    deep, shallow = Speculation(10, 20, 30, (9, 7, 4)), Speculation(50, 45, 50, (45,))
    assert gain(deep, shallow) is None
    assert total(shallow, deep).accepted_per_position == (54, 7, 4)


@pytest.mark.parametrize("interval", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("rates", [(0.82, 0.58, 0.35), (0.5, 0.2, 0.1), (0.02, 0.0, 0.0), (0.99, 0.98, 0.97)])
def test_what_merged_chunks_claim_is_right_or_not_believed(interval: int, rates: tuple[float, ...]) -> None:
    """vLLM's --stream-interval: a chunk goes out once so many tokens have gathered, the first at once."""
    steps = list(itertools.islice(_steps(rates), 120))
    truth = Speculation(len(steps), sum(steps) - len(steps))
    chunks, held = 1, 0
    for place, tokens in enumerate(steps, 1):
        held += tokens
        if held >= interval or place == len(steps):
            chunks, held = chunks + 1, 0
    estimate = of_stream(1 + sum(steps), chunks, {3})
    believed = estimate is not None and believable(estimate.accepted, truth.accepted)
    assert believed or chunks <= len(steps)
    assert not believed or estimate.length == pytest.approx(truth.length, rel=0.03)


def _steps(rates: tuple[float, ...]) -> itertools.chain[int]:
    """Tokens of step after step, accepted by position as often as the rates say, evenly spread."""
    return itertools.chain.from_iterable(
        [1 + sum(math.modf((place + 0.5) * 0.6180339887)[0] < rate for rate in rates)]
        for place in range(1000)
    )


def test_recent_figures_fade() -> None:
    recent = Recent().after(Speculation(100, 100, 300, (60, 30, 10)), 0.0)
    assert recent.drafts(0.0) == 100
    assert recent.drafts(300.0) == pytest.approx(100 / math.e)
    recent = recent.after(Speculation(100, 300, 300, (100, 100, 100)), 3000.0)
    assert recent.sums is not None
    assert recent.sums.length == pytest.approx(4.0, abs=0.001)
    assert recent.sums.accepted_per_position == pytest.approx((100, 100, 100), abs=0.01)
    assert Recent().drafts(5.0) == 0
    assert Recent().after(Speculation(1, 1), 0.0).after(Speculation(1, 1), 1.0).sums is not None
