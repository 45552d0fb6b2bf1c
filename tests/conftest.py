"""Fixtures: a gateway in front of two scripted engines, over real sockets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from hypothesis import settings

from bench.serving import Served, serve
from gateway.app import Gateway
from gateway.config import parse
from tests.support import CONFIG, FakeEngine, served, until

# Timing decides no test.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@dataclass
class Running:
    """A served gateway: `plain` serves text, `deep` the other routes."""

    gateway: Gateway
    http: httpx.AsyncClient
    url: str
    plain: FakeEngine
    deep: FakeEngine

    async def metric(self, name: str, **labels: str) -> float:
        """The value of one series; 0 where it does not exist."""
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        for line in (await self.http.get("/metrics")).text.splitlines():
            series, _, value = line.rpartition(" ")
            found, _, rest = series.partition("{")
            if found == name and wanted <= set(rest.rstrip("}").split(",")):
                return float(value)
        return 0.0


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    plain, deep = FakeEngine(), FakeEngine()
    async with served(plain) as plain_url, served(deep) as deep_url:
        text = CONFIG.replace("ENGINE", plain_url).replace("OTHER", deep_url)
        gateway = Gateway(parse(text, "routes.yaml", Path(), {}))
        async with served(gateway.api) as url, httpx.AsyncClient(base_url=url, timeout=30) as http:
            await until(lambda: all(view.up for view in gateway.state.snapshot().engines))
            yield Running(gateway, http, url, plain, deep)


@pytest.fixture(scope="session")
def whole() -> Iterator[Served]:
    """`ocr-gateway serve` with the shipped configuration: the real CPU engine behind it."""
    with serve() as served_gateway:
        yield served_gateway
