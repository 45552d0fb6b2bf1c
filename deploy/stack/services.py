"""What the local stack consists of; gateway.tools.demo.processes starts, watches and ends it.

Its engines are simulated, and so is every figure they make.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from gateway.tools.demo.processes import (
    GATEWAY,
    HOST,
    PROMETHEUS,
    Processes,
    Service,
    ServiceFailed,
    gateway,
    is_free,
    prometheus,
    simulated_engine,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

HERE = Path(__file__).resolve().parent
DEPLOY, ROOT = HERE.parent, HERE.parents[1]
MODEL = "glm-ocr-simulated"
FIT = "slow-verify"
# The depth of each simulated engine, and whether its answers tell their acceptance. routes.yaml takes the
# addresses from environment variables of these names.
ENGINES = {
    "ENGINE_MTP3_A": (3, "summary"),
    "ENGINE_MTP3_B": (3, "none"),
    "ENGINE_MTP1": (1, "none"),
    "ENGINE_PLAIN": (0, "none"),
}
# It is made to fail now and then; its pool's other engine and the plain one take its work.
TROUBLED = "ENGINE_MTP3_B"
GRAFANA, LOAD = "Grafana", "load"
PORTS = {
    GATEWAY: 8000,
    PROMETHEUS: 9090,
    GRAFANA: 3000,
    **{name: port for port, name in enumerate(ENGINES, start=8101)},
}
_GRAFANA_HOMES = (
    "/usr/share/grafana",
    "/usr/local/share/grafana",
    "/opt/homebrew/opt/grafana/share/grafana",
)


def shifted(by: int) -> dict[str, int]:
    """Return the usual ports, each moved by as much."""
    return {name: port + by for name, port in PORTS.items()}


def require_free(ports: Mapping[str, int]) -> None:
    """Refuse to start over somebody else's ports.

    Raises:
        ServiceFailed: it names every port that is taken, and a shift under which none is.
    """
    taken = [
        f"port {port} is taken, and {name} wants it" for name, port in ports.items() if not is_free(port)
    ]
    if not taken:
        return
    shifts = (by for by in range(100, 20_000, 100) if all(map(is_free, shifted(by).values())))
    raise ServiceFailed("\n".join([*taken, f"make stack ARGS='--shift {next(shifts)}' moves every port"]))


def url(ports: Mapping[str, int], name: str) -> str:
    """Return a service's base URL."""
    return f"http://{HOST}:{ports[name]}"


def engine_options(name: str) -> dict[str, object]:
    """Return how an engine is started, but for its address."""
    depth, metrics = ENGINES[name]
    return {
        "depth": depth,
        "model": MODEL,
        "model_file": FIT,
        "seed": list(ENGINES).index(name),
        "per_request_spec_decode_metrics": metrics,
    }


def serving(ports: Mapping[str, int]) -> list[Service]:
    """Return the simulated engines and the gateway in front of them."""
    engines = [simulated_engine(name, ports[name], **engine_options(name)) for name in ENGINES]
    addresses = {name: f"{HOST}:{ports[name]}" for name in ENGINES}
    return [*engines, gateway(HERE / "routes.yaml", ports[GATEWAY], addresses)]


def watching(ports: Mapping[str, int], folder: Path, *, scrape_s: int) -> list[Service]:
    """Return Prometheus and Grafana as far as they are installed; their files are written to `folder`."""
    services = []
    if watcher := prometheus(folder, ports[PROMETHEUS], _prometheus_config(ports, scrape_s)):
        services.append(watcher)
        if command := _grafana_command():
            settings = _grafana_settings(ports, folder)
            services.append(Service(GRAFANA, command, url(ports, GRAFANA) + "/api/health", settings))
    return services


def _prometheus_config(ports: Mapping[str, int], scrape_s: int) -> dict[str, Any]:
    """Return prometheus.yml with this machine's addresses and paths."""
    config: dict[str, Any] = yaml.safe_load((HERE / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": f"{scrape_s}s", "evaluation_interval": f"{scrape_s}s"}
    config["rule_files"] = [str(DEPLOY / "prometheus" / Path(name).name) for name in config["rule_files"]]
    (job,) = config["scrape_configs"]
    job["static_configs"] = [{"targets": [f"{HOST}:{ports[GATEWAY]}"]}]
    return config


def _grafana_command() -> list[str]:
    homes = (os.environ.get("GF_PATHS_HOME", ""), *_GRAFANA_HOMES)
    home = next((f"--homepath={home}" for home in homes if home and Path(home).is_dir()), None)
    if found := shutil.which("grafana"):
        return [found, "server", *([home] if home else [])]
    if found := shutil.which("grafana-server"):
        return [found, *([home] if home else [])]
    return []


def _grafana_settings(ports: Mapping[str, int], folder: Path) -> dict[str, str]:
    return {
        "GF_SERVER_HTTP_ADDR": HOST,
        "GF_SERVER_HTTP_PORT": str(ports[GRAFANA]),
        "GF_PATHS_DATA": str(folder / "grafana"),
        "GF_PATHS_LOGS": str(folder / "grafana"),
        "GF_PATHS_PROVISIONING": str(DEPLOY / "grafana" / "provisioning"),
        "GF_AUTH_ANONYMOUS_ENABLED": "true",
        "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
        "PROMETHEUS_URL": url(ports, PROMETHEUS),
        "DASHBOARDS": str(DEPLOY / "grafana" / "dashboards"),
    }


def loading(ports: Mapping[str, int], options: Sequence[str]) -> Service:
    """Return the clients."""
    command = [sys.executable, "-m", "deploy.stack.load", f"--gateway={url(ports, GATEWAY)}"]
    return Service(LOAD, [*command, f"--trouble={url(ports, TROUBLED)}", *options])


@contextlib.contextmanager
def running(
    ports: Mapping[str, int],
    *,
    load: Sequence[str] | None = (),
    scrape_s: int = 5,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[Processes]:
    """Run the stack until the block is left.

    Args:
        ports: where each part listens.
        load: options of the load; None for no load.
        scrape_s: how often Prometheus scrapes and evaluates.
        say: called with a line of progress.

    Raises:
        ServiceFailed: something does not start.
    """
    require_free(ports)
    with tempfile.TemporaryDirectory(prefix="ocr-gateway-stack-") as name:
        stack = Processes(Path(name), ROOT)
        try:
            say(f"starting {len(ENGINES)} simulated engines and the gateway")
            stack.start(serving(ports))
            watchers = watching(ports, Path(name), scrape_s=scrape_s)
            say(f"starting {', '.join(service.name for service in watchers) or 'nothing to watch them'}")
            stack.start(watchers)
            if load is not None:
                stack.start([loading(ports, load)], shown=True)
            yield stack
        finally:
            stack.end()
