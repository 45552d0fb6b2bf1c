"""The results as tables and sentences, and the rules that capacity is worked out by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.overhead.results import markdown
from bench.scale.curves import ENGINES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# What is planned with: beyond, a busy loop reads its engines late.
PLANNED = 0.6
# What reading engines may have of a core.
READING = 0.2
REPLICAS = (1, 10, 100)
FLEETS = (16, 64, 256, 512)
# Pages (/health and /metrics) that an engine may be asked for in a second: an assumption, not a measurement.
PAGES_S = 20.0
_KINDS = {"200 kB": (0.2, 0), "1.5 MB": (1.5, 0), "1.5 MB, 64 events": (1.5, 64), "8 MB": (8.0, 0)}


@dataclass(frozen=True, slots=True)
class Rule:
    """What things cost, in ms of a core.

    Attributes:
        request: whatever its body.
        megabyte: of its body (10^6 bytes).
        event: of its stream.
        reading: of one engine, once.
    """

    request: float
    megabyte: float
    event: float
    reading: float

    def of(self, megabytes: float, events: int) -> float:
        """Return what a request costs."""
        return self.request + self.megabyte * megabytes + self.event * events

    def requests_s(self, cost_ms: float, engines: int, scrape_s: float = 1.0) -> float:
        """Return how many requests of that cost a replica bears a second beside reading so many engines."""
        left_ms = 1e3 * PLANNED - engines * self.reading / scrape_s
        return max(0.0, left_ms / cost_ms)


class Figures:
    """Results, and what is made of them."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self.about: Mapping[str, Any] = found["about"]
        self.points: Sequence[Mapping[str, Any]] = found["points"]
        self.spread: Sequence[Mapping[str, Any]] = found.get("spread", ())

    def curve(self, name: str) -> list[Mapping[str, Any]]:
        """Return the points of a curve."""
        found = [point for point in self.points if point["curve"] == name]
        return sorted(found, key=lambda point: point["at"] if isinstance(point["at"], int) else 0)

    def rule(self) -> Rule | None:
        """Return what was measured as a rule: lines of least squares; None where curves are missing."""
        bodies = [(point["body_bytes"] / 1e6, point["cpu_ms"]) for point in self.curve("body")]
        events = [(point["at"], point["cpu_ms"]) for point in self.curve("events")]
        polls = [(point["at"], 1e3 * point["share"]["gateway"]) for point in self.curve("polling")]
        if min(map(len, (bodies, events, polls))) < 2:
            return None
        request, megabyte = line(bodies)
        return Rule(request, megabyte, line(events)[1], line(polls)[1])

    def tables(self) -> dict[str, str]:
        """Return a table of each curve that was measured, in Markdown."""
        made = {
            "body": self._bodies(),
            "concurrency": self._concurrency(),
            "events": self._events(),
            "streams": self._streams(),
            "engines": self._engines(),
            "routes": self._routes(),
            "held": self._held(),
            "spread": self._spread(),
            "replicas": self._replicas(),
        }
        return {name: markdown(rows) for name, rows in made.items() if len(rows) > 1}

    def text(self) -> str:
        """Return all of it, to be read in a terminal."""
        rule = self.rule()
        return "\n\n".join([*self.tables().values(), *([self.rule_text(rule)] if rule else [])])

    def rule_text(self, rule: Rule) -> str:
        """Say the rule."""
        return (
            f"CPU ms of a request = {rule.request:.2f} + {rule.megabyte:.1f} x MB of its body + "
            f"{rule.event:.3f} x events of its stream; of a second, and for each engine {rule.reading:.2f} "
            "(its /health and /metrics)"
        )

    def example(self) -> str:
        """Work out replicas for a load."""
        rule, held = self.rule(), [point for point in self.curve("held") if point["at"] == "1.5 MB"]
        if rule is None or not held:
            return ""
        cost_ms = rule.of(1.5, 64)
        gigabytes = 1200 * (held[0]["rss_mib"] - self._rest_mib()) / 256 * 1048576 / 1e9
        return (
            f"For example 60 pages a second of 1.5 MB each, streamed in 64 events, 20 s each: "
            f"{cost_ms:.1f} ms, so 60 x {cost_ms:.1f} / 600 = {60 * cost_ms / 600:.1f} replicas of CPU; "
            f"1,200 requests in flight hold {gigabytes:.1f} GB in all. Availability has the last word: three."
        )

    def circumstances(self) -> str:
        """Say on what, when and how often it was measured."""
        about = self.about
        spreads = sorted(point["spread"] for point in self.points if "cpu_ms" in point)
        others = sorted(point["share"].get("gateway_foreign", 0.0) for point in self.points)
        differed = ""
        if about["rounds"] > 1:
            half = spreads[len(spreads) // 2]
            differed = (
                f", between which CPU differed by {half:.0%} in half of the points, {spreads[-1]:.0%} at most"
            )
        return (
            f"{about['when']}, {about['processor']}, {about['cores']} cores, Linux {about['kernel']}, Python "
            f"{about['python']}; medians of {about['rounds']} rounds of {about['seconds']:g} s"
            f"{differed}. Of the gateway's core others had "
            f"{others[len(others) // 2]:.0%} in half of the points, and {others[-1]:.0%} at most."
        )

    def _bodies(self) -> list[list[str]]:
        rows = [
            ["body, at once", "CPU ms a request", "a second with a whole core", "MB/s", "loop's wait p95, ms"]
        ]
        for point in self.curve("body"):
            whole_core = 1e3 / point["cpu_ms"]
            rate = whole_core * point["body_bytes"] / 1e6
            rows.append([str(point["at"]), _3(point["cpu_ms"]), _3(whole_core), _3(rate), _lag(point)])
        return rows

    def _concurrency(self) -> list[list[str]]:
        rows = [["200 kB, whole, at once", "CPU ms a request", "peak MiB", "loop's wait p50 / p95, ms"]]
        rows += [
            [_int(point["at"]), _3(point["cpu_ms"]), _int(point["rss_mib"]), _lags(point)]
            for point in self.curve("concurrency")
        ]
        return rows

    def _events(self) -> list[list[str]]:
        rows = [
            [
                "events a stream, 10 ms apart, 32 at once",
                "CPU ms a request",
                "us an event",
                "under way p99, ms",
            ]
        ]
        for point in self.curve("events"):
            delay = point["event_delay_p99_ms"]
            rows.append([_int(point["at"]), _3(point["cpu_ms"]), _int(point["event_us"]), _3(delay)])
        return rows

    def _streams(self) -> list[list[str]]:
        rows = [
            [
                "open streams",
                "events a second",
                "us an event",
                "of the core",
                "MiB",
                "kB a stream",
                "under way p99, ms",
            ]
        ]
        for point in self.curve("streams"):
            each = (point["rss_mib"] - self._rest_mib()) * 1048.576 / point["at"]
            rows.append(
                [
                    _int(point["at"]),
                    _int(point["events_s"]),
                    _int(point["event_us"]),
                    f"{point['share']['gateway']:.0%}",
                    _int(point["rss_mib"]),
                    _int(each),
                    _3(point["event_delay_p99_ms"]),
                ]
            )
        return rows

    def _engines(self) -> list[list[str]]:
        rows = [
            [
                "engines",
                "reading them, of the core",
                "oldest reading, s",
                "MiB",
                "series",
                "loop's wait p95, ms",
                "CPU ms of a 200 kB request, without reading",
            ]
        ]
        loads = {point["at"]: point for point in self.curve("engines")}
        for point in self.curve("polling"):
            count, share = point["at"], point["share"]["gateway"]
            load = loads.get(count)
            rows.append(
                [
                    _int(count),
                    f"{share:.1%}",
                    f"{point['oldest_reading_s']:.1f}",
                    _int(point["rss_mib"]),
                    _int(point["series"]),
                    _lag(point),
                    _3(load["cpu_ms"] - 1e3 * share / load["requests_s"]) if load else "-",
                ]
            )
        return rows

    def _routes(self) -> list[list[str]]:
        rows = [["routes", "CPU ms a request of 1 kB"]]
        rows += [[_int(point["at"]), _3(point["cpu_ms"])] for point in self.curve("routes")]
        return rows

    def _held(self) -> list[list[str]]:
        rows = [["256 at their engines", "peak MiB", "kB a request", "of its body"]]
        for point in self.curve("held"):
            each = (point["rss_mib"] - self._rest_mib()) * 1048576 / 256
            rows.append(
                [
                    str(point["at"]),
                    _int(point["rss_mib"]),
                    _int(each / 1e3),
                    f"{each / point['body_bytes']:.2f}",
                ]
            )
        return rows

    def _rest_mib(self) -> float:
        """What a gateway has before its first request."""
        rest: float = min(point["resting_mib"] for point in self.points if "resting_mib" in point)
        return rest

    def _spread(self) -> list[list[str]]:
        rows = [
            ["connections over 4 processes", *dict.fromkeys(one["way"] for one in self.spread), "handed over"]
        ]
        for count in dict.fromkeys(one["connections"] for one in self.spread):
            some = [one for one in self.spread if one["connections"] == count]
            rows.append(
                [_int(count), *(f"{one['busiest']:.2f} ({one['busiest_p95']:.2f})" for one in some), "1.00"]
            )
        return rows

    def _replicas(self) -> list[list[str]]:
        rule = self.rule()
        rows = [["a second, planned with 60% of each core", *(f"{count} replicas" for count in REPLICAS)]]
        if rule is None:
            return rows
        for kind, (megabytes, events) in _KINDS.items():
            for engines in (ENGINES, 256):
                one = rule.requests_s(rule.of(megabytes, events), engines)
                rows.append([f"{kind}, {engines} engines", *(_int(count * one) for count in REPLICAS)])
        return rows

    def limits(self) -> list[list[str]]:
        """Where reading engines ends: by the replica's core, and by the engines' own servers."""
        rule = self.rule()
        rows = [
            ["engines"]
            + [f"{count} replicas: scrape_s, pages an engine answers a second" for count in REPLICAS]
        ]
        if rule is None:
            return rows
        for engines in FLEETS:
            row = [_int(engines)]
            for replicas in REPLICAS:
                own = engines * rule.reading / (1e3 * READING)
                theirs = 2 * replicas / PAGES_S
                scrape_s = max(1.0, own, theirs)
                row.append(f"{scrape_s:.3g} s, {2 * replicas / scrape_s:.3g}")
            rows.append(row)
        return rows


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return intercept and slope of the line of least squares of relative errors, neither under 0."""
    weights = [1 / y**2 if y else 1.0 for _, y in points]
    total = sum(weights)
    x_mean = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    y_mean = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    above = sum(w * (x - x_mean) * (y - y_mean) for w, (x, y) in zip(weights, points, strict=True))
    below = sum(w * (x - x_mean) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    slope = max(0.0, above / below) if below else 0.0
    return max(0.0, y_mean - slope * x_mean), slope


def _3(value: float | None) -> str:
    """Three figures."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _int(value: float) -> str:
    return f"{value:,.0f}"


def _lag(point: Mapping[str, Any]) -> str:
    return _3(point["lag_p95_ms"])


def _lags(point: Mapping[str, Any]) -> str:
    return f"{_3(point['lag_p50_ms'])} / {_3(point['lag_p95_ms'])}"
