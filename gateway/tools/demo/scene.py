"""What the demonstration consists of: engines of three depths, the gateway, its configuration, the load."""

from __future__ import annotations

import contextlib
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from gateway import child
from gateway.engines.simulated.step_model import Fit, throughput
from gateway.tools.demo import demo_load
from gateway.tools.demo.processes import (
    HOST,
    PROMETHEUS,
    Processes,
    Service,
    ServiceFailed,
    free_port,
    gateway,
    is_free,
    prometheus,
    simulated_engine,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

MODEL = "glm-ocr-simulated"
FIT = "h100-9b"
# One engine of each.
DEPTHS = {"mtp3": 3, "mtp1": 1, "plain": 0}
MAX_LOAD = 256
_LOADS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_ENGINES_FROM = 101  # above the gateway's port
_PROMETHEUS_PORT = 9090
_SCRAPE_S = 5
# A checkout has the rules; an installed package does not.
_RULES = Path(__file__).resolve().parents[3] / "deploy" / "prometheus"


@dataclass(frozen=True)
class Scene:
    """How the demonstration runs.

    Attributes:
        port: the gateway's.
        few: clients at the least.
        many: at the most.
        period_s: seconds from few clients to few clients.
        time_scale: how many times as fast as real ones the engines are.
        prometheus: take a Prometheus along where one is installed.
    """

    port: int = 8000
    few: int = 4
    many: int = 240
    period_s: float = 120.0
    time_scale: float = 1.0
    prometheus: bool = True

    @property
    def url(self) -> str:
        """The gateway's base URL."""
        return f"http://{HOST}:{self.port}"


@dataclass(frozen=True)
class Running:
    """The demonstration while it runs.

    Attributes:
        processes: all of it.
        prometheus: Prometheus' base URL; empty where there is none.
    """

    processes: Processes
    prometheus: str


def profiles(fit: Fit, time_scale: float) -> dict[str, Any]:
    """Return each route's profile, as a sweep of such engines would find it without any noise."""
    return {
        route: {
            "route": route,
            "pools": {
                pool: [[n, round(time_scale * throughput(fit, depth, {route: n})[route], 1)] for n in _LOADS]
                for pool, depth in DEPTHS.items()
            },
            "meta": {"simulated": fit.name},
        }
        for route in fit.routes
    }


def configuration(engines: Mapping[str, int], routes: Mapping[str, str]) -> dict[str, Any]:
    """Return routes.yaml's values.

    Args:
        engines: the port of each pool's engine.
        routes: the file of each route's profile.
    """
    speculative = {
        pool: {"speculative_config": {"method": "mtp", "num_speculative_tokens": depth}} if depth else {}
        for pool, depth in DEPTHS.items()
    }
    return {
        "model": MODEL,
        "pools": {
            pool: {**speculative[pool], "engines": [f"http://{HOST}:{engines[pool]}"], "max_load": MAX_LOAD}
            for pool in DEPTHS
        },
        "routes": {route: {"profile": profile} for route, profile in routes.items()},
        "sorting": {"default": "text"},
        "server": {"replicas": 1, "linger_s": 0, "drain_s": 5},
    }


@contextlib.contextmanager
def running(scene: Scene, say: Callable[[str], None] = lambda line: None) -> Iterator[Running]:
    """Run the demonstration until the block is left; then nothing of it is left behind.

    Args:
        scene: how it runs.
        say: is told what happens.

    Raises:
        ServiceFailed: the port is taken, or a process does not start.
    """
    if not is_free(scene.port):
        other = free_port(scene.port + 1)
        raise ServiceFailed(f"port {scene.port} is taken: choose another one, such as --port {other}")
    with tempfile.TemporaryDirectory(prefix="ocr-gateway-demo-") as name:
        folder = Path(name)
        processes = Processes(folder)
        try:
            say(f"starting {len(DEPTHS)} simulated engines (fit {FIT}) and the gateway")
            ports = _ports(scene)
            processes.start(_serving(scene, ports, folder))
            watcher = prometheus(folder, ports[PROMETHEUS], _scraping(scene)) if scene.prometheus else None
            if watcher:
                processes.start([watcher])
            clients = demo_load.arguments(scene.url, scene.few, scene.many, scene.period_s)
            processes.start([Service("load", child.interpreter(*clients))])
            yield Running(processes, f"http://{HOST}:{ports[PROMETHEUS]}" if watcher else "")
        finally:
            processes.end()


def _ports(scene: Scene) -> dict[str, int]:
    """The first free ports from the usual ones on."""
    ports: dict[str, int] = {}
    for pool in DEPTHS:
        ports[pool] = free_port(scene.port + _ENGINES_FROM, ports.values())
    ports[PROMETHEUS] = free_port(_PROMETHEUS_PORT, [scene.port, *ports.values()])
    return ports


def _serving(scene: Scene, ports: Mapping[str, int], folder: Path) -> list[Service]:
    files = {}
    for route, profile in profiles(Fit.builtin(FIT), scene.time_scale).items():
        files[route] = f"{route}.json"
        (folder / files[route]).write_text(json.dumps(profile))
    config = folder / "routes.yaml"
    config.write_text(yaml.safe_dump(configuration(ports, files), sort_keys=False))
    engines = [
        simulated_engine(
            f"engine-{pool}",
            ports[pool],
            depth=depth,
            model=MODEL,
            model_file=FIT,
            time_scale=scene.time_scale,
            seed=seed,
            shutdown_timeout=1,
        )
        for seed, (pool, depth) in enumerate(DEPTHS.items())
    ]
    return [*engines, gateway(config, scene.port)]


def _scraping(scene: Scene) -> dict[str, Any]:
    rules = [_RULES / name for name in ("rules.yaml", "alerts.yaml")]
    return {
        "global": {"scrape_interval": f"{_SCRAPE_S}s", "evaluation_interval": f"{_SCRAPE_S}s"},
        "rule_files": [str(file) for file in rules if file.exists()],
        "scrape_configs": [
            {
                "job_name": "ocr-gateway-simulated",
                "static_configs": [{"targets": [f"{HOST}:{scene.port}"]}],
            }
        ],
    }
