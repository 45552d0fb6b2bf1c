"""The composition root: a configuration becomes a running application; start and stop."""

from __future__ import annotations

import asyncio
import importlib.resources
import logging
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import uvicorn

from gateway.api import create_api
from gateway.client import EngineClient
from gateway.config import EMBEDDED
from gateway.dispatch import Dispatcher
from gateway.engines.supervisor import Supervisor
from gateway.metrics import Metrics
from gateway.model import Engine
from gateway.policy.layout import LayoutModel
from gateway.poller import Poller
from gateway.state import State
from gateway.vision import Vision

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterator

    from fastapi import FastAPI

    from gateway.config import Config

log = logging.getLogger(__name__)

_VISION_THREADS = 2


class Gateway:
    """One gateway over one configuration; `api` is its ASGI application, which starts and stops the rest."""

    def __init__(self, config: Config) -> None:
        self.config = config
        embedded = any(EMBEDDED in pool.engines for pool in config.pools.values())
        self.supervisor = Supervisor(self._embedded_command, self._embedded_died) if embedded else None
        self.state = State(self._engines(), config.routes)
        self._metrics = Metrics(self.state)
        self._rng = random.Random()
        self._dispatcher: Dispatcher | None = None
        self.api: FastAPI = create_api(
            config, self.state, self._metrics, self._running_dispatcher, self._running, int(time.time())
        )

    def _running_dispatcher(self) -> Dispatcher:
        if self._dispatcher is None:
            raise RuntimeError("the application has not been started: run it with its lifespan")
        return self._dispatcher

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        with ThreadPoolExecutor(_VISION_THREADS, "vision") as workers:
            async with EngineClient() as client:
                vision = Vision(layout_model(), workers)
                self._dispatcher = Dispatcher(
                    self.config, self.state, client, self._metrics, vision, self._rng
                )
                poller = Poller(
                    self.state, client, self.config.polling.scrape_s, self._rng, on_hung=self._restart
                )
                runs = [poller.run()]
                if self.supervisor:
                    runs.append(self.supervisor.run())
                async with background(*runs):
                    yield

    def _engines(self) -> Iterator[Engine]:
        for name, pool in self.config.pools.items():
            for address in pool.engines:
                if address == EMBEDDED and self.supervisor:
                    yield Engine(EMBEDDED, self.supervisor.url, name, pool.depth)
                else:
                    yield Engine(urlsplit(address).netloc, address, name, pool.depth, pool.api_key)

    def _embedded_command(self, fd: int) -> list[str]:
        options = ["--fd", str(fd), "--model", self.config.model, "--exit-with-stdin"]
        return ["-m", "gateway.engines.embedded", *options]

    def _restart(self, engine: Engine) -> None:
        if engine.name == EMBEDDED and self.supervisor:
            log.error("the embedded engine hangs; it is killed and started again")
            self.supervisor.kill()

    def _embedded_died(self) -> None:
        self.state.mark(EMBEDDED, up=False)


@asynccontextmanager
async def background(*runs: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Run coroutines beside a block and cancel them when it is left; one that fails says so in the log."""
    tasks = [asyncio.create_task(run) for run in runs]
    for task in tasks:
        task.add_done_callback(_report)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        log.critical("a background task failed", exc_info=error)


def layout_model() -> LayoutModel:
    """Load the layout classifier that ships with the package."""
    return LayoutModel.from_bytes(
        importlib.resources.files("gateway").joinpath("data/layout.npz").read_bytes()
    )


def serve(config: Config, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT; what is in flight then has `server.drain_s` to finish."""
    gateway = Gateway(config)
    uvicorn.run(
        gateway.api,
        host=host,
        port=port,
        loop="uvloop",
        http="httptools",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=2048,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(config.server.drain_s),
    )
