from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.engines.simulated.clock import Clock, ClockCounters
from gateway.engines.simulated.step_model import Fit, throughput

if TYPE_CHECKING:
    from collections.abc import Mapping

H100 = Fit.builtin("h100-9b")


def clock(depth: int = 3, seed: int = 1, **options: Any) -> Clock:
    return Clock(H100, depth, np.random.default_rng(seed), **options)


def closed_loop(counts: Mapping[str, int], seconds: float, depth: int, **options: Any) -> float:
    """Tokens per second of an engine whose every finished request is replaced by one of its route."""
    engine = clock(depth, **options)
    routes: dict[Any, str] = {}

    def add(route: str, now: float) -> None:
        routes[len(routes)] = route
        engine.add(len(routes) - 1, route, None, now)

    for route, count in counts.items():
        for _ in range(count):
            add(route, 0.0)
    now, begun, tokens = 0.0, 0.0, 0
    while now < seconds:
        now = engine.next_at() or 0.0
        for id in engine.advance_finished():
            add(routes[id], now)
        if not begun and now > seconds / 4:
            begun, tokens = now, engine.counters.generation_tokens
    return (engine.counters.generation_tokens - tokens) / (now - begun)


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize(
    "counts", [{"table": 32}, {"key-value": 100}, {"text": 256}, {"text": 80, "key-value": 20, "table": 30}]
)
def test_the_mean_field_is_the_clocks(depth: int, counts: dict[str, int]) -> None:
    expected = sum(throughput(H100, depth, counts).values())
    assert closed_loop(counts, 240, depth) == pytest.approx(expected, rel=0.03)


# The last schedule has no batch at which either depth stays in its range: the batch swings about the bound.
@pytest.mark.parametrize(
    ("count", "schedule"),
    [
        (40, [(1, 63, 3), (64, 4096, 0)]),
        (90, [(1, 63, 3), (64, 4096, 0)]),
        (200, [(1, 63, 3), (64, 4096, 0)]),
        (200, [(1, 90, 0), (91, 4096, 3)]),
    ],
)
def test_the_mean_field_follows_a_schedule(count: int, schedule: list[tuple[int, int, int]]) -> None:
    expected = sum(throughput(H100, 3, {"text": count}, schedule=schedule).values())
    assert closed_loop({"text": count}, 240, 3, schedule=schedule) == pytest.approx(expected, rel=0.03)


def test_the_mean_field_knows_an_engines_places() -> None:
    expected = throughput(H100, 3, {"table": 100}, max_num_seqs=32)["table"]
    assert closed_loop({"table": 100}, 300, 3, max_num_seqs=32) == pytest.approx(expected, rel=0.03)


def test_a_request_from_first_to_last_token() -> None:
    engine = clock(depth=1)
    assert engine.next_at() is None
    engine.add("a", "table", 6, now=10.0)
    assert (engine.running, engine.waiting) == (1, 0)
    (first,) = engine.advance()
    assert (first.id, first.tokens, first.first, first.finished) == ("a", 1, True, False)
    assert (first.drafts, first.draft_tokens, first.accepted) == (0, 0, 0)
    begun = engine.next_at()
    assert begun is not None
    assert begun > 10.0 + H100.routes["table"].prefill_ms / 1000
    rest = []
    while engine.next_at() is not None:
        rest += engine.advance()
    assert sum(emission.tokens for emission in rest) == 5
    assert [emission.finished for emission in rest] == [False] * (len(rest) - 1) + [True]
    assert all((emission.drafts, emission.draft_tokens) == (1, 1) for emission in rest)
    assert engine.counters.prompt_tokens == H100.routes["table"].prompt_tokens
    assert (engine.counters.finished, engine.counters.generation_tokens) == (1, 6)
    assert (engine.running, engine.waiting) == (0, 0)


def test_accepted_tokens_are_counted_before_the_end_trims_them() -> None:
    engine = clock(depth=16)
    for number in range(200):
        engine.add(number, "table", 2, now=0.0)
    last = []
    while engine.next_at() is not None:
        last += [emission for emission in engine.advance() if not emission.first]
    assert {emission.tokens for emission in last} == {1}
    counters = engine.counters
    assert counters.accepted == sum(emission.accepted for emission in last) > 200
    assert counters.accepted / counters.drafts + 1 == pytest.approx(
        H100.routes["table"].acceptance_length(16), rel=0.1
    )
    assert counters.generation_tokens == 400


def test_acceptance_by_position_is_the_fits() -> None:
    engine = clock(depth=3)
    for number in range(30):
        engine.add(number, "key-value", 2000, now=0.0)
    for _ in range(600):
        engine.advance_finished()
    shares = np.array(engine.counters.accepted_per_position) / engine.counters.drafts
    assert shares == pytest.approx(H100.routes["key-value"].acceptance[:3], abs=0.02)


def test_a_step_takes_no_more_images_than_it_may() -> None:
    engine = clock()
    engine.add("early", "text", 50, now=0.0)
    for number in range(12):
        engine.add(number, "text", 50, now=0.0)
    assert (engine.running, engine.waiting) == (1, 12)
    engine.advance()
    assert (engine.running, engine.waiting) == (1 + H100.step.images_per_step, 12 - H100.step.images_per_step)


def test_an_answer_of_one_token_ends_with_its_prefill() -> None:
    engine = clock()
    engine.add("a", "text", 1, now=0.0)
    (only,) = engine.advance()
    assert (only.tokens, only.first, only.finished) == (1, True, True)
    assert engine.next_at() is None


def test_aborted_requests_go_wherever_they_are() -> None:
    engine = clock(max_num_seqs=2)
    for id in ("decoding", "entering", "waiting"):
        engine.add(id, "text", 100, now=0.0)
        if id == "decoding":
            engine.advance()
    engine.advance()
    engine.abort("decoding")
    engine.abort("waiting")
    engine.abort("unknown")
    assert (engine.running, engine.waiting, engine.counters.aborted) == (1, 0, 2)
    assert {emission.id for emission in engine.advance()} == {"entering"}
    engine.abort("entering")
    assert engine.advance() == []
    assert engine.next_at() is None


def test_a_request_aborted_in_prefill_gets_nothing() -> None:
    engine = clock()
    engine.add("a", "text", 100, now=0.0)
    engine.abort("a")
    assert engine.advance() == []
    assert (engine.next_at(), engine.counters.generation_tokens) == (None, 0)


def test_the_depth_follows_the_batch() -> None:
    engine = clock(schedule=[(1, 2, 2), (3, 100, 0)])
    drafted: Counter[tuple[int, int]] = Counter()
    for number in range(4):
        engine.add(number, "table", 40, now=0.0)
    while engine.next_at() is not None:
        decoding = [emission for emission in engine.advance() if not emission.first]
        drafted.update((len(decoding), emission.draft_tokens) for emission in decoding)
    assert {draft for size, draft in drafted if size <= 2} == {2}
    assert {draft for size, draft in drafted if size > 2} == {0}
    assert engine.counters.drafts == sum(count for (_, draft), count in drafted.items() if draft)


def test_a_slow_engine_takes_longer() -> None:
    times = []
    for slowness in (1.0, 4.0):
        engine = clock()
        engine.slow(slowness, now=0.0)
        engine.add("a", "text", 10, now=0.0)
        times.append(engine.next_at())
    assert times[1] == pytest.approx(4 * (times[0] or 0))


def test_what_is_left_of_a_step_is_slow_until_the_engine_is_healed() -> None:
    engine = clock()
    engine.add("a", "text", 10, now=0.0)
    whole = engine.next_at() or 0
    engine.slow(1000.0, now=whole / 2)
    assert engine.next_at() == pytest.approx(whole / 2 + 1000 * whole / 2)
    engine.slow(1.0, now=whole)
    assert engine.next_at() == pytest.approx(whole + whole * 999 / 2000)
    engine.slow(1000.0, now=2 * whole)
    assert engine.next_at() == pytest.approx(whole + whole * 999 / 2000)


def test_counters_can_start_anew() -> None:
    engine = clock()
    engine.add("a", "text", 30, now=0.0)
    engine.advance()
    engine.counters = ClockCounters(3)
    engine.advance()
    assert engine.counters.drafts == 1
    assert engine.counters.prompt_tokens == 0


def test_misuse_is_told() -> None:
    engine = clock()
    with pytest.raises(RuntimeError, match="idle"):
        engine.advance()
    with pytest.raises(RuntimeError, match="idle"):
        engine.advance_finished()
    with pytest.raises(KeyError):
        engine.add("a", "formula", 5, now=0.0)


def test_lengths_have_the_routes_mean() -> None:
    engine = clock()
    lengths = [engine.draw_length("table") for _ in range(4000)]
    assert np.mean(lengths) == pytest.approx(H100.routes["table"].output_tokens, rel=0.05)
    assert np.std(lengths) / np.mean(lengths) == pytest.approx(H100.routes["table"].output_spread, rel=0.1)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(1, 30)), st.tuples(st.sampled_from(["abort", "step"]))
        ),
        max_size=200,
    ),
    st.integers(0, 4),
    st.integers(0, 2**32),
)
def test_every_request_gets_exactly_its_tokens(moves: list[tuple[Any, ...]], depth: int, seed: int) -> None:
    engine, other = clock(depth, seed), clock(depth, seed)
    wanted: dict[int, int] = {}
    got: Counter[Any] = Counter()
    finished: list[Any] = []
    aborted: set[int] = set()
    now = 0.0

    def step() -> float:
        at = engine.next_at()
        assert at == other.next_at()
        emissions = engine.advance()
        got.update({emission.id: emission.tokens for emission in emissions})
        ended = [emission.id for emission in emissions if emission.finished]
        assert sorted(ended) == sorted(other.advance_finished())
        finished.extend(ended)
        return at or 0.0

    for kind, *rest in moves:
        if kind == "add":
            wanted[len(wanted)] = rest[0]
            for each in (engine, other):
                each.add(len(wanted) - 1, "table", rest[0], now)
        elif kind == "abort" and (left := [id for id in wanted if id not in finished and id not in aborted]):
            aborted.add(left[seed % len(left)])
            for each in (engine, other):
                each.abort(left[seed % len(left)])
        elif kind == "step" and engine.next_at() is not None:
            now = step()
    while engine.next_at() is not None:
        step()
    assert sorted(finished) == sorted(wanted.keys() - aborted)
    assert all(got[id] == wanted[id] for id in finished)
    assert all(got[id] <= wanted[id] for id in aborted)
    counters = engine.counters
    assert counters.generation_tokens == got.total() == other.counters.generation_tokens
    assert (counters.finished, counters.aborted) == (len(finished), len(aborted))
    assert counters.draft_tokens == counters.drafts * depth
