"""What a simulated engine's steps cost and what its requests are like: a fit, read from JSON."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from gateway.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_DEPTH = 16
_FITS = Path(__file__).parent / "fits"

_Cost = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class StepCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one engine step costs; every `_ms` is milliseconds.

    Attributes:
        base_ms: a target forward pass, however few requests are in it.
        request_ms: each decoding request adds so much to it.
        verify_ms, growth: verifying n draft tokens costs `verify_ms * n ** growth` on top.
        draft_ms, draft_request_ms: a draft pass (there are as many as the depth), and each request in it.
        crowd_ms: each decoding request slows each prefill in the same step by so much.
        images_per_step: requests that may be prefilled in one step.
    """

    base_ms: _Cost
    request_ms: _Cost
    verify_ms: _Cost
    growth: Annotated[float, msgspec.Meta(ge=1, le=4)]
    draft_ms: _Cost
    draft_request_ms: _Cost
    crowd_ms: _Cost
    images_per_step: _Count

    def target_s(self, requests: float, depth: int) -> float:
        """Seconds of the target's forward pass over `requests` with `depth` draft tokens each."""
        if requests <= 0:
            return 0.0
        verified = self.verify_ms * (requests * depth) ** self.growth if depth else 0.0
        return (self.base_ms + self.request_ms * requests + verified) / 1000

    def draft_s(self, requests: float, depth: int) -> float:
        """Seconds of the `depth` draft passes over `requests`."""
        if requests <= 0:
            return 0.0
        return depth * (self.draft_ms + self.draft_request_ms * requests) / 1000


class RouteShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What requests of one route are like.

    Attributes:
        output_tokens: mean length of an answer, in tokens.
        output_spread: standard deviation of that length over its mean; lengths are log-normal.
        prompt_tokens: prompt tokens of a request, its image's among them.
        prefill_ms: what its prefill adds to a step, in milliseconds.
        acceptance: for each draft position, the share of drafts in which it and all before it are accepted.
    """

    output_tokens: Annotated[float, msgspec.Meta(ge=1, le=1e5)]
    output_spread: Annotated[float, msgspec.Meta(ge=0, le=5)]
    prompt_tokens: _Count
    prefill_ms: _Cost
    acceptance: Annotated[tuple[_Share, ...], msgspec.Meta(min_length=MAX_DEPTH, max_length=MAX_DEPTH)]

    def __post_init__(self) -> None:
        if any(later > earlier for earlier, later in itertools.pairwise(self.acceptance)):
            raise ValueError("acceptance rises with the position: a token counts only with all before it")

    def acceptance_length(self, depth: int) -> float:
        """Mean tokens of a step: 1 + accepted tokens / drafts."""
        return 1 + sum(self.acceptance[:depth])

    def steps(self, depth: int) -> float:
        """Mean decoding steps of an answer whose first token came with its prefill.

        The last step runs past the end by the mean overshoot of a renewal process, E[X(X-1)] / 2E[X].
        """
        length = self.acceptance_length(depth)
        pairs = 2 * sum(position * share for position, share in enumerate(self.acceptance[:depth], start=1))
        return max(0.0, self.output_tokens - 1 + pairs / (2 * length)) / length


class Fit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One GPU with one model, as a simulation; `source` says where its figures come from."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    source: Annotated[str, msgspec.Meta(min_length=1)]
    step: StepCosts
    routes: Annotated[dict[str, RouteShape], msgspec.Meta(min_length=1)]

    @classmethod
    def load(cls, path: Path) -> Fit:
        """Read a fit's file.

        Raises:
            ConfigError: the file cannot be read, or is no fit.
        """
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError([f"{path}: {error}"]) from error

    @classmethod
    def builtin(cls, name: str) -> Fit:
        """Return a fit that ships along.

        Raises:
            ConfigError: none has that name.
        """
        if name not in builtin_fits():
            raise ConfigError([f"no fit is called {name!r}; there are: {', '.join(builtin_fits())}"])
        return cls.load(_FITS / f"{name}.json")

    def step_s(self, requests: float, depth: int, prefill: Mapping[str, float]) -> float:
        """Seconds of one step: `requests` decoding at `depth`, and so many prefilled by route."""
        seconds = self.step.target_s(requests, depth) + self.step.draft_s(requests, depth)
        crowd = self.step.crowd_ms * requests
        return seconds + sum(
            (self.routes[route].prefill_ms + crowd) * count / 1000 for route, count in prefill.items()
        )


def builtin_fits() -> list[str]:
    """Name the fits that ship along."""
    return sorted(path.stem for path in _FITS.glob("*.json"))


class Depths:
    """Which depth an engine runs at which batch size.

    Without a schedule it is always `depth`. A schedule is vLLM's `num_speculative_tokens_per_batch_size`:
    inclusive `[from, to, depth]`; depths are clamped to `depth`, and a gap keeps the depth before it.

    Raises:
        ValueError: depth out of 0 to MAX_DEPTH, or a schedule that is not ascending from 1.
    """

    def __init__(self, depth: int, schedule: Sequence[Sequence[int]] | None = None) -> None:
        if not 0 <= depth <= MAX_DEPTH:
            raise ValueError(f"the depth must be 0 to {MAX_DEPTH}, not {depth}")
        self._starts = [1]
        self._depths = [depth]
        if schedule is not None:
            self._starts, self._depths = _read_schedule(depth, schedule)

    @property
    def used(self) -> list[int]:
        """The depths, in order of batch size."""
        return self._depths

    @property
    def starts(self) -> list[int]:
        """The batch sizes from which they hold."""
        return self._starts

    def at(self, batch: float) -> int:
        """Return the depth for a batch size."""
        found = self._depths[0]
        for start, depth in zip(self._starts, self._depths, strict=True):
            if batch < start:
                break
            found = depth
        return found


def _read_schedule(limit: int, schedule: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    starts: list[int] = []
    depths: list[int] = []
    end = 0
    if not isinstance(schedule, (list, tuple)):
        raise ValueError(f"a schedule is a list of [from, to, depth], not {schedule!r}")
    for entry in schedule:
        if (
            not isinstance(entry, (list, tuple))
            or len(entry) != 3
            or not all(isinstance(value, int) for value in entry)
        ):
            raise ValueError(f"a schedule's entry is [from, to, depth], not {entry!r}")
        first, last, depth = entry
        if first <= end or last < first or depth < 0:
            raise ValueError(f"the ranges of a schedule ascend and do not overlap: {entry!r}")
        starts.append(first)
        depths.append(min(depth, limit))
        end = last
    if starts[:1] != [1]:
        raise ValueError("a schedule's first range starts at 1")
    return starts, depths


def throughput(
    fit: Fit,
    depth: int,
    counts: Mapping[str, float],
    *,
    schedule: Sequence[Sequence[int]] | None = None,
    max_num_seqs: int = 1024,
) -> dict[str, float]:
    """Return the tokens per second, by route, of ONE simulated engine that always has `counts` requests.

    The mean field of the clock model. By Little's law a route of n requests, each of which is one step in
    prefill, S in decoding and W waiting, finishes n / (1 + S + W) requests a step; W is what keeps prefill
    within the images of a step.
    """
    shapes = {route: fit.routes[route] for route, count in counts.items() if count > 0}
    if not shapes:
        return dict.fromkeys(counts, 0.0)
    depths = Depths(depth, schedule)
    steps = [{route: shape.steps(used) for route, shape in shapes.items()} for used in depths.used]
    share = _settled_share(fit, counts, steps, depths, max_num_seqs)
    mixed = {route: _harmonic([one[route] for one in steps], share) for route in shapes}
    finishing = _finishing(fit, counts, mixed, max_num_seqs)
    requests = sum(rate * mixed[route] for route, rate in finishing.items())
    seconds = sum(
        weight * fit.step_s(requests, used, finishing)
        for weight, used in zip(share, depths.used, strict=True)
        if weight
    )
    rates = {route: rate * shapes[route].output_tokens / seconds for route, rate in finishing.items()}
    return {route: rates.get(route, 0.0) for route in counts}


def _finishing(
    fit: Fit, counts: Mapping[str, float], steps: Mapping[str, float], max_num_seqs: int
) -> dict[str, float]:
    """Requests by route that finish in a step."""

    def rates(wait: float) -> dict[str, float]:
        return {route: counts[route] / (1 + own + wait) for route, own in steps.items()}

    def fits(wait: float) -> bool:
        found = rates(wait)
        running = sum(rate * (1 + steps[route]) for route, rate in found.items())
        return sum(found.values()) <= fit.step.images_per_step and running <= max_num_seqs

    if fits(0.0):
        return rates(0.0)
    low, high = 0.0, 1.0
    while not fits(high):
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return rates(high)


def _settled_share(
    fit: Fit,
    counts: Mapping[str, float],
    steps: Sequence[Mapping[str, float]],
    depths: Depths,
    max_num_seqs: int,
) -> list[float]:
    """Share of the steps at each depth of a schedule, in which its batch size settles.

    Either a depth's own batch is in its range, or the batch swings over a bound between two.
    """

    def batch(share: Sequence[float]) -> float:
        mixed = {route: _harmonic([one[route] for one in steps], share) for route in steps[0]}
        finishing = _finishing(fit, counts, mixed, max_num_seqs)
        return sum(rate * mixed[route] for route, rate in finishing.items())

    def between(place: int, later: float) -> list[float]:
        share = [0.0] * len(steps)
        share[place] = 1 - later
        if later:
            share[place + 1] = later
        return share

    for place, bound in enumerate(depths.starts[1:]):
        if batch(between(place, 0.0)) < bound:
            return between(place, 0.0)
        if batch(between(place, 1.0)) < bound:
            low, high = 0.0, 1.0
            for _ in range(30):
                middle = (low + high) / 2
                low, high = (low, middle) if batch(between(place, middle)) < bound else (middle, high)
            return between(place, high)
    return between(len(steps) - 1, 0.0)


def _harmonic(values: Sequence[float], share: Sequence[float]) -> float:
    rate = sum(weight / value if value else 0.0 for value, weight in zip(values, share, strict=True))
    return 1 / rate if rate else 0.0
