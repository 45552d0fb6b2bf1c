"""The clock model in real time: steps end when their time has come, and requests learn what they got."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, cast

import numpy as np

from gateway.engines.simulated.clock import Clock, ClockCounters
from gateway.engines.vllm_page import EngineCounts, LatencyHistogram
from gateway.model import Speculation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.engines.simulated.clock import Emission
    from gateway.engines.simulated.completion_request import SimulatedRequest
    from gateway.engines.simulated.step_model import Fit

MAX_NUM_SEQS = 1024
# Virtual seconds; a machine that is later than this does not catch up: the simulation takes longer. While
# steps are made up for, nobody's next request can come in between, and the engine stands half empty.
_LATE_S = 0.05
# Seconds after which a step's end is looked at again: it comes sooner where the engine is slow no more.
_NAP_S = 0.1
_WORDS = ("This", "text", "is", "simulated", "and", "was", "read", "from", "no", "image.")


class SimulatedJob:
    """One request in the engine.

    Attributes:
        tokens: written so far.
        finish_reason: why the answer ended; None while it goes on.
        histogram: the request's drafts by how many of their tokens were accepted.
        draft_tokens: tokens proposed for it.
        changed: set whenever there is more to send.
    """

    def __init__(self, depth: int, arrived: float, ends_with: str, stream_interval: int = 1) -> None:
        self._interval = stream_interval
        self._offered = 0
        self.arrived = arrived
        self.ends_with = ends_with
        self.tokens = 0
        self.finish_reason: str | None = None
        self.histogram = [0] * (depth + 1)
        self.draft_tokens = 0
        self.changed = asyncio.Event()

    async def more(self) -> None:
        """Wait for more tokens, or the end; what came while nobody waited comes at once, as in vLLM."""
        await self.changed.wait()
        self.changed.clear()

    def text(self, since: int = 0) -> str:
        """Return what was written after the first `since` tokens: a word each, but for one that ends it."""
        words = self.tokens - (self.finish_reason == "stop")
        return "".join(" " * (place > 0) + _WORDS[place % len(_WORDS)] for place in range(since, words))

    def add(self, emission: Emission) -> None:
        """Add a step's share."""
        self.tokens += emission.tokens
        if emission.drafts:
            self.histogram[emission.accepted] += 1
            self.draft_tokens += emission.draft_tokens
        if emission.finished:
            self.finish_reason = self.ends_with
        if emission.finished or not self._offered or self.tokens - self._offered >= self._interval:
            self._offered = self.tokens
            self.changed.set()


class Runner:
    """A clock and its requests; used from one event loop only."""

    def __init__(
        self,
        fit: Fit,
        depth: int,
        *,
        schedule: Sequence[Sequence[int]] | None = None,
        time_scale: float = 1.0,
        seed: int = 0,
    ) -> None:
        """Start idle.

        Args:
            fit: what is simulated.
            depth: draft tokens of a request and step.
            schedule: vLLM's `num_speculative_tokens_per_batch_size`.
            time_scale: virtual seconds in a real one.
            seed: makes lengths and acceptance repeatable.

        Raises:
            ValueError: a depth or schedule that `step_model.Depths` refuses.
        """
        self._fit = fit
        self._clock = Clock(
            fit, depth, np.random.default_rng(seed), schedule=schedule, max_num_seqs=MAX_NUM_SEQS
        )
        self._depth = depth
        self._scale = time_scale
        self._jobs: set[SimulatedJob] = set()
        self._work = asyncio.Event()
        self._origin: float | None = None
        self._paused_at: float | None = None
        self._last_end = 0.0
        self.reset()

    @property
    def clock_s(self) -> float:
        """Virtual seconds since the first call of anything here.

        A step that should have ended and has not holds it up, so that it never runs back and what was written
        by then is counted.
        """
        end = self._clock.next_at()
        now = max(self._now(), self._last_end)
        return now if end is None else min(now, end)

    def submit(self, request: SimulatedRequest) -> SimulatedJob:
        """Take a request in."""
        length = self._clock.draw_length(request.route)
        ends_with = "stop"
        if request.max_tokens is not None and (request.ignore_eos or request.max_tokens < length):
            length, ends_with = request.max_tokens, "length"
        now = max(self._now(), self._last_end)
        job = SimulatedJob(self._depth, now, ends_with, request.stream_interval)
        self._jobs.add(job)
        self._clock.add(job, request.route, length, now)
        self._work.set()
        return job

    def leave(self, job: SimulatedJob) -> None:
        """Let go of a request; one that is not finished is aborted."""
        if job in self._jobs:
            self._jobs.remove(job)
            self._clock.abort(job)
            self._finished["abort"] += 1

    def slow(self, factor: float) -> None:
        """Have steps take `factor` times as long from now on, what is left of the current one too."""
        self._clock.slow(factor, max(self._now(), self._last_end))

    def pause(self) -> None:
        """Stop the clock: nothing is delivered until `resume`."""
        if self._paused_at is None:
            self._paused_at = self._now()

    def resume(self) -> None:
        """Let the clock go on from where it stopped."""
        if self._paused_at is not None:
            paused_at, self._paused_at = self._paused_at, None
            self._set_back(self._now() - paused_at)
            self._work.set()

    def reset(self) -> None:
        """Set all counters to zero."""
        self._clock.counters = ClockCounters(self._depth)
        self._finished: Counter[str] = Counter()
        self._first_token = LatencyHistogram("time_to_first_token_seconds")
        self._inter_token = LatencyHistogram("inter_token_latency_seconds")
        self._whole = LatencyHistogram("e2e_request_latency_seconds")

    def counts(self, *, awake: bool) -> EngineCounts:
        """Return what the metrics page says; its latencies are real seconds, not virtual ones."""
        done = self._clock.counters
        return EngineCounts(
            running=self._clock.running,
            waiting=self._clock.waiting,
            prompt_tokens=done.prompt_tokens,
            generation_tokens=done.generation_tokens,
            finished=self._finished,
            awake=awake,
            kv_usage=self._clock.running / MAX_NUM_SEQS,
            speculation=Speculation(done.drafts, done.accepted, done.draft_tokens, done.accepted_per_position)
            if self._depth
            else None,
            latencies=(self._first_token, self._inter_token, self._whole),
        )

    async def run(self) -> None:
        """Keep the steps in time until cancelled."""
        while True:
            end = self._clock.next_at()
            if end is None or self._paused_at is not None:
                self._work.clear()
                await self._work.wait()
                continue
            wait = (end - self._now()) / self._scale
            # The sleep of zero lets requests send what they have.
            await asyncio.sleep(min(max(0.0, wait), _NAP_S))
            if wait <= 0 and self._paused_at is None:
                self._step(end)

    def _step(self, end: float) -> None:
        decoding = 0
        for emission in self._clock.advance():
            job = cast("SimulatedJob", emission.id)
            job.add(emission)
            if emission.first:
                self._first_token.observe(self._since(job, end))
            else:
                decoding += 1
            if job.finish_reason is not None:
                self._jobs.remove(job)
                self._finished[job.finish_reason] += 1
                self._whole.observe(self._since(job, end))
        if decoding:
            self._inter_token.observe((end - self._last_end) / self._scale, decoding)
        self._last_end = end
        late = self._now() - end
        if late > _LATE_S:
            self._set_back(late)

    def _since(self, job: SimulatedJob, end: float) -> float:
        return max(0.0, end - job.arrived) / self._scale

    def _set_back(self, seconds: float) -> None:
        self._origin = (self._origin or 0.0) + seconds / self._scale

    def _now(self) -> float:
        if self._paused_at is not None:
            return self._paused_at
        loop_time = asyncio.get_running_loop().time()
        if self._origin is None:
            self._origin = loop_time
        return (loop_time - self._origin) * self._scale
