"""`python -m bench.bookkeeping`: what a request costs besides its bytes, by engines and by routes.

Choosing an engine, the place on it and the ledger; accounts and limits; metrics; the line in the log: in
microseconds of CPU time a request, of the least disturbed of several turns. Then what is read of an engine's
page, and the gateway's own: how long it takes, and how long the event loop waits for it at most.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import random
import statistics
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from bench.stubs import engine_page
from gateway.config import parse
from gateway.model import Engine, Reading, Reason, RequestRecord, SortDecision, Speculation, Usage
from gateway.policy.fail.breaker import Outcome
from gateway.state.fleet import Fleet
from gateway.state.ledger import Kind
from gateway.state.store import Lease, State
from gateway.telemetry.logs import Line, LogFormat, _Formatter, _Writer
from gateway.telemetry.metrics import Metrics
from gateway.wire.vllm.engine import read_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ENGINES, ROUTES = (1, 16, 64, 256, 512), (1, 3, 16)
PAGES = ((1, 3), (16, 3), (256, 16))
# Requests in flight: as many as a core bears, and on each engine no more than its share of the GPU's.
IN_FLIGHT, PER_ENGINE = 256, 32
TURNS, CALLS = 9, 300

Part = Literal["places", "accounts", "counts"]
_STAGES: tuple[Literal["receive", "sort", "choose", "forward"], ...] = (
    "receive",
    "sort",
    "choose",
    "forward",
)
_TOLD = Speculation(100, 180, 300, (80, 60, 40))
_USAGE = Usage(1200, 281)
_ENDED = RequestRecord(
    at=1e9,
    request_id="8f14e45f",
    path="/v1/chat/completions",
    code=200,
    seconds=1.5,
    reason="prompt",
    pool="mtp3",
    engine="e1:80",
    depth=3,
    first_token_s=0.3,
    usage=_USAGE,
    speculation=_TOLD,
    why="schedule",
)
_FIELDS = {
    "request_id": "8f14e45f-ceea-467f-a8f2-1f2b3c4d5e6f",
    "path": "/v1/chat/completions",
    "code": 200,
    "key": "",
    "route": "text",
    "reason": Reason.PROMPT,
    "pool": "mtp3",
    "engine": "vllm-mtp3-1:8000",
    "depth": 3,
    "seconds": 1.2346,
    "waited": None,
    "first_token": 0.1235,
    "completion_tokens": 281,
    "acceptance_length": 2.7,
    "acceptance_source": "request",
    "trace_id": None,
}


class Books:
    """A gateway's books with so many engines and routes, and requests in flight."""

    def __init__(self, engines: int, routes: int) -> None:
        lines = [
            "model: m",
            "pools:",
            "  mtp3: {speculative_config: {method: mtp, num_speculative_tokens: 3}, engines: [http://e:1]}",
            "  plain: {engines: [http://p:1]}",
            "routes:",
            *(f"  r{number}: {{schedule: [[1, 63, 3], [64, 4096, 0]]}}" for number in range(routes)),
            "sorting: {default: r0}",
        ]
        fleet = Fleet.of(parse("\n".join(lines), "routes.yaml", Path(), {}))
        pools = (("mtp3", 3), ("plain", 0))
        known = [Engine(f"e{n}:80", f"http://e{n}:80", *pools[n % 2]) for n in range(engines)]
        self.state = State(fleet, known, time.monotonic, random.Random(1))
        for engine in known:
            self.state.mark(engine.name, up=True)
            self.state.read(engine.name, Reading(time.monotonic(), 0, 0))
        self.metrics = Metrics(self.state)
        self._rng = random.Random(1)
        self._decisions = [SortDecision(route, Reason.PROMPT) for route in fleet.routes]
        self._running: deque[Lease] = deque()
        for _ in range(min(IN_FLIGHT, PER_ENGINE * engines)):
            self._begin()

    def _begin(self) -> None:
        self.state.begun()
        lease = self.state.take(self._rng.choice(self._decisions).route, None, "10.0.0.1")
        assert isinstance(lease, Lease)
        lease.sent(Kind.STREAM)
        self._running.append(lease)

    def places(self) -> None:
        """One request gets its place, and another is answered and gives its place back."""
        self._begin()
        with self._running.popleft() as lease:
            lease.heard()
            lease.outcome(Outcome.SUCCESS)
            lease.told(_TOLD, _USAGE.completion_tokens)
        self.state.answered(lease.route, _USAGE.completion_tokens)
        self.state.ended(_ENDED._replace(route=lease.route))
        lease.believed()

    def accounts(self) -> None:
        """What one holds in memory, and what its key may."""
        self.state.open += 1
        held, visit = self.state.memory.hold("10.0.0.1"), self.state.quotas.visit("")
        visit.enter()
        held.expect(200_000)
        held.add(200_000)
        visit.bring(150_000)
        held.drop(200_000)
        held.answered(500)
        visit.headers()
        visit.leave()
        held.close()
        self.state.quotas.ended("", 200, 150_000)
        self.state.open -= 1

    def counts(self) -> None:
        """The metrics of one."""
        metrics, decision = self.metrics, self._rng.choice(self._decisions)
        metrics.sorted(decision)
        for stage in _STAGES:
            with metrics.timed(stage):
                pass
        metrics.chosen(decision.route, 3)
        metrics.finished(_ENDED._replace(route=decision.route))

    async def page(self) -> tuple[float, float]:
        """Return milliseconds that the metrics page takes, and the longest of them without a break."""
        steps: list[float] = []

        async def meanwhile() -> None:
            while True:
                before = time.thread_time()
                await asyncio.sleep(0)
                steps.append(time.thread_time() - before)

        other = asyncio.create_task(meanwhile())
        await asyncio.sleep(0)
        start = time.thread_time()
        await self.metrics.page("text/plain")
        end = time.thread_time()
        await asyncio.sleep(0)
        other.cancel()
        return 1e3 * (end - start), 1e3 * max(steps)


def us(work: Callable[[], object], calls: int = CALLS) -> float:
    """Return microseconds of CPU time a call, all threads', of the least disturbed turn."""
    turns = []
    for _ in range(TURNS):
        start = time.process_time_ns()
        for _ in range(calls):
            work()
        turns.append((time.process_time_ns() - start) / 1e3 / calls)
    return min(turns)


def parts() -> Iterator[tuple[int, int, dict[Part, float]]]:
    """Yield routes, engines, and what each part of the books costs."""
    for routes in ROUTES:
        for engines in ENGINES:
            books = Books(engines, routes)
            yield (
                routes,
                engines,
                {"places": us(books.places), "accounts": us(books.accounts), "counts": us(books.counts)},
            )


def line(kind: LogFormat) -> float:
    """Return what a line in the log costs, its writing included."""
    null = os.open(os.devnull, os.O_WRONLY)
    handler, log = _Writer(null), logging.Logger("gateway.access")
    handler.setFormatter(_Formatter(kind))
    log.addHandler(handler)
    one = Line(log, "request")
    found = us(lambda: one.write(_FIELDS), 2000)
    handler.close()
    os.close(null)
    return found


def main() -> None:
    """Measure and print."""
    print(
        f"Bookkeeping, CPU time a request in us: {platform.machine()} {platform.system()}, Python "
        f"{platform.python_version()}, least of {TURNS} turns of {CALLS}; up to {IN_FLIGHT} in flight"
    )
    logged = {kind: line(kind) for kind in get_args(LogFormat)}
    print("  a line in the log: " + ", ".join(f"{found:.1f} as {kind}" for kind, found in logged.items()))
    for routes, engines, found in parts():
        total = sum(found.values()) + logged["json"]
        told = ", ".join(f"{part} {cost:.1f}" for part, cost in found.items())
        print(f"  {routes:2} routes, {engines:3} engines: {told}; with its line {total:.0f}")
    page = engine_page()
    print(f"  reading an engine's page of {len(page):,} bytes: {us(lambda: read_metrics(page), 20):.0f}")
    for engines, routes in PAGES:
        books = Books(engines, routes)
        for _ in range(CALLS):
            books.counts()
        took = [asyncio.run(books.page()) for _ in range(3)]
        whole, longest = (statistics.median(column) for column in zip(*took, strict=True))
        print(
            f"  the gateway's page, {engines} engines and {routes} routes: {whole:.0f} ms, at most "
            f"{longest:.1f} ms at a time"
        )


if __name__ == "__main__":
    main()
