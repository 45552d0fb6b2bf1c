"""What is measured: points of curves, and the fleets that they need."""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.overhead.cases import Case

# The fleet of all curves but those of engines and routes.
ENGINES, ROUTES = 16, 3
ENGINE_COUNTS = (1, 4, 16, 64, 256, 512)
ROUTE_COUNTS = (1, 4, 16)
CONCURRENT = (1, 8, 32, 128, 512)
STREAMS = (64, 256, 1024, 4096)
BODIES = {"1 kB": 32, "10 kB": 32, "200 kB": 32, "1.5 MB": 32, "8 MB": 8, "31 MB": 4}
EVENTS = (1, 16, 64, 256)
HELD = 256
HELD_BODIES = ("1 kB", "200 kB", "1.5 MB")
# Of an open stream, however many there are: 4,000 events a second in all.
_EVENTS_S = 4000
_STREAMS_BEGIN_S = 400


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is configured behind a gateway; `fresh` where another one with the same is started."""

    engines: int = ENGINES
    routes: int = ROUTES
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a curve.

    Attributes:
        curve: its name.
        at: where on the curve: a number, or a body's name.
        fleet: behind the gateway.
        case: the load; None: nothing but the polling of engines.
        lasts: its requests do not end; what is measured is their events.
    """

    curve: str
    at: int | str
    case: Case | None
    fleet: Fleet = field(default_factory=Fleet)
    lasts: bool = False

    @property
    def name(self) -> str:
        """What it is called in the results."""
        return f"{self.curve} {self.at}"


def points(quick: bool = False) -> list[Point]:
    """Return what is measured, in the order in which gateways need the fewest starts."""
    found = []
    for engines in ENGINE_COUNTS:
        found.append(Point("polling", engines, None, Fleet(engines)))
        found.append(Point("engines", engines, Case("200 kB", 32), Fleet(engines)))
    # What is freed is kept for a while: memory is measured in ascending order, in gateways that had no more.
    held = {size: Case(size, HELD, engine={"hold": HELD}, kind="held") for size in HELD_BODIES}
    found += [
        *(Point("held", size, case, Fleet(fresh=True)) for size, case in held.items()),
        *(Point("streams", count, _open(count), lasts=True) for count in STREAMS),
        *(Point("body", size, Case(size, count)) for size, count in BODIES.items()),
        *(Point("concurrency", count, Case("200 kB", count)) for count in CONCURRENT),
        *(Point("events", count, _streamed(count)) for count in EVENTS),
        *(Point("routes", count, Case("1 kB", 32), Fleet(routes=count)) for count in ROUTE_COUNTS),
    ]
    if quick:
        wanted = {
            "body 1 kB",
            "body 200 kB",
            "body 1.5 MB",
            "events 1",
            "events 64",
            "streams 256",
            "held 200 kB",
        }
        wanted |= {f"{curve} {count}" for curve in ("polling", "engines") for count in (16, 64)}
        found = [point for point in found if point.name in wanted]
    return sorted(found, key=lambda point: (point.fleet.engines, point.fleet.routes, point.fleet.fresh))


def _streamed(events: int) -> Case:
    """Streams of so many events: few enough at once that the core has time for each."""
    return Case("1 kB", 32, events, {"events": events, "gap": 10}, spread_ms=10 * events, kind="stream")


def _open(count: int) -> Case:
    """Streams that stay open, the slower the more there are."""
    gap_ms = round(1000 * count / _EVENTS_S)
    spread_ms = round(1000 * count / _STREAMS_BEGIN_S)
    engine = {"events": 1_000_000, "gap": gap_ms}
    return Case("1 kB", count, 1_000_000, engine, spread_ms=spread_ms, kind="stream")
