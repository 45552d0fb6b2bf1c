from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import pytest

from gateway.engines.simulated.completion_request import SimulatedRequest
from gateway.engines.simulated.runner import Runner, SimulatedJob
from gateway.engines.simulated.step_model import Fit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

H100 = Fit.builtin("h100-9b")


def request(
    max_tokens: int | None = None,
    *,
    ignore_eos: bool = False,
    route: str = "text",
    stream_interval: int = 1,
) -> SimulatedRequest:
    return SimulatedRequest(True, route, True, True, False, max_tokens, ignore_eos, stream_interval)


@contextlib.asynccontextmanager
async def running(depth: int = 3, **options: Any) -> AsyncIterator[Runner]:
    runner = Runner(H100, depth, **{"time_scale": 1000, **options})
    task = asyncio.create_task(runner.run())
    try:
        yield runner
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def ended(job: SimulatedJob) -> list[int]:
    """Wait for the end; return how many tokens there were each time there were more."""
    seen = []
    async with asyncio.timeout(30):
        while job.finish_reason is None:
            await job.more()
            seen.append(job.tokens)
    return seen


async def test_an_answer_comes_in_steps_and_accounts_for_each() -> None:
    async with running(seed=5) as runner:
        job = runner.submit(request(40, ignore_eos=True, route="table"))
        seen = await ended(job)
        runner.leave(job)
        assert seen == sorted(set(seen))
        assert (job.tokens, job.finish_reason) == (40, "length")
        drafts = sum(job.histogram)
        accepted = sum(number * count for number, count in enumerate(job.histogram))
        assert 1 + drafts + accepted >= 40
        assert job.draft_tokens == 3 * drafts
        counts = runner.counts(awake=True)
        assert counts.speculation is not None
        assert (counts.speculation.drafts, sum(counts.speculation.accepted_per_position)) == (
            drafts,
            accepted,
        )
        assert (counts.generation_tokens, counts.prompt_tokens) == (40, H100.routes["table"].prompt_tokens)
        assert counts.finished == {"length": 1}
        first, inter, whole = counts.latencies
        assert (sum(first.counts), sum(inter.counts), sum(whole.counts)) == (1, drafts, 1)
        assert first.total + inter.total == pytest.approx(whole.total)


@pytest.mark.parametrize("cuts", [[0, 25], [0, 1, 2, 9, 10, 11, 25]])
def test_pieces_join_to_the_same_text_which_says_that_it_is_simulated(cuts: list[int]) -> None:
    job, text = SimulatedJob(0, 0.0, "length"), ""
    for sent, job.tokens in itertools.pairwise(cuts):
        text += job.text(sent)
    assert text == job.text()
    assert text.count("simulated") == 3
    # The token by which an answer ends of itself is no text.
    job.finish_reason = "stop"
    assert (job.text(24), job.text(23)) == ("", " simulated")


async def test_a_stream_interval_holds_tokens_back_but_for_the_first_and_the_last() -> None:
    async with running(depth=0) as runner:
        job = runner.submit(request(40, ignore_eos=True, stream_interval=16))
        assert await ended(job) == [1, 17, 33, 40]


async def test_an_answer_ends_by_itself_before_its_limit() -> None:
    async with running() as runner:
        job = runner.submit(request(100_000))
        await ended(job)
        assert job.finish_reason == "stop"


async def test_without_depth_there_is_no_speculation() -> None:
    async with running(depth=0) as runner:
        job = runner.submit(request(5))
        await ended(job)
        assert (job.histogram, job.draft_tokens) == ([0], 0)
        assert runner.counts(awake=True).speculation is None


async def test_the_same_seed_gives_the_same_lengths() -> None:
    lengths = []
    for _ in range(2):
        async with running(seed=3) as runner:
            jobs = [runner.submit(request()) for _ in range(5)]
            for job in jobs:
                await ended(job)
            lengths.append([job.tokens for job in jobs])
    assert lengths[0] == lengths[1]


async def test_who_leaves_is_aborted_once() -> None:
    async with running(time_scale=1e-6) as runner:
        jobs = [runner.submit(request()) for _ in range(3)]
        assert (runner.counts(awake=True).running, runner.counts(awake=True).waiting) == (1, 2)
        for job in (*jobs, *jobs):
            runner.leave(job)
        counts = runner.counts(awake=True)
        assert (counts.running, counts.waiting, counts.finished) == (0, 0, {"abort": 3})


async def test_a_paused_engine_delivers_nothing_until_it_goes_on() -> None:
    async with running() as runner:
        runner.pause()
        runner.pause()
        job = runner.submit(request(3, ignore_eos=True))
        waiting = asyncio.create_task(ended(job))
        for _ in range(50):
            await asyncio.sleep(0)
        assert job.tokens == 0
        runner.resume()
        await waiting
        assert job.tokens == 3
        (_, _, whole) = runner.counts(awake=True).latencies
        # Virtual time stood still meanwhile.
        assert whole.total < 1
        runner.resume()


async def test_the_clock_says_when_what_is_written_was_written() -> None:
    async with running(time_scale=1e9) as runner:
        job = runner.submit(request(200, ignore_eos=True))
        seen = [runner.clock_s]
        while job.finish_reason is None:
            await job.more()
            seen.append(runner.clock_s)
        (_, _, whole) = runner.counts(awake=True).latencies
        # The machine is much too slow for this scale, and the clock waits for it.
        assert seen == sorted(seen)
        assert seen[-2] - seen[0] <= whole.total * 1e9


async def test_the_clock_runs_on_while_there_is_nothing_to_do_and_stands_while_paused() -> None:
    async with running() as runner:
        before = runner.clock_s
        await asyncio.sleep(0.01)
        runner.pause()
        paused = runner.clock_s
        await asyncio.sleep(0.01)
        assert before < runner.clock_s == paused
        runner.resume()
        await asyncio.sleep(0.01)
        assert runner.clock_s > paused


async def test_it_works_on_after_having_been_idle() -> None:
    async with running() as runner:
        for _ in range(3):
            await ended(runner.submit(request(4)))
        assert runner.counts(awake=True).finished.total() == 3  # type: ignore[attr-defined]


async def test_a_machine_that_is_too_slow_slows_the_simulation() -> None:
    async with running(time_scale=1e9) as runner:
        jobs = [runner.submit(request(200, ignore_eos=True)) for _ in range(20)]
        for job in jobs:
            await ended(job)
        (first, _, whole) = runner.counts(awake=True).latencies
        assert sum(whole.counts) == 20
        assert 0 <= first.total <= whole.total


async def test_counters_start_anew_while_requests_go_on() -> None:
    async with running(time_scale=1e-6) as runner:
        runner.submit(request())
        runner.leave(runner.submit(request()))
        runner.reset()
        counts = runner.counts(awake=False)
        assert (counts.running, counts.finished, counts.awake) == (1, {}, False)


async def test_a_healed_engine_goes_on_at_once() -> None:
    async with running(time_scale=1) as runner:
        runner.slow(1e6)  # a step of hours
        job = runner.submit(request(2))
        await asyncio.sleep(0)
        runner.slow(1.0)
        await ended(job)
