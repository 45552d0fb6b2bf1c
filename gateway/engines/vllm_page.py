"""vLLM's metrics page as the engines that ship along write it, with vLLM's names and labels."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from gateway.wire.vllm.engine import SIMULATED_MARK, Simulated

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client.core import Metric

    from gateway.model import Speculation

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


def _bounds(numbers: str) -> tuple[float, ...]:
    return tuple(map(float, numbers.split()))


# By name: vLLM's help text and bucket bounds.
_LATENCIES = {
    "time_to_first_token_seconds": (
        "Histogram of time to first token in seconds.",
        _bounds(
            "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
        ),
    ),
    "inter_token_latency_seconds": (
        "Histogram of inter-token latency in seconds.",
        _bounds("0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80"),
    ),
    "e2e_request_latency_seconds": (
        "Histogram of e2e request latency in seconds.",
        _bounds("0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"),
    ),
}


class LatencyHistogram:
    """A latency histogram of the metrics page, in seconds; its buckets are vLLM's for that name.

    Args:
        name: `time_to_first_token_seconds`, `inter_token_latency_seconds` or `e2e_request_latency_seconds`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.help, self.bounds = _LATENCIES[name]
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """Count a latency."""
        self.counts[bisect.bisect_left(self.bounds, seconds)] += times
        self.total += seconds * times


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """What an engine has done since it started, and what it has to do now.

    Attributes:
        running: requests being worked on.
        waiting: requests received and not begun.
        prompt_tokens: prompt tokens read since the start.
        generation_tokens: tokens written since the start.
        finished: finished requests by finish reason (FINISH_REASONS).
        awake: not put to sleep; None where the engine cannot sleep, and exports nothing of it.
        kv_usage: share of the KV cache in use, 0 to 1; None where there is no such cache.
        speculation: None without a speculative config.
        latencies: histograms to export.
    """

    running: int = 0
    waiting: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: Mapping[str, int] = field(default_factory=dict)
    awake: bool | None = None
    kv_usage: float | None = None
    speculation: Speculation | None = None
    latencies: Sequence[LatencyHistogram] = ()


def metrics_page(
    counts: EngineCounts, model: str, *, engine: str = "0", simulated: Simulated | None = None
) -> str:
    """Write an engine's GET /metrics page (Prometheus text format 0.0.4).

    A simulated engine's page says so in its first line, and has two series of its own.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(counts, {"engine": engine, "model_name": model}, simulated))
    mark = f"{SIMULATED_MARK}{simulated.fit}\n" if simulated else ""
    return mark + generate_latest(registry).decode()


class _Page(Collector):
    def __init__(self, counts: EngineCounts, labels: Mapping[str, str], simulated: Simulated | None) -> None:
        self._counts = counts
        self._labels = labels
        self._simulated = simulated

    def collect(self) -> Iterator[Metric]:
        counts = self._counts
        if self._simulated:
            clock = "Seconds that the simulated engine's clock has run."
            scale = "Seconds of the simulated engine's clock in a real one."
            yield GaugeMetricFamily("simulated:clock_seconds", clock, self._simulated.clock_s)
            yield GaugeMetricFamily("simulated:time_scale", scale, self._simulated.time_scale)
        if counts.speculation is not None:
            yield from self._drafted(counts.speculation)
        text = "Number of requests in model execution batches."
        yield self._family(GaugeMetricFamily, "num_requests_running", text, counts.running)
        text = "Number of requests waiting to be processed."
        yield self._family(GaugeMetricFamily, "num_requests_waiting", text, counts.waiting)
        if counts.awake is not None:
            text = (
                "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
                "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2."
            )
            states = {"awake": counts.awake, "weights_offloaded": not counts.awake, "discard_all": False}
            yield self._family(GaugeMetricFamily, "engine_sleep_state", text, states, "sleep_state")
        if counts.kv_usage is not None:
            text = "KV-cache usage. 1 means 100 percent usage."
            yield self._family(GaugeMetricFamily, "kv_cache_usage_perc", text, counts.kv_usage)
        text = "Number of prefill tokens processed."
        yield self._family(CounterMetricFamily, "prompt_tokens", text, counts.prompt_tokens)
        text = "Number of generation tokens processed."
        yield self._family(CounterMetricFamily, "generation_tokens", text, counts.generation_tokens)
        finished = {reason: counts.finished.get(reason, 0) for reason in FINISH_REASONS}
        text = "Count of successfully processed requests."
        yield self._family(CounterMetricFamily, "request_success", text, finished, "finished_reason")
        for latency in counts.latencies:
            family = HistogramMetricFamily(f"vllm:{latency.name}", latency.help, labels=list(self._labels))
            bounds = zip(
                [*map(str, latency.bounds), "+Inf"], itertools.accumulate(latency.counts), strict=True
            )
            family.add_metric(list(self._labels.values()), list(bounds), latency.total)
            yield family

    def _drafted(self, speculation: Speculation) -> Iterator[Metric]:
        positions = {str(place): count for place, count in enumerate(speculation.accepted_per_position)}
        for name, text, value, label in (
            ("drafts", "Number of spec decoding drafts.", speculation.drafts, ""),
            ("draft_tokens", "Number of draft tokens.", speculation.draft_tokens or 0, ""),
            ("accepted_tokens", "Number of accepted tokens.", speculation.accepted, ""),
            ("accepted_tokens_per_pos", "Accepted tokens per draft position.", positions, "position"),
        ):
            yield self._family(CounterMetricFamily, f"spec_decode_num_{name}", text, value, label)

    def _family(
        self,
        kind: type[GaugeMetricFamily | CounterMetricFamily],
        name: str,
        text: str,
        value: float | Mapping[str, float],
        label: str = "",
    ) -> Metric:
        """Make a family of one sample, or of one more `label` and a sample for each of its values."""
        values = value.items() if isinstance(value, Mapping) else [("", value)]
        family = kind(f"vllm:{name}", text, labels=[*self._labels, *([label] if label else [])])
        for place, count in values:
            family.add_metric([*self._labels.values(), *([place] if label else [])], count)
        return family
