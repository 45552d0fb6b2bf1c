"""A gateway on one core in front of stub engines, and what a load costs it."""

from __future__ import annotations

import http.client
import os
import statistics
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bench.overhead import machine, measure, results
from bench.overhead.bodies import MODEL
from bench.overhead.peers import OURS, ours

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.overhead.measure import Bench, Serving
    from bench.scale.curves import Fleet, Point

_PROBE_S = 0.05
_NICE = -10
# Of a core, for each engine that is read.
_AT_REST = 0.003
# From this share of a core on that others had, a point is measured again.
DISTURBED = 0.1

_CONFIG = """\
model: {model}
pools:
  mtp3:
    speculative_config: {{method: mtp, num_speculative_tokens: 3}}
    engines: [$engines]
    max_load: 4096
routes:
{routes}
server: {{linger_s: 0, drain_s: 1, replicas: 1}}
"""


@contextmanager
def gateway(fleet: Fleet, bench: Bench) -> Iterator[Serving]:
    """Serve a fleet, whose engines have pages as long as vLLM's, until the block is left."""
    names = ["text", "key-value", "table", *(f"route-{number}" for number in range(3, fleet.routes))]
    routes = "\n".join(f"  {name}: {{}}" for name in names[: fleet.routes])
    peer = replace(ours(), files={f"{OURS}.yaml": _CONFIG.format(model=MODEL, routes=routes)})
    with measure.serving(peer, bench, fleet.engines) as served:
        yield served


def point(served: Serving, wanted: Point, bench: Bench) -> dict[str, Any]:
    """Measure a point; again where others disturbed it, and then the least disturbed counts."""
    bench = replace(bench, rest=bench.rest + _AT_REST * wanted.fleet.engines)
    tried: list[dict[str, Any]] = []
    for _ in range(bench.tries):
        tried.append(_polling(served, bench) if wanted.case is None else _load(served, wanted, bench))
        if _foreign(tried[-1]) <= DISTURBED:
            break
    found = min(tried, key=_foreign)
    return {"curve": wanted.curve, "at": wanted.at, **found}


def _foreign(found: dict[str, Any]) -> float:
    share: dict[str, float] = found["share"]
    return max(share["gateway_foreign"], share["harness_foreign"])


def _load(served: Serving, wanted: Point, bench: Bench) -> dict[str, Any]:
    assert wanted.case
    once = replace(bench, tries=1, most_s=bench.seconds if wanted.lasts else bench.most_s)
    with Probe(served.port) as probe:
        found = measure.measured(served, wanted.case, once)
    if trouble := results.failures(found):
        raise RuntimeError(f"{wanted.name}: {trouble}")
    cpu_ms = found["cpu_s_per_1000"]
    event_ms = found["cpu_s_per_1000_events"]
    delay = found["event_delay_ms"]
    return {
        "requests": found["answered"],
        "requests_s": found["requests_s"],
        "cpu_ms": cpu_ms,
        "events_s": found["events"] / found["seconds"] if found["seconds"] else 0.0,
        "event_us": event_ms * 1e3 if event_ms is not None else None,
        "event_delay_p99_ms": delay["p99"] if delay else None,
        "rss_mib": found["rss_mib"],
        "resting_mib": found["resting_mib"],
        "body_bytes": found["body_bytes"],
        "lags_ms": probe.within(found["seconds"]),
        "share": found["share"],
    }


def _polling(served: Serving, bench: Bench) -> dict[str, Any]:
    """What the engines' reading costs while there is no request."""
    measure.settle(served, {}, bench)
    pids = served.pids()
    before = machine.Moment.now(pids, served.engine.pid, bench.cores)
    time.sleep(2 * bench.seconds)
    after = machine.Moment.now(pids, served.engine.pid, bench.cores)
    with Probe(served.port) as probe:
        time.sleep(bench.seconds)
        lags = probe.within(bench.seconds)
    began = time.monotonic()
    page = _get(served.port, "/metrics")
    took = time.monotonic() - began
    lines = [line for line in page.splitlines() if not line.startswith("#")]
    ages = [float(line.rpartition(" ")[2]) for line in lines if "_engine_scrape_age_seconds{" in line]
    return {
        "share": machine.shares(before, after, 0.0),
        "rss_mib": machine.resident_mib(pids),
        "lags_ms": lags,
        "series": len(lines),
        "page_ms": 1e3 * took,
        "oldest_reading_s": max(ages),
    }


def _get(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


@dataclass
class Probe:
    """Asks the gateway whether it is alive, twenty times a second: who waits, waits for its event loop."""

    port: int
    _seen: list[tuple[float, float]] = field(default_factory=list)
    _end: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Probe:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def within(self, seconds: float) -> list[float]:
        """Return how long it took in the last seconds, in ms."""
        since = time.monotonic() - seconds
        return [round(1e3 * took, 3) for at, took in self._seen if at >= since]

    def _run(self) -> None:
        with suppress(PermissionError):  # engines and clients share its core, and are not what is asked about
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        while not self._end.wait(_PROBE_S):
            began = time.monotonic()
            with suppress(OSError, http.client.HTTPException):
                connection.request("GET", "/health")
                connection.getresponse().read()
                self._seen.append((began, time.monotonic() - began))
        connection.close()


def percentile(values: list[float], share: float) -> float:
    """Return a percentile; 0 of nothing."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def medians(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the points, each with the medians of its rounds, and with percentiles of all their lags."""
    groups: dict[tuple[str, Any], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault((run["curve"], run["at"]), []).append(run)
    return [_median(group) for group in groups.values()]


def _median(group: list[dict[str, Any]]) -> dict[str, Any]:
    first = group[0]
    found: dict[str, Any] = {"curve": first["curve"], "at": first["at"], "rounds": len(group)}
    for key, value in first.items():
        values = [run[key] for run in group]
        if key == "share":
            found[key] = {name: round(statistics.median(one[name] for one in values), 4) for name in value}
        elif key == "lags_ms":
            lags = [lag for one in values for lag in one]
            found |= {"lag_p50_ms": percentile(lags, 0.5), "lag_p95_ms": percentile(lags, 0.95)}
        elif key == "requests":
            found[key] = sum(values)
        elif isinstance(value, int | float) and key != "at":
            found[key] = round(statistics.median(values), 4)
    costs = [run.get("cpu_ms") or run.get("event_us") or 0.0 for run in group]
    middle = statistics.median(costs)
    found["spread"] = round((max(costs) - min(costs)) / middle, 3) if middle else 0.0
    return found


def line(run: dict[str, Any]) -> str:
    """Say what a measurement found."""
    words = [f"{run['curve']:<12}{run['at']!s:<8}"]
    for key, unit in (
        ("cpu_ms", "ms"),
        ("event_us", "us an event"),
        ("rss_mib", "MiB"),
        ("requests_s", "/s"),
    ):
        if run.get(key):
            words.append(f"{run[key]:.4g} {unit}")
    share = run["share"]
    words.append(f"core {share['gateway']:.2f}+{share['gateway_foreign']:.2f}")
    words.append(f"harness {share['harness']:.2f}+{share['harness_foreign']:.2f}")
    return "  ".join(words)
