"""Fixtures: a gateway in front of two scripted engines, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml
from hypothesis import settings

from bench.serving import Served, serve
from gateway.config import parse
from gateway.server.app import Gateway
from tests.support import CONFIG, FakeEngine, served, serving, until

# Timing decides no test.
settings.register_profile("untimed", deadline=None)
# For `python -m tests.fuzz.examples`.
settings.register_profile(
    "long", deadline=None, max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "5000")), database=None
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "untimed"))

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The event loop of a module's tests: its LOOP, where it has one."""
    return {"loop": getattr(item.module, "LOOP", asyncio.new_event_loop)}  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _logging_restored() -> Iterator[None]:
    """What a test's commands set up of logging ends with it, levels and all."""
    root, own = logging.getLogger(), logging.getLogger("gateway")
    levels, handlers = (root.level, own.level), root.handlers[:]
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    own.setLevel(levels[1])


@dataclass
class Running:
    """A served gateway: `plain` serves text, `deep` the other routes."""

    gateway: Gateway
    http: httpx.AsyncClient
    url: str
    plain: FakeEngine
    deep: FakeEngine

    def up(self, pool: str) -> bool:
        """Whether an engine of a pool is up."""
        engines = self.gateway.state.snapshot().engines
        return any(status.view.up for status in engines if status.view.engine.pool == pool)

    def in_flight(self, route: str) -> int:
        return self.gateway.state.snapshot().routes[route].in_flight

    async def metric(self, name: str, **labels: str) -> float:
        """The value of one series; 0 where it does not exist."""
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        for line in (await self.http.get("/metrics")).text.splitlines():
            series, _, value = line.rpartition(" ")
            found, _, rest = series.partition("{")
            if found == name and wanted <= set(rest.rstrip("}").split(",")):
                return float(value)
        return 0.0


@dataclass
class Fleeting:
    """A gateway over some scripted engines, one after the other `e0`, `e1` ... in one pool of its own."""

    gateway: Gateway
    http: httpx.AsyncClient
    engines: list[FakeEngine]

    def took(self) -> list[int]:
        """How many requests each engine got."""
        return [len(engine.bodies) for engine in self.engines]


@contextlib.asynccontextmanager
async def fleet(count: int = 2, settings: str = "", **pool: Any) -> AsyncIterator[Fleeting]:
    """Serve `count` engines behind a gateway; `settings` are further sections, `pool` the pool's keys."""
    async with contextlib.AsyncExitStack() as stack:
        engines = [FakeEngine() for _ in range(count)]
        urls = [await stack.enter_async_context(served(engine)) for engine in engines]
        values = {
            "model": "glm-ocr",
            "pools": {"pool": {"engines": urls, **pool}},
            "routes": {"text": {}, "table": {}},
            "polling": {"scrape_s": 0.05},
            **yaml.safe_load(settings or "{}"),
        }
        gateway = Gateway(parse(yaml.safe_dump(values), "routes.yaml", Path(), {}))
        url = await stack.enter_async_context(serving(gateway))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=30))
        await until(lambda: all(status.view.up for status in gateway.state.snapshot().engines))
        yield Fleeting(gateway, http, engines)


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    plain, deep = FakeEngine(), FakeEngine()
    async with served(plain) as plain_url, served(deep) as deep_url:
        text = CONFIG.replace("ENGINE", plain_url).replace("OTHER", deep_url)
        gateway = Gateway(parse(text, "routes.yaml", Path(), {}))
        async with serving(gateway) as url, httpx.AsyncClient(base_url=url, timeout=30) as http:
            await until(lambda: all(status.view.up for status in gateway.state.snapshot().engines))
            yield Running(gateway, http, url, plain, deep)


@pytest.fixture(scope="session")
def whole() -> Iterator[Served]:
    """`ocr-gateway serve` with the shipped configuration: the real CPU engine behind it."""
    with serve() as served_gateway:
        yield served_gateway
