"""The only user of prometheus_client: what happened, as series."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

import gateway

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from gateway.model import SortDecision, Usage
    from gateway.state import State

# A creation time beside every counter would double the page; nothing here asks for them.
disable_created_metrics()  # type: ignore[no-untyped-call]

Stage = Literal["receive", "sort", "choose", "forward"]

_PREFIX = "ocr_gateway_"
_DURATIONS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
_OVERHEADS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)


class _StateCollector(Collector):
    """Gauges read from the state when scraped, so that they cannot drift from it."""

    def __init__(self, state: State) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        snapshot = self._state.snapshot()
        in_flight = GaugeMetricFamily(
            f"{_PREFIX}in_flight", "Requests that occupy an engine now", labels=["route"]
        )
        for route, count in snapshot.in_flight.items():
            in_flight.add_metric([route], count)
        up = GaugeMetricFamily(
            f"{_PREFIX}engine_up", "Whether the engine answers its health check", labels=["pool", "engine"]
        )
        for view in snapshot.engines:
            up.add_metric([view.engine.pool, view.engine.name], view.up)
        yield in_flight
        yield up
        build = GaugeMetricFamily(f"{_PREFIX}build_info", "The gateway's version", labels=["version"])
        build.add_metric([gateway.__version__], 1)
        yield build


class Metrics:
    """The gateway's series; every label value is a configured name or a small closed set."""

    def __init__(self, state: State) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_StateCollector(state))
        self._requests = self._counter(
            "requests", "Requests by final status; 499: the client left", ["route", "pool", "code"]
        )
        self._duration = self._histogram(
            "request_duration_seconds", "From receipt to the last byte", ["route", "pool"]
        )
        self._first_token = self._histogram(
            "time_to_first_token_seconds",
            "From receipt to the first event that carries output (streams)",
            ["route", "pool"],
        )
        self._overhead = self._histogram(
            "overhead_seconds", "Time the gateway itself took", ["stage"], _OVERHEADS
        )
        self._sorted = self._counter("sort_decisions", "Routes given", ["route", "reason"])
        self._prompt_tokens = self._counter("prompt_tokens", "Input tokens", ["route", "pool"])
        self._completion_tokens = self._counter("completion_tokens", "Output tokens", ["route", "pool"])

    def sorted(self, decision: SortDecision) -> None:
        """Count a sorting decision."""
        self._sorted.labels(decision.route, decision.reason).inc()

    def took(self, stage: Stage, seconds: float) -> None:
        """Note what a stage of the path cost."""
        self._overhead.labels(stage).observe(seconds)

    def finished(
        self,
        *,
        route: str,
        pool: str,
        code: int,
        seconds: float,
        first_token_s: float | None,
        usage: Usage | None,
    ) -> None:
        """Count one request's end; `route` and `pool` are empty where they were not known yet."""
        self._requests.labels(route, pool, code).inc()
        self._duration.labels(route, pool).observe(seconds)
        if first_token_s is not None:
            self._first_token.labels(route, pool).observe(first_token_s)
        if usage is not None:
            self._prompt_tokens.labels(route, pool).inc(usage.prompt_tokens)
            self._completion_tokens.labels(route, pool).inc(usage.completion_tokens)

    def page(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics page and its content type for a scraper's Accept header."""
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # a header that is none
            encode, content_type = choose_encoder("")
        return encode(self.registry), content_type

    def _counter(self, name: str, text: str, labels: list[str]) -> Counter:
        return Counter(_PREFIX + name, text, labels, registry=self.registry)

    def _histogram(
        self, name: str, text: str, labels: list[str], buckets: tuple[float, ...] = _DURATIONS
    ) -> Histogram:
        return Histogram(_PREFIX + name, text, labels, buckets=buckets, registry=self.registry)
