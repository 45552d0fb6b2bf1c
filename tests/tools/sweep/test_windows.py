from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model import Speculation
from gateway.tools.sweep.engine_clients import EndedRequest
from gateway.tools.sweep.sweep_values import Spread, SweepCell, Window
from gateway.tools.sweep.windows import EngineSample, elapsed, others_requests, steady, window
from gateway.wire.vllm.engine import EngineReading, EngineWork, Simulated

LOAD = 4
CELL = SweepCell("table", "mtp3", LOAD)
OPTIONAL = ("kv_usage", "cache_hits", "cache_queries", "first_tokens", "steps", "steps_s")
STARTED = "2026-01-02T03:04:05Z"
seeds = st.integers(0, 2**32 - 1)


def sample(
    at: float,
    tokens: float = 0.0,
    *,
    running: int = 0,
    waiting: int = 0,
    finished: float = 0.0,
    prompt: float = 0.0,
    in_flight: int = 0,
    sent: int = 0,
    speculation: Speculation | None = None,
    **work: Any,
) -> EngineSample:
    reading = EngineReading(
        running, waiting, True, tokens, prompt, finished, {"0": speculation} if speculation else {}
    )
    return EngineSample(at, EngineWork(reading, **work), in_flight, sent)


def series(rates: Any, *, load: int = LOAD) -> list[EngineSample]:
    """A load's samples, one a second, with so many tokens written between them."""
    written = np.concatenate([[0.0], np.cumsum(rates)])
    return [
        sample(float(at), float(tokens), running=load, in_flight=load, sent=load)
        for at, tokens in enumerate(written)
    ]


def record(
    sent: float,
    ended: float,
    *,
    first: float = 0.0,
    tokens: int = 11,
    speculation: Speculation | None = None,
    error: str = "",
    truncated: bool = False,
) -> EndedRequest:
    return EndedRequest(sent, first, ended, tokens, speculation, error, truncated)


def cell(rates: Any, records: list[EndedRequest]) -> Window:
    """A cell that is a window from its second sample to its last but one; what was sent was answered."""
    samples = series(rates)
    idle, last = samples[0], samples[-1]
    sent = max(LOAD, len(records))
    samples[0] = sample(idle.at)
    samples[-1] = sample(last.at, last.work.reading.generation_tokens, sent=sent)
    samples[1:-1] = [EngineSample(one.at, one.work, LOAD, sent) for one in samples[1:-1]]
    return measured(samples, records)


def measured(
    samples: list[EngineSample], records: list[EndedRequest], *, of: SweepCell = CELL, warm: bool = True
) -> Window:
    return window(of, "e:1", samples, 1, len(samples) - 2, records, started=STARTED, steady=warm)


def noisy(seed: int, length: int, *, alike: float = 0.0, scatter: float = 0.1) -> Any:
    """Rates around 1,000; neighbours are correlated by `alike`."""
    rng = np.random.default_rng(seed)
    noise = np.zeros(length + 100)
    for at, more in enumerate(rng.normal(size=len(noise))):
        noise[at] = alike * noise[at - 1] + more * math.sqrt(1 - alike**2)
    return 1000 * (1 + scatter * noise[100:])


@given(seeds, st.floats(0, 0.3))
def test_a_throughput_without_trend_soon_is_steady(seed: int, scatter: float) -> None:
    samples = series(noisy(seed, 60, scatter=scatter))
    assert any(steady(samples[:until], LOAD) for until in range(len(samples)))


@given(seeds, st.integers(12, 120), st.floats(0, 0.05))
def test_a_throughput_that_still_rises_is_not(seed: int, length: int, scatter: float) -> None:
    rising = noisy(seed, length, scatter=scatter) * np.arange(1, length + 1)
    assert not steady(series(rising), LOAD)


@given(st.integers(1, 60))
def test_a_ramp_that_has_ended_is_forgotten_in_time(ramp: int) -> None:
    rates = np.minimum(np.arange(1, 3 * ramp + 12) / ramp, 1.0) * 1000
    assert steady(series(rates), LOAD)
    assert not steady(series(rates[: max(ramp, 7)]), LOAD) or ramp < 7


def test_who_began_together_must_have_come_apart() -> None:
    samples = series([1000.0] * 30)
    assert not steady(samples, LOAD - 1)
    assert steady(samples, LOAD)


def test_an_engine_without_requests_is_steady_after_an_answer() -> None:
    samples = series([10.0] * 30, load=0)
    assert not steady(samples, 0)
    assert steady(samples, 1)


def test_a_few_seconds_tell_nothing() -> None:
    assert not steady([], 0)
    assert not any(steady(series([1000.0] * length), 100) for length in range(6))


def test_a_simulated_engines_seconds_are_its_own() -> None:
    # Its machine gets slower and slower; on its own clock nothing changes.
    samples = [
        sample(at**2, 1000.0 * at, in_flight=1, sent=1, simulated=Simulated("x", 10.0 * at, 50))
        for at in range(20)
    ]
    assert elapsed(samples[3], samples[5]) == 20
    assert steady(samples, 1)
    assert not steady([EngineSample(one.at, EngineWork(one.work.reading), 1, 1) for one in samples], 1)


def test_only_ours_is_not_foreign() -> None:
    samples = [
        sample(0, finished=100),
        sample(1, running=3, waiting=1, finished=102, in_flight=4, sent=7),
        sample(2, finished=107, in_flight=0, sent=7),
    ]
    assert others_requests(samples, LOAD) == ""


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (sample(1, running=4, waiting=1, in_flight=4, sent=9), "the engine had 5, at most 4 were ours"),
        (sample(1, running=3, in_flight=0, sent=2), "the engine had 3, at most 2 were ours"),
        (sample(1, finished=103, sent=2), "3 finished, 2 were ours"),
    ],
)
def test_what_cannot_be_ours_is_foreign(now: EngineSample, said: str) -> None:
    assert said in others_requests([sample(0, finished=100), now], LOAD)


def test_an_engine_that_works_before_we_do_is_somebody_elses() -> None:
    assert "the engine had 1, at most 0 were ours" in others_requests([sample(0, running=1)], LOAD)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=30), st.booleans())
def test_requests_that_come_and_go_are_never_foreign(moves: list[tuple[int, int]], late: bool) -> None:
    """Each second some are sent, then some end; of a late page the engine has not seen them end yet."""
    samples, sent, done = [sample(0)], 0, 0
    for at, (new, over) in enumerate(moves, 1):
        sent += new
        ended = min(done + over, sent)
        known = done if late else ended
        samples.append(sample(at, running=sent - known, finished=known, in_flight=sent - ended, sent=sent))
        done = ended
    assert others_requests(samples, 1000) == ""


def test_a_window_counts_what_happened_in_it() -> None:
    records = [record(at - 5, at, first=at - 4, tokens=5) for at in np.arange(0.5, 60)]
    found = cell([400.0] * 60, records)
    assert (found.cell, found.engine, found.started, found.steady) == (CELL, "e:1", STARTED, True)
    assert (found.seconds, found.warm_s) == (58, 1)
    assert (found.rate, found.requests, found.requests_per_s, found.answered_rate) == (400, 58, 1, 5)
    assert found.request_s == Spread(5, 5, 5, 5)
    assert found.first_token_s == Spread(1, 1, 1, 1)
    assert found.token_s == Spread(1, 1, 1, 1)
    assert (found.running, found.waiting, found.highest) == (LOAD, 0, LOAD)
    assert (found.speculation, found.told, found.agree) == (None, None, None)
    assert (found.tokens_per_step, found.step_s, found.kv_usage, found.cached) == (None,) * 4
    assert found.valid
    # There is no scatter to take a standard error from.
    assert found.flags == ("too few samples for a standard error",)


def test_percentiles_are_interpolated() -> None:
    found = cell([1.0] * 60, [record(30 - seconds, 30) for seconds in range(0, 101, 10)])
    assert found.request_s == Spread(50, 50, 95, 99)


def test_answers_that_came_in_one_piece_have_only_their_whole_time() -> None:
    found = cell([1.0] * 60, [record(1, 20), record(1, 20, first=5, tokens=1)])
    assert found.first_token_s == Spread(4, 4, 4, 4)
    assert found.token_s is None
    assert found.request_s == Spread(19, 19, 19, 19)


def test_a_window_without_answers_has_no_times() -> None:
    found = cell([1.0] * 60, [])
    assert (found.requests, found.request_s) == (0, None)
    assert found.rate == 1
    assert "few requests: 0 were answered" in found.flags


def test_a_simulated_engine_is_measured_in_its_own_seconds() -> None:
    # At a scale of 10 on a machine that only manages 5; the engine's own histograms do not know of that.
    samples = [
        sample(
            at,
            500.0 * at,
            in_flight=1,
            sent=1,
            first_tokens=1.0 * at,
            steps=100.0 * at,
            steps_s=0.2 * at,
            simulated=Simulated("x", 5.0 * at, 10),
        )
        for at in range(61)
    ]
    found = measured(samples, [record(20, 22, first=20.5)])
    assert (found.seconds, found.warm_s) == (5 * 58, 5)
    assert found.rate == pytest.approx(100)
    assert found.request_s == Spread(10, 10, 10, 10)
    assert found.first_token_s == Spread(2.5, 2.5, 2.5, 2.5)
    assert found.step_s == pytest.approx(0.02)
    assert found.tokens_per_step == pytest.approx(4.99)


def test_the_engines_own_figures_are_of_the_window() -> None:
    samples = [
        sample(
            at,
            30.0 * at,
            running=LOAD,
            in_flight=LOAD,
            sent=LOAD,
            prompt=16.0 * at,
            preemptions=2.0 * at,
            kv_usage=0.1 if at != 5 else 0.9,
            cache_hits=3.0 * at,
            cache_queries=12.0 * at,
            first_tokens=2.0 * at,
            steps=7.0 * at,
            steps_s=0.7 * at,
        )
        for at in range(12)
    ]
    found = measured(samples, [])
    assert (found.prompt_rate, found.preemptions, found.kv_usage, found.cached) == (16, 18, 0.9, 0.25)
    assert found.tokens_per_step == 4
    assert found.step_s == pytest.approx(0.1)
    assert "18 requests were put back for want of memory" in found.flags
    assert "25% of the prompt tokens came from the prefix cache" in found.flags


@pytest.mark.parametrize(("length", "alike"), [(60, 0.0), (60, 0.5), (120, 0.0), (120, 0.5), (120, 0.8)])
def test_the_true_rate_lies_within_the_interval_19_times_in_20(alike: float, length: int) -> None:
    windows = [cell(noisy(seed, length + 2, alike=alike), []) for seed in range(200)]
    within = sum(abs(one.rate - 1000) <= 1.96 * one.stderr for one in windows) / len(windows)
    assert 0.9 <= within <= 0.99
    # And it is no wider than that takes: the windows themselves scatter hardly less.
    spread = np.std([one.rate for one in windows])
    assert np.mean([one.stderr for one in windows]) <= 1.4 * spread


def test_too_few_samples_have_no_standard_error() -> None:
    short, enough = cell(noisy(1, 13), []), cell(noisy(1, 14), [])
    assert short.stderr == 0
    assert "too few samples for a standard error" in short.flags
    assert enough.stderr > 0
    assert "too few samples for a standard error" not in enough.flags


def answers(seed: int, count: int = 60) -> list[EndedRequest]:
    """Answers over a minute, each with some 100 drafts of 3 tokens, of which 60% are accepted."""
    rng = np.random.default_rng(seed)
    told = []
    for at in np.linspace(0.5, 59.5, count):
        drafts = int(rng.integers(50, 150))
        accepted = np.sort(rng.binomial(drafts, 0.6, 3))[::-1]
        total = Speculation(drafts, float(accepted.sum()), 3.0 * drafts, tuple(map(float, accepted)))
        told.append(record(at - 5, at, speculation=total))
    return told


def speculating(
    records: list[EndedRequest],
    factor: float = 1.0,
    *,
    aborted: int = 0,
    counted: list[EndedRequest] | None = None,
) -> Window:
    """A cell whose engine counts, second by second, `factor` times the accepted tokens that answers tell."""
    samples = []
    for at in range(61):
        done = [one.speculation for one in counted or records if one.ended < at and one.speculation]
        sums = Speculation(
            sum(one.drafts for one in done),
            factor * sum(one.accepted for one in done),
            3.0 * sum(one.drafts for one in done),
            (float(sum(one.drafts for one in done)),) * 3,
        )
        idle = at in (0, 60)
        load = 0 if idle else LOAD
        sent = 0 if at == 0 else len(records) + aborted
        samples.append(sample(at, 100.0 * at, running=load, in_flight=load, sent=sent, speculation=sums))
    return measured(samples, records)


def test_answers_that_tell_what_the_engine_counted_agree() -> None:
    records = answers(1)
    found = speculating(records)
    inside = records[1:-1]
    assert found.told is not None
    assert found.told.drafts == sum(one.speculation.drafts for one in inside if one.speculation)
    assert found.speculation is not None
    assert found.speculation.drafts == found.told.drafts
    assert found.agree is True


def test_a_cell_from_idle_to_idle_leaves_no_room_for_differences() -> None:
    found = speculating(answers(1), 0.995)
    assert found.agree is False
    assert "the answers and the engine's counters disagree on acceptance" in found.flags


def test_where_requests_were_cut_off_the_lengths_are_compared() -> None:
    assert speculating(answers(1), 0.995, aborted=1).agree is True
    assert speculating(answers(1), 0.9, aborted=1).agree is False


def test_nothing_is_compared_where_something_is_silent() -> None:
    records = answers(1)
    silent = [*records[:-5], *(record(one.sent, one.ended) for one in records[-5:])]
    for aborted in (0, 1):
        found = speculating(silent, aborted=aborted)
        assert found.told is not None
        assert found.agree is None
        nothing = speculating([record(one.sent, one.ended) for one in records], aborted=aborted)
        assert (nothing.told, nothing.agree) == (None, None)
    # Its own schedule may have kept it from drafting.
    idle = [record(one.sent, one.ended, speculation=Speculation(0, 0, 0, (0, 0, 0))) for one in records]
    assert speculating(idle, aborted=1).agree is None
    assert speculating(idle).agree is True


def test_an_engine_that_does_not_speculate_has_nothing_to_agree_with() -> None:
    assert cell([100.0] * 60, answers(1)).agree is None


@given(seeds)
def test_sampling_alone_is_no_disagreement(seed: int) -> None:
    # The engine counts them 3 s before they end: the window's counters are of other answers than its records.
    records = answers(seed, 30)
    earlier = [replace(one, ended=one.ended - 3) for one in records]
    assert speculating(records, counted=earlier, aborted=1).agree is True


def test_a_failed_request_spoils_the_cell() -> None:
    failed = [
        record(0, 0.5, error="http_500"),
        record(30, 31, error="http_500"),
        record(3, 4, error="no_usage"),
    ]
    found = cell([100.0] * 60, [*failed, record(30, 32)])
    assert found.errors == {"http_500": 2, "no_usage": 1}
    assert found.invalid == ("requests failed: http_500 (2), no_usage (1)",)
    assert found.requests == 1
    # What was drafted for them nobody told.
    assert cell([100.0] * 60, failed).agree is None


def test_somebody_elses_requests_spoil_it() -> None:
    samples = series([100.0] * 60)
    samples[0] = sample(0)
    samples[30] = sample(30, 3000, running=LOAD + 1, in_flight=LOAD, sent=LOAD)
    (reason,) = measured(samples, []).invalid
    assert "the engine had 5, at most 4 were ours" in reason


def test_an_engine_that_was_restarted_spoils_it() -> None:
    samples = series([100.0] * 60)
    samples[0] = sample(0)
    samples[31:] = [
        sample(one.at, one.work.reading.generation_tokens - 3000, in_flight=LOAD, sent=LOAD)
        for one in samples[31:]
    ]
    assert measured(samples, []).invalid == ("the engine's counters went back: it was restarted",)


def test_an_engine_that_wrote_nothing_spoils_it() -> None:
    assert cell([0.0] * 60, []).invalid == ("the engine wrote nothing",)
    paused = [
        sample(at, 10.0 * (at > 0), in_flight=LOAD, sent=LOAD, simulated=Simulated("x", 1, 1))
        for at in range(20)
    ]
    found = measured(paused, [record(1, 5)])
    assert (found.seconds, found.rate, found.stderr) == (0, 0, 0)
    assert found.invalid == ("the engine wrote nothing",)


def test_a_reader_is_told_what_else_to_know() -> None:
    records = [record(30, 40, truncated=True), *(record(30, 40) for _ in range(8))]
    found = measured([sample(0), *series(noisy(1, 59), load=2)[1:]], records, warm=False)
    assert found.valid
    assert found.flags == (
        "throughput was not steady yet after 1 s",
        "few requests: 9 were answered",
        "11% of the answers were cut off at their longest",
    )


def test_a_simulated_engine_without_its_load_is_told() -> None:
    samples = [
        sample(at, 100.0 * at, running=2, in_flight=LOAD, sent=LOAD, simulated=Simulated("x", at, 1))
        for at in range(20)
    ]
    records = [record(1, 5) for _ in range(20)]
    assert measured(samples, records).flags[0] == (
        "this machine was busy: the simulated engine had 2.0 of 4 requests"
    )
    # In an open loop the load is what it is.
    open_loop = measured(samples, records, of=SweepCell("table", "mtp3", LOAD, per_s=3.0))
    assert not any("of 4 requests" in flag for flag in open_loop.flags)


@pytest.mark.parametrize(
    ("late", "flags", "invalid"),
    [
        (0.1, (), ()),
        (0.4, ("this machine was busy: 0.40 s behind when it sent",), ()),
        (
            1.2,
            ("this machine was busy: 1.20 s behind when it sent",),
            ("this machine was too busy to send the load: 1.20 s behind",),
        ),
    ],
)
def test_a_client_that_lags_behind_its_answers_tells_or_spoils_it(
    late: float, flags: tuple[str, ...], invalid: tuple[str, ...]
) -> None:
    samples = [dataclasses.replace(one, late=late) for one in series(noisy(1, 59))]
    samples[0] = sample(0)
    found = measured(samples, [record(at, at + 10) for at in range(2, 40)])
    assert (found.flags, found.invalid) == (flags, invalid)
    assert found.late_s == pytest.approx(late)


@pytest.mark.parametrize(("seconds", "valid", "told"), [(2, True, False), (9, True, True), (20, False, True)])
def test_an_engine_that_told_nothing_for_long_may_have_stood_still(
    seconds: int, valid: bool, told: bool
) -> None:
    samples = [*series([100.0] * 60)[: 30 - seconds], *series([100.0] * 60)[29:]]
    samples[0] = sample(0)
    found = measured(samples, [record(1, 20) for _ in range(20)])
    words = f"the engine told nothing for {seconds} s: it may have stood still"
    assert (found.valid, words in (*found.flags, *found.invalid)) == (valid, told)
    # A simulated one's clock stands still with it.
    paused = [
        dataclasses.replace(one, work=replace(one.work, simulated=Simulated("x", float(at), 1)))
        for at, one in enumerate(samples)
    ]
    assert measured(paused, [record(1, 20) for _ in range(20)]).valid


@pytest.mark.parametrize(
    ("sent", "skipped", "told"),
    [
        (4.0, 0.0, ()),
        (3.5, 0.5, ("29 of 232 requests were not sent: 4 were under way",)),
        (3.0, 0.0, ("3 requests/s were sent, not 4",)),
        (
            1.25,
            0.25,
            ("14 of 86 requests were not sent: 4 were under way", "1.24 requests/s were sent, not 4"),
        ),
    ],
)
def test_an_open_loop_tells_what_it_did_not_send(sent: float, skipped: float, told: tuple[str, ...]) -> None:
    """At 4 requests a second."""
    samples = [
        dataclasses.replace(one, sent=int(sent * at), skipped=int(skipped * at))
        for at, one in enumerate(series(noisy(1, 60)))
    ]
    samples[0] = sample(0)
    found = measured(
        samples, [record(1, 20) for _ in range(20)], of=SweepCell("table", "mtp3", LOAD, per_s=4.0)
    )
    assert found.flags == told
    closed = measured(samples, [record(1, 20) for _ in range(20)])
    assert closed.flags == ()


@given(seeds, st.integers(4, 40))
def test_no_page_breaks_a_window(seed: int, length: int) -> None:
    rng = Random(seed)

    def maybe(value: Any) -> Any:
        return rng.choice([None, value])

    def figure() -> float:
        return rng.choice([0.0, rng.random(), rng.randrange(10**9)])

    samples = [
        sample(
            at,
            figure(),
            running=rng.randrange(9),
            finished=figure(),
            prompt=figure(),
            in_flight=rng.randrange(9),
            sent=rng.randrange(9),
            speculation=maybe(Speculation(figure(), figure(), figure(), (figure(), figure()))),
            simulated=maybe(Simulated("x", figure(), 1 + figure())),
            **{name: maybe(figure()) for name in OPTIONAL},
        )
        for at in range(length)
    ]
    records = [
        record(figure(), rng.uniform(0, 40), tokens=rng.randrange(99)) for _ in range(rng.randrange(9))
    ]
    found = measured(samples, records)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Window) == found
    assert math.isfinite(found.rate + found.stderr)
    assert steady(samples, 9) in (True, False)
