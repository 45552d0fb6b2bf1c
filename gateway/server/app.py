"""The composition root: a configuration becomes a running application, and another one takes its place."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from gateway.api.application import COMPLETIONS, Application, InferenceEndpoint
from gateway.api.auth import ApiKeyCheck
from gateway.api.endpoints import create_api
from gateway.config import EMBEDDED
from gateway.documents.endpoint import PATH as OCR
from gateway.documents.endpoint import DocumentEndpoint
from gateway.errors import ConfigError
from gateway.images.fetch import ImageFetcher
from gateway.images.inspector import ImageInspector
from gateway.policy.admit.memory_share import default_documents, default_limit
from gateway.request.dispatch import Dispatcher
from gateway.server.background import background
from gateway.server.embedded_process import EmbeddedSupervisor, require_embedded, wants_embedded
from gateway.server.machine import memory_bytes
from gateway.server.reload import Reloader
from gateway.state.fleet import Fleet
from gateway.state.store import State
from gateway.telemetry.metrics import Metrics
from gateway.upstream.client import EngineClient
from gateway.upstream.discovery import Discovery
from gateway.upstream.poller import Poller

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from starlette.types import ASGIApp

    from gateway.config import Config
    from gateway.model import Engine
    from gateway.server.embedded_process import EmbeddedKeeper
    from gateway.telemetry.tracing import Tracing

log = logging.getLogger(__name__)


class Gateway:
    """One gateway.

    Attributes:
        state: the engines, and the configuration served.
        embedded: keeps the embedded engine running where it is configured.
        application: what its server serves, over gateway.api.connection; it starts and stops the rest.
        api: the part that FastAPI has of that.
    """

    def __init__(
        self, config: Config, path: Path | None = None, embedded: EmbeddedKeeper | None = None
    ) -> None:
        """Compose it.

        Args:
            config: valid, and safe to serve.
            path: the file it came from, watched for changes; None where there is none.
            embedded: keeps the embedded engine, where that is not left to the gateway.
        """
        self._rng = random.Random()
        self.embedded = embedded or EmbeddedSupervisor(self._embedded_died)
        self.embedded.configure(config)
        self._discovery = Discovery(config, self._addresses_changed, self._rng)
        fleet = Fleet.of(config)
        self._memory_bytes = memory_bytes() // config.workers
        self._documents_at_once = default_documents(self._memory_bytes)
        self.state = State(
            fleet,
            self._engines(),
            time.monotonic,
            self._rng,
            self._discovery.pending(),
            self._inflight_bytes(config),
            lambda delay_s, call: asyncio.get_running_loop().call_later(delay_s, call),
        )
        self._metrics = Metrics(self.state)
        self._reloader = Reloader(path, config, self.reload, self._count_reload) if path else None
        self._dispatcher: Dispatcher | None = None
        self._documents: DocumentEndpoint | None = None
        self._tracing = _tracing()
        self._inference = {path: InferenceEndpoint(path, self.state) for path in (*COMPLETIONS, OCR)}
        self.api = create_api(self.state, self._metrics, self._inference, self._running, int(time.time()))
        keys = ApiKeyCheck(self.state, self._metrics, self.api.routes)
        self.application: ASGIApp = Application(self.api, self._inference, keys, self.state)
        _tell(fleet)

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
        self._discovery.watch(config)
        self.embedded.configure(config)
        self.state.unresolved = self._discovery.unresolved()
        self.state.configure(fleet, self._engines(), self._discovery.pending(), self._inflight_bytes(config))
        _tell(fleet)

    def ask_reload(self) -> None:
        """Load the configuration file again (SIGHUP)."""
        if self._reloader:
            self._reloader.ask()

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        fetcher = ImageFetcher(lambda: self.state.fleet.config.remote_images)
        async with EngineClient() as client, fetcher, ImageInspector() as vision:
            dispatcher = Dispatcher(self.state, client, self._metrics, vision, fetcher, self._tracing)
            self._dispatcher = dispatcher
            self._documents = DocumentEndpoint(
                self.state, dispatcher, self._metrics, vision, fetcher, self._documents_at_once
            )
            for path, endpoint in self._inference.items():
                endpoint.dispatcher = self._documents if path == OCR else dispatcher
            poller = Poller(self.state, client, time.monotonic, self._rng, on_hung=self._restart)
            runs = [poller.run(), self._discovery.run()]
            if self._reloader:
                runs.append(self._reloader.run())
            async with background(self.embedded.run()), background(*runs):
                yield
        if self._tracing:
            await self._tracing.close()

    def _engines(self) -> tuple[Engine, ...]:
        return self._discovery.engines(self.embedded.url)

    def _inflight_bytes(self, config: Config) -> int:
        """What requests may hold in memory beside documents, where the configuration does not say."""
        return default_limit(self._memory_bytes, config.documents.at_once or self._documents_at_once)

    def _addresses_changed(self) -> None:
        self.state.unresolved = self._discovery.unresolved()
        self.state.set_engines(self._engines(), self._discovery.pending())

    def _count_reload(self, valid: bool) -> None:
        self._metrics.reloaded(valid=valid)

    def _restart(self, engine: Engine) -> None:
        if engine.name == EMBEDDED:
            log.error("the embedded engine hangs; it is killed and started again")
            self.embedded.kill()

    def _embedded_died(self) -> None:
        self.state.mark(EMBEDDED, up=False, fault="its process has ended; it is started again")


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
    if after.workers > 1 and wants_embedded(after) and not wants_embedded(before):
        raise ConfigError(["pools.*.engines: with several workers embedded is added by a restart only"])
    if before.auth.keys_file and not after.auth.keys_file:
        # Half a file may still be a whole configuration.
        raise ConfigError(["auth.keys_file: keys are taken away by a restart only; they stay in force"])


def _tell(fleet: Fleet) -> None:
    for note in fleet.notes:
        log.warning("%s", note)
