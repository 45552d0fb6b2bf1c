"""Lines about the demonstration, from the gateway's metrics."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Sequence

_PREFIX = "ocr_gateway_"
_HEADER_EVERY = 20
_CELL = 18


@dataclass(frozen=True)
class MetricsReading:
    """The gateway's counters at a moment; `at` is in seconds of any clock.

    Attributes:
        chosen: requests sent to an engine, by route and depth.
        drafts: by route; only those that engines told.
        accepted: accepted draft tokens of them.
        tokens: output tokens of all answers.
        load: requests on engines and in queues now.
    """

    at: float
    chosen: Counter[tuple[str, int]]
    drafts: Counter[str]
    accepted: Counter[str]
    tokens: float
    load: int


def read(page: str, at: float) -> MetricsReading:
    """Read the gateway's metrics page as it was at a time."""
    chosen: Counter[tuple[str, int]] = Counter()
    drafts: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    tokens = load = 0.0
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = sample.labels
            match sample.name.removeprefix(_PREFIX):
                case "chosen_depth_total":
                    chosen[labels["route"], int(labels["depth"])] += int(sample.value)
                case "spec_drafts_total" if labels["source"] != "stream":
                    drafts[labels["route"]] += int(sample.value)
                case "spec_accepted_tokens_total" if labels["source"] != "stream":
                    accepted[labels["route"]] += int(sample.value)
                case "completion_tokens_total":
                    tokens += sample.value
                case "in_flight" | "waiting":
                    load += sample.value
    return MetricsReading(at, chosen, drafts, accepted, tokens, int(load))


@dataclass(frozen=True)
class RecentRequests:
    """One route between two readings.

    Attributes:
        depth: the one that most requests got; None where there were none.
        share: of the requests that got it.
        requests: how many there were.
        acceptance_length: 1 + accepted tokens / drafts; None without a draft.
    """

    depth: int | None
    share: float
    requests: int
    acceptance_length: float | None


def recent(route: str, before: MetricsReading, now: MetricsReading) -> RecentRequests:
    """Return what happened to a route's requests between two readings."""
    chosen = {depth: count for (of, depth), count in (now.chosen - before.chosen).items() if of == route}
    requests = sum(chosen.values())
    depth = max(chosen, key=chosen.__getitem__, default=None)
    drafts = now.drafts[route] - before.drafts[route]
    accepted = now.accepted[route] - before.accepted[route]
    return RecentRequests(
        depth,
        chosen[depth] / requests if depth is not None else 0.0,
        requests,
        1 + accepted / drafts if drafts else None,
    )


class StatusLines:
    """Turns readings into lines, each of which says that it is simulated.

    Each tells of the time since the reading before the last `window_s`.
    """

    def __init__(self, routes: Sequence[str], window_s: float) -> None:
        self._routes = routes
        self._window_s = window_s
        self._readings: deque[MetricsReading] = deque()
        self._first = 0.0
        self._printed = 0

    def next(self, now: MetricsReading) -> list[str]:
        """Return the lines of one more reading: one, under a heading every 20 lines."""
        readings = self._readings
        if not readings:
            self._first = now.at
        readings.append(now)
        while len(readings) > 2 and readings[1].at <= now.at - self._window_s:
            readings.popleft()
        before = readings[0]
        seconds = now.at - before.at
        minutes, rest = divmod(int(now.at - self._first), 60)
        rate = (now.tokens - before.tokens) / seconds if seconds else 0.0
        cells = [
            f"{minutes}:{rest:02}".rjust(5) + f"{now.load:>6}",
            *(_cell(recent(route, before, now)) for route in self._routes),
            f"{rate:>8,.0f}",
        ]
        heading = [" time  load", *(route.ljust(_CELL) for route in self._routes), "tokens/s"]
        lines = [heading, cells] if self._printed % _HEADER_EVERY == 0 else [cells]
        self._printed += 1
        return [f"simulated {' | '.join(line)}" for line in lines]


def _cell(of: RecentRequests) -> str:
    if of.depth is None:
        return "-".ljust(_CELL)
    length = "-" if of.acceptance_length is None else f"{of.acceptance_length:.2f}"
    return f"depth {of.depth} {of.share:>4.0%} {length:>5}".ljust(_CELL)
