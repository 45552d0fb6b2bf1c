"""What a gateway says of its engines while it runs, and what the engines say themselves."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from bench.clients import POLL_S, http_client
from gateway.wire.vllm.engine import read_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.engines import EngineProcess


@dataclass(frozen=True)
class Sample:
    """The gateway's /status at one moment: by engine its fitness, and the gateway's own requests there."""

    at: float
    fitness: dict[str, str]
    requests: dict[str, int]

    def serves(self, name: str) -> bool:
        """Whether an engine takes part."""
        return self.fitness[name] in ("free", "held")


class Watch:
    """Samples a gateway's /status, and reads engines' counters; an asynchronous context manager."""

    def __init__(self, gateway: str, engines: Sequence[EngineProcess]) -> None:
        self._gateway = gateway
        self._engines = engines
        self.samples: list[Sample] = []

    async def __aenter__(self) -> Watch:
        self._http = http_client()
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._http.aclose()

    async def status(self) -> Any:
        """Return the gateway's /status."""
        return (await self._http.get(f"{self._gateway}/status")).json()

    async def until(self, condition: Callable[[Sample], bool], within_s: float) -> float | None:
        """Return when a condition came true; None where it did not."""
        began = time.monotonic()
        seen = len(self.samples)
        while time.monotonic() - began < within_s:
            for sample in self.samples[seen:]:
                if condition(sample):
                    return sample.at
            seen = len(self.samples)
            await asyncio.sleep(POLL_S / 2)
        return None

    async def rate(self, seconds: float) -> float:
        """Return the tokens per second of all engines that answer, over so many seconds from now."""
        before, began = await self._tokens(), time.monotonic()
        await asyncio.sleep(seconds)
        after, took = await self._tokens(), time.monotonic() - began
        both = before.keys() & after.keys()
        return sum(max(0.0, after[name] - before[name]) for name in both) / took

    async def open(self) -> tuple[int, int, int]:
        """Return the requests in flight and waiting in the gateway, and those that engines have."""
        routes = (await self.status())["routes"].values()
        pages = await asyncio.gather(*(self._page(engine) for engine in self._engines))
        readings = [read_metrics(page) for page in pages]
        return (
            sum(route["in_flight"] for route in routes),
            sum(route["waiting"] for route in routes),
            sum(reading.running + reading.waiting for reading in readings),
        )

    async def metrics(self) -> str:
        """Return the gateway's metrics."""
        return (await self._http.get(f"{self._gateway}/metrics")).text

    async def fault(self, engine: EngineProcess, kind: str, **options: Any) -> None:
        """Make an engine fail."""
        answer = await self._http.post(f"{engine.url}/faults", json={"kind": kind, **options})
        answer.raise_for_status()

    async def _tokens(self) -> dict[str, float]:
        pages = await asyncio.gather(*(self._page(engine) for engine in self._engines))
        return {
            engine.name: read_metrics(page).generation_tokens
            for engine, page in zip(self._engines, pages, strict=True)
            if page
        }

    async def _page(self, engine: EngineProcess) -> bytes:
        try:
            return (await self._http.get(f"{engine.url}/metrics", timeout=1)).content
        except httpx.TransportError:
            return b""

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(httpx.TransportError):
                engines = (await self.status())["engines"]
                self.samples.append(
                    Sample(
                        time.monotonic(),
                        {row["engine"]: row["fitness"] for row in engines},
                        {row["engine"]: sum(row["ours"].values()) for row in engines},
                    )
                )
            await asyncio.sleep(POLL_S)
