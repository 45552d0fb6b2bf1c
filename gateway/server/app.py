"""The composition root: a configuration becomes a running application; start, reload, drain, stop."""

from __future__ import annotations

import asyncio
import importlib.resources
import importlib.util
import logging
import os
import random
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from gateway.api.auth import ApiKeyCheck
from gateway.api.endpoints import create_api
from gateway.api.inference import COMPLETIONS, InferenceEndpoint
from gateway.api.middleware import CommonHeaders, EndpointRouter
from gateway.config import EMBEDDED
from gateway.documents.endpoint import PATH as OCR
from gateway.documents.endpoint import Documents
from gateway.engines.supervisor import Supervisor
from gateway.errors import ConfigError
from gateway.images.fetch import ImageFetcher
from gateway.images.inspector import ImageInspector
from gateway.policy.admit.memory_share import default_documents, default_limit
from gateway.request.dispatch import Dispatcher
from gateway.request.receive import Intake
from gateway.server.machine import memory_bytes
from gateway.server.reload import Reloader
from gateway.state.fleet import Fleet
from gateway.state.store import State
from gateway.telemetry.metrics import Metrics
from gateway.upstream.client import EngineClient
from gateway.upstream.discovery import Discovery
from gateway.upstream.poller import Poller

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine
    from pathlib import Path

    from starlette.types import ASGIApp

    from gateway.api.connection_registry import ConnectionRegistry
    from gateway.config import Config
    from gateway.engines.supervisor import Keeper
    from gateway.model import Engine
    from gateway.telemetry.tracing import Tracing

log = logging.getLogger(__name__)

_LOOK_S = 0.05
# Without lingering, too, a client that has just been answered gets time to ask again where it is heard.
_PATIENCE_S = 0.5
_NOT_STARTED = "the application has not been started: run it with its lifespan"


class Gateway:
    """One gateway.

    Attributes:
        state: the engines, and the configuration served.
        application: what its server serves, over gateway.api.connection; it starts and stops the rest.
        api: the part that FastAPI has of that.
    """

    def __init__(self, config: Config, path: Path | None = None, supervisor: Keeper | None = None) -> None:
        """Compose it.

        Args:
            config: valid, and safe to serve.
            path: the file it came from, watched for changes; None where there is none.
            supervisor: keeps the embedded engine, where that is not left to the gateway.
        """
        self._rng = random.Random()
        self._supervisor = supervisor
        self._discovery = Discovery(config, self._addresses_changed, self._rng)
        fleet = Fleet.of(config)
        memory = memory_bytes() // config.workers
        self._documents_at_once = default_documents(memory)
        self.state = State(
            fleet,
            self._engines(config),
            time.monotonic,
            self._rng,
            self._discovery.pending(),
            default_limit(memory, config.documents.at_once or self._documents_at_once),
            lambda delay_s, call: asyncio.get_running_loop().call_later(delay_s, call),
        )
        self._metrics = Metrics(self.state)
        self._reloader = Reloader(path, config, self.reload, self._count_reload) if path else None
        self._dispatcher: Dispatcher | None = None
        self._documents: Documents | None = None
        self._tracing = _tracing()
        self._supervising: asyncio.Task[None] | None = None
        inference: dict[str, ASGIApp] = {
            path: InferenceEndpoint(path, self.state, self._running_dispatcher) for path in COMPLETIONS
        }
        inference[OCR] = InferenceEndpoint(OCR, self.state, self._running_documents)
        self.api = create_api(self.state, self._metrics, inference, self._running, int(time.time()))
        routed = EndpointRouter(self.api, inference)
        checked = ApiKeyCheck(routed, self.state, self._metrics, self.api.routes)
        self.application: ASGIApp = CommonHeaders(checked, self.state)
        _tell(fleet)

    @property
    def supervisor(self) -> Keeper | None:
        """Who keeps the embedded engine running, where it is configured."""
        return self._supervisor

    async def reload(self, config: Config) -> None:
        """Take another configuration over: requests in flight end under the one they came with.

        Raises:
            ConfigError: it cannot be served here, or would let everybody in; nothing has changed.
        """
        before = self.state.fleet.config
        check_change(before, config)
        fleet = await asyncio.to_thread(Fleet.of, config)
        if config.server.admin_port != before.server.admin_port:
            log.warning("server.admin_port has changed: it takes effect when the gateway is started again")
        renamed = config.model != before.model
        self._discovery.watch(config)
        self.state.configure(fleet, self._engines(config), self._discovery.pending())
        self._supervise()
        if renamed and self._supervisor:
            self._supervisor.terminate()  # it ends its work, and starts again under the new name
        _tell(fleet)

    def ask_reload(self) -> None:
        """Load the configuration file again (SIGHUP)."""
        if self._reloader:
            self._reloader.ask()

    async def drain(self, connections: ConnectionRegistry, *, linger: bool) -> None:
        """Return once work has ended: taken for `linger_s` more, then finished within `drain_s`."""
        server = self.state.fleet.config.server
        self.state.requests.announce_stop()
        linger_s = server.linger_s if linger else 0
        patience_s = max(linger_s, _PATIENCE_S)
        end = time.monotonic() + linger_s
        if linger_s:
            log.info("stopping: work is taken for another %g s", linger_s)
        while (left := end - time.monotonic()) > 0:
            connections.close_idle(time.monotonic(), patience_s)
            await asyncio.sleep(min(left, _LOOK_S))
        kept = connections.close_idle(time.monotonic(), patience_s)
        self.state.requests.drain(kept)
        end = time.monotonic() + server.drain_s
        # Those that still come, such as a balancer's checks, are not waited for: they might never end.
        while kept & connections.close_idle(time.monotonic(), patience_s) or self.state.requests.open:
            if time.monotonic() > end:
                if self.state.requests.open:
                    log.warning(
                        "stopping: %d requests are broken off (server.drain_s)", self.state.requests.open
                    )
                return
            await asyncio.sleep(_LOOK_S)

    def _running_dispatcher(self) -> Dispatcher:
        if self._dispatcher is None:
            raise RuntimeError(_NOT_STARTED)
        return self._dispatcher

    def _running_documents(self) -> Documents:
        if self._documents is None:
            raise RuntimeError(_NOT_STARTED)
        return self._documents

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        fetcher = ImageFetcher(lambda: self.state.fleet.config.remote_images)
        async with EngineClient() as client, fetcher, ImageInspector() as vision:
            intake = Intake(vision, fetcher)
            dispatcher = Dispatcher(self.state, client, self._metrics, vision, intake, self._tracing)
            self._dispatcher = dispatcher
            self._documents = Documents(
                self.state, dispatcher, self._metrics, vision, fetcher, self._documents_at_once
            )
            poller = Poller(self.state, client, time.monotonic, self._rng, on_hung=self._restart)
            runs = [poller.run(), self._discovery.run()]
            if self._reloader:
                runs.append(self._reloader.run())
            self._supervise()
            async with background(*runs):
                yield
            if self._supervising:
                self._supervising.cancel()
                await asyncio.gather(self._supervising, return_exceptions=True)
        if self._tracing:
            await self._tracing.close()

    def _engines(self, config: Config) -> tuple[Engine, ...]:
        if self._supervisor is None and wants_embedded(config):
            self._supervisor = Supervisor(
                lambda fd: embedded_command(fd, self.state.fleet.config), self._embedded_died
            )
        return self._discovery.engines(self._supervisor.url if self._supervisor else None)

    def _addresses_changed(self) -> None:
        self.state.set_engines(self._engines(self.state.fleet.config), self._discovery.pending())

    def _count_reload(self, valid: bool) -> None:
        self._metrics.reloaded(valid=valid)

    def _supervise(self) -> None:
        if self._supervisor and self._supervising is None:
            self._supervising = asyncio.create_task(self._supervisor.run())
            self._supervising.add_done_callback(report_failure)

    def _restart(self, engine: Engine) -> None:
        if engine.name == EMBEDDED and self._supervisor:
            log.error("the embedded engine hangs; it is killed and started again")
            self._supervisor.kill()

    def _embedded_died(self) -> None:
        self.state.mark(EMBEDDED, up=False)


def require_embedded(config: Config) -> None:
    """Check that the embedded engine can run here where a configuration wants it.

    Raises:
        ConfigError: its packages are missing.
    """
    if wants_embedded(config) and importlib.util.find_spec("rapidocr") is None:
        raise ConfigError(["the embedded engine needs: pip install 'ocr-gateway[embedded]'"])


def _tracing() -> Tracing | None:
    """Return what the standard variables ask for: spans for a collector, or none.

    Raises:
        ConfigError: spans, but their packages are missing, or what cannot be done.
    """
    asked = os.environ.get
    endpoint = asked("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or asked("OTEL_EXPORTER_OTLP_ENDPOINT")
    off = asked("OTEL_SDK_DISABLED", "").strip().lower() == "true" or asked("OTEL_TRACES_EXPORTER") == "none"
    if not endpoint or off:
        return None
    try:
        from gateway.telemetry.tracing import Tracing  # its packages are loaded, and needed, only here
    except ImportError as error:
        raise ConfigError(
            ["OTEL_EXPORTER_OTLP_ENDPOINT asks for tracing, which needs: pip install 'ocr-gateway[tracing]'"]
        ) from error
    return Tracing.to_collector()


def check_change(before: Config, after: Config) -> None:
    """Check that a configuration may take another's place while it is served.

    Raises:
        ConfigError: it cannot be served here, or would let everybody in.
    """
    require_embedded(after)
    if before.auth.keys_file and not after.auth.keys_file:
        # Half a file may still be a whole configuration.
        raise ConfigError(["auth.keys_file: keys are taken away by a restart only; they hold on"])


def embedded_command(fd: int, config: Config) -> list[str]:
    """Return what follows the Python interpreter for the embedded engine, on a socket that listens."""
    options = ["--fd", str(fd), "--model", config.model, "--exit-with-stdin"]
    return ["-m", "gateway.engines.embedded", *options]


def wants_embedded(config: Config) -> bool:
    """Whether a configuration has the embedded engine."""
    return any(EMBEDDED in pool.engines for pool in config.pools.values())


def _tell(fleet: Fleet) -> None:
    for note in fleet.notes:
        log.warning("%s", note)


@asynccontextmanager
async def background(*runs: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Run coroutines beside a block and cancel them when it is left; one that fails says so in the log."""
    tasks = [asyncio.create_task(run) for run in runs]
    for task in tasks:
        task.add_done_callback(report_failure)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def report_failure(task: asyncio.Task[None]) -> None:
    """Say in the log that a task failed: a callback for tasks nobody waits for."""
    if not task.cancelled() and (error := task.exception()):
        log.critical("a background task failed", exc_info=error)
