"""The gateway's metrics, by name: what happened, as series. The only user of prometheus_client."""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from collections import defaultdict
from http import HTTPStatus
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

import gateway
from gateway.policy.account.acceptance import Source
from gateway.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client import Metric

    from gateway.model import RequestRecord
    from gateway.policy.account.acceptance import Sample
    from gateway.state.fleet import Fleet
    from gateway.state.snapshot import Snapshot
    from gateway.state.store import State

_PREFIX = "ocr_gateway_"
_CODES = frozenset((*map(int, HTTPStatus), 499))
_DURATIONS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
# Tokens per step; 1 is a step of which no draft was accepted.
_LENGTHS = (1, 1.2, 1.4, 1.6, 1.8, 2, 2.2, 2.4, 2.6, 2.8, 3, 3.25, 3.5, 3.75, 4, 4.5, 5, 6, 8, 12)
# Lines of the page that are written at once, and engines whose routes' are.
_SLICE, _ENGINES = 256, 16
_OVERHEADS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)


class _Some(Collector):
    """What is given."""

    def __init__(self, *metrics: Metric) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


class _StateCollector(Collector):
    """Gauges read from the state when scraped, so that they cannot drift from it."""

    def __init__(self, state: State) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        snapshot, fleet = self._state.snapshot(), self._state.fleet
        yield from self._of_routes(snapshot, fleet)
        yield from self._of_engines(snapshot)
        yield from self._of_counters(snapshot)
        yield from self._of_speculation()
        yield from self._at_work(snapshot, fleet)
        if fleet.config.auth.keys_file:
            yield from self._of_keys()
        depths = _gauge("pool_depth", "The pool's num_speculative_tokens", "pool")
        crossovers = _gauge(
            "crossover_load", "Requests per engine from which another depth wins", "pool", "route"
        )
        useful = _gauge(
            "useful_load", "Requests per engine up to which the pool serves the route well", "pool", "route"
        )
        for pool, table in fleet.tables.items():
            depths.add_metric([pool], fleet.config.pools[pool].depth)
            for index, route in enumerate(fleet.routes):
                if fleet.serves[pool][index]:
                    useful.add_metric([pool, route], fleet.useful[pool][index])
                    if (crossover := table.crossover(index)).left:
                        crossovers.add_metric([pool, route], crossover.load)
        budget = _gauge("retry_budget_remaining", "Retries that may be made at once")
        budget.add_metric([], snapshot.retry_budget)
        build = _gauge("build_info", "The gateway's version, and the model it serves", "version", "model")
        build.add_metric([gateway.__version__, fleet.config.model], 1)
        held = _gauge("inflight_bytes", "Bytes of bodies, images and answers that requests hold in memory")
        held.add_metric([], self._state.memory.total)
        limit = _gauge("inflight_bytes_limit", "Bytes that they may hold; beyond, requests are refused")
        limit.add_metric([], self._state.memory.limit)
        tasks = _gauge("tasks", "Tasks of the event loop")
        tasks.add_metric([], _tasks())
        lines = _counter("log_lines_lost", "Log lines that standard error did not take")
        lines.add_metric([], logs.lost())
        yield from (depths, crossovers, useful, budget, held, limit, build, tasks, lines)

    def _of_routes(self, snapshot: Snapshot, fleet: Fleet) -> Iterator[Metric]:
        in_flight = _gauge("in_flight", "Requests that occupy an engine now", "route")
        waiting = _gauge("waiting", "Requests that wait for an engine", "route")
        oldest = _gauge("oldest_wait_seconds", "How long the first in the queue has waited", "route")
        limit = _gauge("queue_limit_seconds", "The longest wait: routes.*.queue.max_wait_s", "route")
        for name, route in snapshot.routes.items():
            limit.add_metric([name], fleet.config.routes[name].queue.max_wait_s)
            in_flight.add_metric([name], route.in_flight)
            waiting.add_metric([name], route.waiting)
            oldest.add_metric([name], route.oldest_wait_s)
        yield from (in_flight, waiting, oldest, limit)

    def _of_engines(self, snapshot: Snapshot) -> Iterator[Metric]:
        labels = ("pool", "engine")
        up = _gauge("engine_up", "Whether the engine answers, is awake and takes work", *labels)
        load = _gauge("engine_load", "Requests there: ours, and those others sent", *labels)
        breaker = _gauge("engine_breaker_state", "0 closed, 1 half-open, 2 open", *labels)
        age = _gauge("engine_scrape_age_seconds", "Age of the last reading of its metrics", *labels)
        mismatch = _gauge("engine_config_mismatch", "1: it differs from its pool's configuration", *labels)
        rate = _gauge("engine_tokens_per_second", "Output tokens per second, by its own counter", *labels)
        ratio = _gauge("engine_profile_ratio", "Its tokens per second against its profile's", *labels)
        for status in snapshot.engines:
            names = [status.view.engine.pool, status.view.engine.name]
            up.add_metric(names, status.view.up)
            load.add_metric(names, status.view.load)
            breaker.add_metric(names, status.phase)
            mismatch.add_metric(names, bool(status.mismatch))
            if status.reading_age_s is not None:
                age.add_metric(names, status.reading_age_s)
                rate.add_metric(names, status.rate)
            if status.ratio is not None:
                ratio.add_metric(names, status.ratio)
        yield from (up, load, breaker, age, mismatch, rate, ratio)

    def _at_work(self, snapshot: Snapshot, fleet: Fleet) -> Iterator[Metric]:
        """What engines of the configured pools do now; those of a pool that has gone end their work."""
        depth = _gauge("engine_depth", "The depth it runs at under its load", "pool", "engine")
        busy = _gauge("engine_busy_ratio", "Tokens per second at its load, over the most", "pool", "engine")
        everywhere = [snapshot.routes[route].in_flight for route in fleet.routes]
        for status in snapshot.engines:
            view = status.view
            pool = view.engine.pool
            if pool in fleet.serves:
                depth.add_metric([pool, view.engine.name], fleet.depth(pool, view.load))
                busy.add_metric([pool, view.engine.name], fleet.busy(pool, view.own, view.load, everywhere))
        yield from (depth, busy)
        text = "This gateway's requests there, by route"
        for first in range(0, len(snapshot.engines) or 1, _ENGINES):  # in parts: it is by far the longest
            in_flight = _gauge("engine_in_flight", text, "pool", "engine", "route")
            for status in snapshot.engines[first : first + _ENGINES]:
                view = status.view
                pool = view.engine.pool
                if pool in fleet.serves:
                    for route, serves, own in zip(fleet.routes, fleet.serves[pool], view.own, strict=True):
                        if serves or own:
                            in_flight.add_metric([pool, view.engine.name, route], own)
            yield in_flight

    def _of_keys(self) -> Iterator[Metric]:
        requests = _counter(
            "key_requests",
            "Requests by API key; no name: without a key, or with an unknown one",
            "key",
            "code",
        )
        images = _counter("key_image_bytes", "Bytes of the images that came, decoded", "key")
        for (key, code), count in self._state.quotas.requests.items():
            requests.add_metric([key, str(code)], count)
        for key, count in self._state.quotas.image_bytes.items():
            images.add_metric([key], count)
        yield from (requests, images)

    def _of_speculation(self) -> Iterator[Metric]:
        labels = ("route", "pool", "source")
        drafts = _counter("spec_drafts", "Drafts, by where that is known from", *labels)
        draft_tokens = _counter("spec_draft_tokens", "Draft tokens; unknown of streams", *labels)
        accepted = _counter("spec_accepted_tokens", "Accepted draft tokens", *labels)
        per_position = _counter(
            "spec_accepted_tokens_per_position",
            "Accepted draft tokens by position, where the engine tells",
            "route",
            "pool",
            "position",
        )
        positions: defaultdict[tuple[str, str, int], float] = defaultdict(float)
        for (route, pool, source), tally in self._state.speculation.by_key.items():
            drafts.add_metric([route, pool, source], tally.drafts)
            accepted.add_metric([route, pool, source], tally.accepted)
            if source is not Source.STREAM:
                draft_tokens.add_metric([route, pool, source], tally.draft_tokens)
            for position, count in enumerate(tally.positions):
                positions[route, pool, position] += count
        for (route, pool, position), count in positions.items():
            per_position.add_metric([route, pool, str(position)], count)
        yield from (drafts, draft_tokens, accepted, per_position)

    def _of_counters(self, snapshot: Snapshot) -> Iterator[Metric]:
        """What engines with a speculative config counted themselves, and told without its adding up."""
        labels = ("pool", "engine")
        drafts = _counter("engine_spec_drafts", "Drafts, by the engine's own counter", *labels)
        tokens = _counter("engine_spec_draft_tokens", "Draft tokens, by its own counter", *labels)
        accepted = _counter("engine_spec_accepted_tokens", "Accepted tokens, by its own counter", *labels)
        rejected = _counter(
            "engine_speculation_rejected",
            "Answers whose figures of speculation are not counted: they do not add up",
            *labels,
            "reason",
        )
        for status in snapshot.engines:
            names = [status.view.engine.pool, status.view.engine.name]
            for fault, count in status.rejected.items():
                rejected.add_metric([*names, fault], count)
            if sums := status.speculation:
                drafts.add_metric(names, sums.drafts)
                tokens.add_metric(names, sums.draft_tokens or 0.0)
                accepted.add_metric(names, sums.accepted)
        yield from (drafts, tokens, accepted, rejected)


def _tasks() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:  # no loop runs in this thread
        return 0


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(_PREFIX + name, text, labels=labels)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(_PREFIX + name, text, labels=labels)


# The library's own counters and histograms take locks and check every value: with the look-ups of their
# labels a request's dozen took 30 us, and takes 5 so. All of it belongs to the event loop's thread.


class _Counter(Collector):
    """A counter's series by their label values."""

    def __init__(self, registry: CollectorRegistry, name: str, text: str, *labels: str) -> None:
        self._of = name, text, *labels
        self._series: defaultdict[tuple[str, ...], float] = defaultdict(float)
        if not labels:
            self._series[()] = 0.0
        registry.register(self)

    def add(self, amount: float, *labels: str) -> None:
        self._series[labels] += amount

    def collect(self) -> Iterator[Metric]:
        family = _counter(*self._of)
        for labels, count in self._series.items():
            family.add_metric(labels, count)
        yield family


class _Histogram(Collector):
    """A histogram's series by their label values: the counts of each by bucket, and its sum."""

    def __init__(
        self,
        registry: CollectorRegistry,
        name: str,
        text: str,
        *labels: str,
        bounds: tuple[float, ...] = _DURATIONS,
    ) -> None:
        self._of = _PREFIX + name, text
        self._labels = labels
        self._bounds = (*bounds, math.inf)
        self._ends = [floatToGoString(bound) for bound in self._bounds]  # type: ignore[no-untyped-call]
        self._series: dict[tuple[str, ...], list[float]] = {}
        registry.register(self)

    def observe(self, value: float, *labels: str) -> None:
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = [0.0] * (len(self._bounds) + 1)
        series[bisect_left(self._bounds, value)] += 1
        series[-1] += value

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(*self._of, labels=self._labels)
        for labels, (*counts, total) in self._series.items():
            family.add_metric(labels, list(zip(self._ends, accumulate(counts), strict=True)), total)
        yield family


class Metrics:
    """The gateway's series; every label value is a configured name or a small closed set."""

    def __init__(self, state: State) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_StateCollector(state))
        ProcessCollector(registry=self.registry)
        self._requests = _Counter(
            self.registry,
            "requests",
            "Requests by final status; 499: the client left",
            "route",
            "pool",
            "code",
        )
        self._duration = _Histogram(
            self.registry, "request_duration_seconds", "From receipt to the last byte", "route", "pool"
        )
        self._first_token = _Histogram(
            self.registry,
            "time_to_first_token_seconds",
            "From receipt to the first event that carries output (streams)",
            "route",
            "pool",
        )
        self._queued = _Histogram(
            self.registry,
            "queue_seconds",
            "Time in the queue: 0 for those that need not wait, no pool for those that waited in vain",
            "route",
            "pool",
        )
        self._overhead = _Histogram(
            self.registry, "overhead_seconds", "Time the gateway itself took", "stage", bounds=_OVERHEADS
        )
        self._sorted = _Counter(self.registry, "sort_decisions", "Routes given", "route", "reason")
        self._chosen = _Counter(
            self.registry, "chosen_depth", "Requests sent to an engine at a depth", "route", "depth"
        )
        self._shed = _Counter(
            self.registry, "shed", "Requests refused for want of an engine", "route", "reason"
        )
        self._retries = _Counter(
            self.registry, "retries", "Attempts made again, by what failed", "route", "reason"
        )
        self._reloads = _Counter(self.registry, "config_reloads", "Changed configurations taken over")
        self._bad_reloads = _Counter(
            self.registry,
            "config_reload_failures",
            "Changed configurations that were invalid and changed nothing",
        )
        self._prompt_tokens = _Counter(self.registry, "prompt_tokens", "Input tokens", "route", "pool")
        self._completion_tokens = _Counter(
            self.registry, "completion_tokens", "Output tokens", "route", "pool"
        )
        self._lengths = _Histogram(
            self.registry,
            "acceptance_length",
            "Mean acceptance length of each request, for spread",
            "route",
            "pool",
            "source",
            bounds=_LENGTHS,
        )
        state.speculation.listen(self.sampled)

    def sampled(self, route: str, pool: str, sample: Sample) -> None:
        """Note the acceptance length of one request; its sums are the state's."""
        if sample.source is Source.ENGINE or sample.length is None:
            return
        self._lengths.observe(sample.length, route, pool, sample.source)

    def shed(self, route: str, reason: str) -> None:
        """Count a request that gets no engine."""
        self._shed.add(1, route, reason)

    def reloaded(self, *, valid: bool) -> None:
        """Count a changed configuration."""
        (self._reloads if valid else self._bad_reloads).add(1)

    def finished(self, record: RequestRecord) -> None:
        """Count one request; the labels `route` and `pool` are empty where they were not known yet."""
        route, pool, code = record.route, record.pool or "", record.code
        if record.reason:
            self._sorted.add(1, route, record.reason)
        for depth in record.depths:
            self._chosen.add(1, route, str(depth))
        for failure in record.retried:
            self._retries.add(1, route, failure)
        for stage, seconds in record.overhead.items():
            self._overhead.observe(seconds, stage)
        # An engine may answer with any number.
        self._requests.add(1, route, pool, str(code) if code in _CODES else f"{code // 100}xx")
        self._duration.observe(record.seconds, route, pool)
        if record.engine or record.waited_s:
            self._queued.observe(record.waited_s, route, pool)
        if record.first_token_s is not None:
            self._first_token.observe(record.first_token_s, route, pool)
        if (usage := record.usage) is not None:
            self._prompt_tokens.add(usage.prompt_tokens, route, pool)
            self._completion_tokens.add(usage.completion_tokens, route, pool)

    async def page(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics page and its content type for a scraper's Accept header.

        The event loop goes on meanwhile: with 256 engines and 16 routes the page takes 0.2 s, and no slice of
        it more than some milliseconds.
        """
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # a header that is none
            encode, content_type = choose_encoder("")
        end, last = encode(_Some()), b""
        parts = []
        for metric in self.registry.collect():
            samples, metric.samples = metric.samples, []
            head = encode(_Some(metric)).removesuffix(end)
            if head != last:
                parts.append(head)
            last = head
            for first in range(0, len(samples), _SLICE):
                metric.samples = samples[first : first + _SLICE]
                parts.append(encode(_Some(metric)).removeprefix(head).removesuffix(end))
                await asyncio.sleep(0)
        return b"".join([*parts, end]), content_type
