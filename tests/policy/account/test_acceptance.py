"""Which figures an answer gives, how they add up, and when an estimate is not to be believed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model import Speculation, SpeculationFault
from gateway.policy.account.acceptance import (
    Recent,
    Sample,
    Source,
    added,
    are_merged,
    fault_of,
    gain,
    is_step_by_step,
    of_answer,
    of_stream,
    total,
)

# A recorded answer of 301 tokens at depth 3: its own figures, and what its 111 chunks make of them.
TOLD = Speculation(110, 192, 330, (90, 64, 38))

counts = st.integers(0, 2**40)
speculations = st.builds(
    Speculation, counts, counts, counts, st.lists(counts, min_size=3, max_size=3).map(tuple)
)


def test_what_the_engine_told_is_better_than_any_estimate() -> None:
    assert of_answer(TOLD, completion_tokens=301, steps=111, depth=3) == Sample(Source.REQUEST, TOLD)


def test_a_stream_is_estimated_where_nothing_is_told() -> None:
    sample = of_answer(None, completion_tokens=301, steps=111, depth=3)
    assert sample == Sample(Source.STREAM, Speculation(110, 190))
    assert sample.speculation.length == pytest.approx(TOLD.length, rel=0.03)


def test_no_drafts_are_no_data() -> None:
    assert of_answer(Speculation(0, 0, 0, (0,)), completion_tokens=1, steps=1, depth=1) is None
    assert Speculation(0, 0).length is None


@pytest.mark.parametrize(
    ("completion_tokens", "steps", "depth", "why"),
    [
        (301, 0, 3, "it was not streamed"),
        (1, 1, 3, "the only step is the prompt's"),
        (301, 111, 0, "its steps need not draft"),
        (301, 51, 3, "six tokens a step at depth 3: chunks were merged"),
        (301, 111, 1, "2.7 tokens a step at depth 1"),
        (50, 111, 3, "fewer tokens than steps"),
        (0, 5, 3, "no usage"),
        (39, 30, 3, "too short: what its end threw away would show"),
    ],
)
def test_no_estimate(completion_tokens: int, steps: int, depth: int, why: str) -> None:
    assert of_stream(completion_tokens, steps, depth) is None, why


@given(st.lists(st.integers(1, 4), min_size=10, max_size=200), st.integers(0, 3))
def test_an_estimate_is_the_truth_less_what_the_end_threw_away(steps: list[int], thrown: int) -> None:
    """Each step writes its accepted tokens and one more; the last loses some of its own."""
    delivered = [*steps[:-1], max(1, steps[-1] - thrown)]
    truth = Speculation(len(steps), sum(steps) - len(steps))
    estimate = of_stream(1 + sum(delivered), 1 + len(steps), 3)
    assert (estimate is None) == (sum(delivered) < 39)
    if estimate:
        assert estimate.drafts == truth.drafts
        assert truth.accepted - thrown <= estimate.accepted <= truth.accepted


@given(st.integers(1, 7), st.integers(2, 400), st.data())
def test_the_end_throws_less_than_a_tenth_of_the_answer_away_and_half_of_that_on_average(
    depth: int, tokens: int, data: st.DataObject
) -> None:
    thrown = data.draw(st.integers(0, depth))
    if (estimate := of_stream(tokens, data.draw(st.integers(2, 400)), depth)) is not None:
        truth = 1 + (estimate.accepted + thrown) / estimate.drafts
        assert estimate.length is not None
        assert estimate.length >= 0.9 * truth


def test_what_an_engine_tells_of_more_drafts_than_tokens_is_not_taken() -> None:
    lie = Speculation(2**51, 2**51, 2**52, (2**51,))
    assert of_answer(lie, completion_tokens=301, steps=111, depth=3) is None


def test_what_is_no_figure_is_as_good_as_nothing() -> None:
    for fault in SpeculationFault:
        assert of_answer(fault, completion_tokens=301, steps=111, depth=3) == of_answer(
            None, completion_tokens=301, steps=111, depth=3
        )


def test_it_is_told_why_an_answers_figures_are_none() -> None:
    assert fault_of(SpeculationFault.FORMAT, 301) is SpeculationFault.FORMAT
    assert fault_of(TOLD, 109) is SpeculationFault.DRAFTS_OVER_TOKENS
    assert fault_of(TOLD, 110) is None
    assert fault_of(TOLD, 0) is None  # nobody knows the length
    assert fault_of(None, 301) is None


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


steady = st.builds(
    lambda positions: Speculation(
        sum(positions), sum(positions), 3 * sum(positions), tuple(sorted(positions, reverse=True))
    ),
    st.lists(st.integers(0, 2**30), min_size=3, max_size=3),
)


@given(st.dictionaries(st.text(max_size=2), st.tuples(steady, steady), min_size=1, max_size=4))
def test_a_gain_is_what_all_ranks_added(ranks: dict[str, tuple[Speculation, Speculation]]) -> None:
    before = {rank: start for rank, (start, _) in ranks.items()}
    after = {rank: total(start, more) for rank, (start, more) in ranks.items()}
    expected: Speculation | None = None
    for _, more in ranks.values():
        expected = total(expected, more)
    assert gain(before, after) == expected


@given(st.lists(steady, min_size=2, max_size=2))
def test_counters_that_fell_tell_nothing(readings: list[Speculation]) -> None:
    before, after = readings
    pairs = [
        (before.drafts, after.drafts),
        *zip(before.accepted_per_position, after.accepted_per_position, strict=True),
    ]
    fell = any(late < early for early, late in pairs)
    assert (gain({"0": before}, {"0": after}) is None) >= fell
    other = Speculation(1, 1, 3, (1, 0, 0))
    assert (
        gain({"0": before, "1": other}, {"0": after, "1": total(other, total(other, before))}) is None
    ) >= fell


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {}),
        ({}, {"0": TOLD}),
        ({"0": TOLD}, {}),
        ({"0": TOLD}, {"1": total(TOLD, TOLD)}),
        ({"0": TOLD}, {"0": TOLD, "1": TOLD}),
        ({"0": TOLD}, {"0": Speculation(111, 200, 331, (98, 64, 38))}),
        ({"0": TOLD}, {"0": Speculation(111, 192, 334, (90, 64, 38))}),
    ],
)
def test_other_ranks_and_figures_that_do_not_go_together_tell_nothing(
    before: dict[str, Speculation], after: dict[str, Speculation]
) -> None:
    assert gain(before, after) is None


def test_another_depth_is_another_engine() -> None:
    deep, shallow = Speculation(10, 20, 30, (9, 7, 4)), Speculation(50, 45, 50, (45,))
    assert gain({"0": deep}, {"0": shallow}) is None
    assert total(shallow, deep).accepted_per_position == (54, 7, 4)


@pytest.mark.parametrize(
    ("chunks", "drafts", "apart", "verdict"),
    [
        (100, 100, 0, True),
        (99, 100, 0, True),
        (101, 100, 0, True),
        (98, 100, 0, False),
        (102, 100, 0, None),
        (50, 100, 0, False),
        (0, 100, 0, False),
        (8, 8, 0, True),
        (7, 8, 0, False),
        (7, 7, 0, None),
        (0, 0, 0, None),
        (119, 119, 3, None),
        (120, 120, 3, True),
        (116, 120, 3, True),
        (115, 120, 3, False),
        (125, 120, 3, None),
        (9850, 10000, 3, False),
    ],
)
def test_chunks_are_steps_where_there_are_as_many_as_drafts(
    chunks: int, drafts: float, apart: int, verdict: bool | None
) -> None:
    assert is_step_by_step(chunks, drafts, apart=apart) is verdict


@pytest.mark.parametrize(
    ("tokens", "steps", "merged"),
    [(301, 111, False), (301, 76, False), (301, 75, True), (9, 1, False), (0, 0, False)],
)
def test_more_tokens_than_a_step_can_write_are_several_steps(tokens: int, steps: int, merged: bool) -> None:
    assert are_merged(tokens, steps, 3) is merged


def test_recent_figures_fade() -> None:
    recent = Recent().after(Speculation(100, 100, 300, (60, 30, 10)), 0.0)
    assert recent.drafts(0.0) == 100
    assert recent.drafts(300.0) == pytest.approx(100 / math.e)
    recent = recent.after(Speculation(100, 300, 300, (100, 100, 100)), 3000.0)
    assert recent.sums.length == pytest.approx(4.0, abs=0.001)
    assert recent.sums.accepted_per_position == pytest.approx((100, 100, 100), abs=0.01)
    assert Recent().drafts(5.0) == 0


def test_drafts_are_summed_over_windows_not_averaged() -> None:
    whole = added(
        (Speculation(10, 20, 30, (10.0, 8.0, 2.0)), None, Speculation(0, 0), Speculation(30, 30, 30, (30.0,)))
    )

    assert whole == Speculation(40, 50, 60, (40.0, 8.0, 2.0))
    assert added((Speculation(10, 5), Speculation(10, 5, 10, (5.0,)))) == Speculation(20, 10, None, (5.0,))
    assert added((None, Speculation(0, 0))) is None
