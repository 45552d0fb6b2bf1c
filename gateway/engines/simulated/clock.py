"""Continuous batching in virtual time: what a simulated engine delivers at the end of each step."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gateway.engines.simulated.step_model import Depths

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from numpy.typing import NDArray

    from gateway.engines.simulated.step_model import Fit

_GRAIN = 4096  # acceptance is drawn from a table of so many equally likely entries
_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class Emission:
    """One request's share of a step.

    Attributes:
        id: the request's.
        tokens: tokens delivered, trimmed at the answer's end; 0 while in prefill.
        drafts: 1 if the step had draft tokens for the request, else 0.
        draft_tokens: how many.
        accepted: how many of them were accepted, as vLLM counts them: before trimming.
        first: the answer's first token is among `tokens`.
        finished: the answer ends here.
    """

    id: Hashable
    tokens: int
    drafts: int
    draft_tokens: int
    accepted: int
    first: bool
    finished: bool


@dataclass(slots=True)
class ClockCounters:
    """What an engine has done since its start, as vLLM counts it.

    Attributes:
        prompt_tokens: prompt tokens read.
        generation_tokens: tokens delivered.
        drafts: one for each request and step that had draft tokens.
        draft_tokens: tokens proposed.
        histogram: drafts by how many of their tokens were accepted, before trimming at an answer's end.
        finished: answers that came to their end.
        aborted: requests given up by their clients.
        steps: steps done.
    """

    depth: int
    prompt_tokens: int = 0
    generation_tokens: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    histogram: NDArray[np.int64] = field(init=False)
    finished: int = 0
    aborted: int = 0
    steps: int = 0

    def __post_init__(self) -> None:
        self.histogram = np.zeros(self.depth + 1, np.int64)

    @property
    def accepted_per_position(self) -> tuple[int, ...]:
        """Accepted tokens by draft position."""
        return tuple(int(count) for count in self.histogram[::-1].cumsum()[::-1][1:])

    @property
    def accepted(self) -> int:
        """Accepted draft tokens."""
        return sum(self.accepted_per_position)


class Clock:
    """One engine's requests and steps.

    A step begins when the one before it ends and there is work. It takes in waiting requests, first come
    first served, up to the images of a step and `max_num_seqs`, and ends with the first token of each; every
    request that was decoding before gets its accepted draft tokens and one more. What comes during a step
    waits for the next. The same seed and calls give the same answers.

    Attributes:
        counters: the work done so far; may be replaced by `ClockCounters(depth)` to start anew.
    """

    def __init__(
        self,
        fit: Fit,
        depth: int,
        rng: np.random.Generator,
        *,
        schedule: Sequence[Sequence[int]] | None = None,
        max_num_seqs: int = 1024,
    ) -> None:
        """Start idle.

        Args:
            fit: what steps cost and requests are like.
            depth: draft tokens of a request and step.
            rng: source of all randomness.
            schedule: vLLM's `num_speculative_tokens_per_batch_size`, `[[from, to, depth], ...]`.
            max_num_seqs: requests decoding or in prefill at once.

        Raises:
            ValueError: a depth or schedule that `step_model.Depths` refuses.
        """
        self._fit = fit
        self._depths = Depths(depth, schedule)
        self._rng = rng
        self._max_num_seqs = max_num_seqs
        self._waiting: deque[tuple[Hashable, str, int]] = deque()
        self._entering: list[tuple[Hashable, str, int]] = []
        self._ids: list[Hashable] = []
        self._slots: dict[Hashable, int] = {}
        self._remaining = np.zeros(64, np.int64)
        self._row = np.zeros(64, np.int64)
        self._rows = {route: place * _GRAIN for place, route in enumerate(fit.routes)}
        spreads = {route: np.log1p(shape.output_spread**2) for route, shape in fit.routes.items()}
        self._lengths = {
            route: (float(np.log(shape.output_tokens) - spreads[route] / 2), float(np.sqrt(spreads[route])))
            for route, shape in fit.routes.items()
        }
        self._tables = {used: _acceptance_table(fit, used) for used in set(self._depths.used)}
        self._uniform = np.zeros(0, np.int64)
        self._drawn = 0
        self._depth = depth
        self._end: float | None = None
        self.depth = depth
        self._slowness = 1.0
        self.counters = ClockCounters(depth)

    @property
    def running(self) -> int:
        """Requests in prefill or decoding."""
        return len(self._ids) + len(self._entering)

    @property
    def waiting(self) -> int:
        """Requests not begun."""
        return len(self._waiting)

    def next_at(self) -> float | None:
        """Return when the current step ends, in seconds of virtual time; None when idle."""
        return self._end

    def add(self, id: Hashable, route: str, output_tokens: int | None, now: float) -> None:
        """Take a request in.

        Args:
            id: names it; must be new.
            route: whose shape it has.
            output_tokens: length of its answer, at least 1; None draws one from the route's shape.
            now: the time; not before the end of the last step.

        Raises:
            KeyError: the fit has no such route.
        """
        if route not in self._rows:
            raise KeyError(route)
        tokens = self.draw_length(route) if output_tokens is None else output_tokens
        self._waiting.append((id, route, tokens))
        if self._end is None:
            self._begin(now)

    def slow(self, factor: float, now: float) -> None:
        """Have steps take `factor` times as long from now on, what is left of the current one too."""
        if self._end is not None and self._end > now:
            self._end = now + (self._end - now) * factor / self._slowness
        self._slowness = factor

    def draw_length(self, route: str) -> int:
        """Draw the length of an answer, in tokens."""
        return max(1, round(self._rng.lognormal(*self._lengths[route])))

    def abort(self, id: Hashable) -> None:
        """Drop a request, wherever it is; an unknown one is ignored.

        The step it is in still takes its time.
        """
        slot = self._slots.get(id)
        if slot is not None:
            self._remove(slot)
        elif not (_drop(self._waiting, id) or _drop(self._entering, id)):
            return
        self.counters.aborted += 1

    def advance(self) -> list[Emission]:
        """End the current step, begin the next if there is work, and tell what each request got.

        Raises:
            RuntimeError: no step is going on.
        """
        end = self._step_end()
        size, depth = len(self._ids), self._depth
        ids = self._ids[:]
        accepted, delivered = self._decode()
        done = self._remaining[:size] <= 0
        emissions = [
            Emission(id, tokens, int(depth > 0), depth, hits, False, ended)
            for id, tokens, hits, ended in zip(
                ids, delivered.tolist(), accepted.tolist(), done.tolist(), strict=True
            )
        ]
        emissions += [Emission(id, 1, 0, 0, 0, True, tokens <= 1) for id, _, tokens in self._entering]
        self._finish_step(end, done)
        return emissions

    def advance_finished(self) -> list[Hashable]:
        """Do what `advance` does and return only the ids of finished requests, several times faster.

        Raises:
            RuntimeError: no step is going on.
        """
        end = self._step_end()
        self._decode()
        return self._finish_step(end, self._remaining[: len(self._ids)] <= 0)

    def _step_end(self) -> float:
        if self._end is None:
            raise RuntimeError("the clock is idle: there is no step to end")
        return self._end

    def _begin(self, now: float) -> None:
        room = min(self._fit.step.images_per_step, self._max_num_seqs - len(self._ids), len(self._waiting))
        self._entering = [self._waiting.popleft() for _ in range(room)]
        size = len(self._ids)
        if not size and not self._entering:
            self._end = None
            return
        self._depth = self._depths.at(size)
        prefill: dict[str, int] = {}
        for _, route, _ in self._entering:
            prefill[route] = prefill.get(route, 0) + 1
        self._end = now + self._slowness * self._fit.step_s(size, self._depth, prefill)

    def _decode(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Take this step's tokens off what remains; return accepted draft tokens and delivered tokens."""
        size, depth = len(self._ids), self._depth
        remaining = self._remaining[:size]
        if depth:
            accepted = self._tables[depth][self._row[:size] + self._draw(size)]
            delivered = np.minimum(accepted + 1, remaining)
            self.counters.histogram[: depth + 1] += np.bincount(accepted, minlength=depth + 1)
            self.counters.drafts += size
            self.counters.draft_tokens += size * depth
            self.counters.generation_tokens += int(delivered.sum())
        else:
            accepted, delivered = np.zeros(size, np.int64), np.ones(size, np.int64)
            self.counters.generation_tokens += size
        remaining -= delivered
        return accepted, delivered

    def _finish_step(self, end: float, done: NDArray[np.bool_]) -> list[Hashable]:
        counters = self.counters
        counters.steps += 1
        finished = []
        # From the back: a removal moves the last request into the gap.
        for slot in np.flatnonzero(done)[::-1].tolist():
            finished.append(self._ids[slot])
            self._remove(slot)
        finished.reverse()
        for id, route, tokens in self._entering:
            counters.prompt_tokens += self._fit.routes[route].prompt_tokens
            counters.generation_tokens += 1
            if tokens <= 1:
                finished.append(id)
            else:
                self._enter(id, route, tokens - 1)
        counters.finished += len(finished)
        self._begin(end)
        return finished

    def _enter(self, id: Hashable, route: str, remaining: int) -> None:
        slot = len(self._ids)
        if slot == len(self._remaining):
            self._remaining = np.concatenate([self._remaining, np.zeros_like(self._remaining)])
            self._row = np.concatenate([self._row, np.zeros_like(self._row)])
        self._ids.append(id)
        self._slots[id] = slot
        self._remaining[slot] = remaining
        self._row[slot] = self._rows[route]

    def _remove(self, slot: int) -> None:
        last = self._ids.pop()
        if slot < len(self._ids):
            del self._slots[self._ids[slot]]
            self._ids[slot] = last
            self._slots[last] = slot
            self._remaining[slot] = self._remaining[len(self._ids)]
            self._row[slot] = self._row[len(self._ids)]
        else:
            del self._slots[last]

    def _draw(self, size: int) -> NDArray[np.int64]:
        if self._drawn + size > len(self._uniform):
            self._uniform = self._rng.integers(0, _GRAIN, max(size, _BLOCK))
            self._drawn = 0
        self._drawn += size
        return self._uniform[self._drawn - size : self._drawn]


def _acceptance_table(fit: Fit, depth: int) -> NDArray[np.int64]:
    """Accepted draft tokens of equally likely outcomes, `_GRAIN` of them a route."""
    outcome = (np.arange(_GRAIN) + 0.5) / _GRAIN
    rows = [
        (outcome[:, None] < np.asarray(shape.acceptance[:depth])).sum(axis=1) for shape in fit.routes.values()
    ]
    return np.concatenate(rows).astype(np.int64)


def _drop(requests: deque[tuple[Hashable, str, int]] | list[tuple[Hashable, str, int]], id: Hashable) -> bool:
    for request in requests:
        if request[0] == id:
            requests.remove(request)
            return True
    return False
