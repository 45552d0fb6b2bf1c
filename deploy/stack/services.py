"""What the local stack consists of, and how its processes are started, watched and ended.

Its engines are simulated, and so is every figure they make.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

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
GATEWAY, PROMETHEUS, GRAFANA, LOAD = "gateway", "Prometheus", "Grafana", "load"
PORTS = {
    GATEWAY: 8000,
    PROMETHEUS: 9090,
    GRAFANA: 3000,
    **{name: port for port, name in enumerate(ENGINES, start=8101)},
}
_HOST = "127.0.0.1"
_START_S = 120.0
_END_S = 20.0
_LOOK_S = 0.2
_TAIL_LINES = 15
_GRAFANA_HOMES = (
    "/usr/share/grafana",
    "/usr/local/share/grafana",
    "/opt/homebrew/opt/grafana/share/grafana",
)


class StackError(Exception):
    """The stack cannot start, or a part of it has ended; the text says what would help."""


@dataclass(frozen=True)
class Service:
    """A process of the stack: `ready` is the URL that answers 200 once it is up."""

    name: str
    command: Sequence[str]
    ready: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


def shifted(by: int) -> dict[str, int]:
    """Return the usual ports, each moved by as much."""
    return {name: port + by for name, port in PORTS.items()}


def require_free(ports: Mapping[str, int]) -> None:
    """Refuse to start over somebody else's ports.

    Raises:
        StackError: it names every port that is taken, and a shift under which none is.
    """
    taken = [f"port {port} is taken, and {name} wants it" for name, port in ports.items() if not _free(port)]
    if not taken:
        return
    shifts = (by for by in range(100, 20_000, 100) if all(map(_free, shifted(by).values())))
    raise StackError("\n".join([*taken, f"make stack ARGS='--shift {next(shifts)}' moves every port"]))


def _free(port: int) -> bool:
    try:
        with socket.create_server((_HOST, port)):
            return True
    except OSError:
        return False


def url(ports: Mapping[str, int], name: str) -> str:
    """Return a service's base URL."""
    return f"http://{_HOST}:{ports[name]}"


def engine_arguments(name: str) -> list[str]:
    """Return how an engine is started, but for its address."""
    depth, tells = ENGINES[name]
    return [
        "simulated-engine",
        f"--depth={depth}",
        f"--model={MODEL}",
        f"--model-file={FIT}",
        f"--seed={list(ENGINES).index(name)}",
        f"--per-request-spec-decode-metrics={tells}",
    ]


def serving(ports: Mapping[str, int]) -> list[Service]:
    """Return the simulated engines and the gateway in front of them."""
    python = [sys.executable, "-m", "gateway.cli"]
    engines = [
        Service(
            name, [*python, *engine_arguments(name), f"--port={ports[name]}"], url(ports, name) + "/health"
        )
        for name in ENGINES
    ]
    command = [*python, "serve", f"--config={HERE / 'routes.yaml'}", f"--port={ports[GATEWAY]}"]
    addresses = {name: f"{_HOST}:{ports[name]}" for name in ENGINES}
    return [*engines, Service(GATEWAY, command, url(ports, GATEWAY) + "/ready", addresses)]


def watching(ports: Mapping[str, int], folder: Path, *, scrape_s: int) -> list[Service]:
    """Return Prometheus and Grafana as far as they are installed; their files are written to `folder`."""
    services = []
    if prometheus := shutil.which("prometheus"):
        config = folder / "prometheus.yml"
        config.write_text(yaml.safe_dump(_prometheus_config(ports, scrape_s)))
        command = [
            prometheus,
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'prometheus'}",
            f"--web.listen-address={_HOST}:{ports[PROMETHEUS]}",
            "--log.level=warn",
        ]
        services.append(Service(PROMETHEUS, command, url(ports, PROMETHEUS) + "/-/ready"))
        if command := _grafana_command():
            settings = _grafana_settings(ports, folder)
            services.append(Service(GRAFANA, command, url(ports, GRAFANA) + "/api/health", settings))
    return services


def _prometheus_config(ports: Mapping[str, int], scrape_s: int) -> object:
    """Return prometheus.yml with this machine's addresses and paths."""
    config = yaml.safe_load((HERE / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": f"{scrape_s}s", "evaluation_interval": f"{scrape_s}s"}
    config["rule_files"] = [str(DEPLOY / "prometheus" / Path(name).name) for name in config["rule_files"]]
    (job,) = config["scrape_configs"]
    job["static_configs"] = [{"targets": [f"{_HOST}:{ports[GATEWAY]}"]}]
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
        "GF_SERVER_HTTP_ADDR": _HOST,
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


class Stack:
    """Processes that are started one group after the other, and ended in the opposite order."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def names(self) -> list[str]:
        """Return what runs."""
        return list(self._processes)

    def start(self, services: Sequence[Service], *, shown: bool = False) -> None:
        """Start services and wait until all of them are ready; `shown` ones print to our own output.

        Raises:
            StackError: one ended instead, or took too long.
        """
        for service in services:
            with self._log(service.name).open("wb") as log:
                self._processes[service.name] = subprocess.Popen(  # noqa: S603 - our own commands
                    service.command,
                    cwd=ROOT,
                    env={**os.environ, **service.environment},
                    stdout=None if shown else log,
                    stderr=None if shown else log,
                    start_new_session=True,  # so that Ctrl-C is ours alone, and the order of ending kept
                )
        end = time.monotonic() + _START_S
        for service in services:
            while service.ready and not _answers(service.ready):
                self.require_alive()
                if time.monotonic() > end:
                    tail = self._tail(service.name)
                    raise StackError(f"{service.name} was not ready within {_START_S:.0f} s{tail}")
                time.sleep(_LOOK_S)

    def require_alive(self) -> None:
        """Check that every process runs.

        Raises:
            StackError: one has ended; the text has the end of its log.
        """
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise StackError(f"{name} ended with exit status {process.returncode}{self._tail(name)}")

    def end(self) -> None:
        """End every process, the last one started first."""
        for process in reversed(self._processes.values()):
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _tail(self, name: str) -> str:
        lines = self._log(name).read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        return "".join(f"\n  {line}" for line in lines)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as page:  # noqa: S310 - our own addresses
            return bool(page.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


@contextlib.contextmanager
def running(
    ports: Mapping[str, int],
    *,
    load: Sequence[str] | None = (),
    scrape_s: int = 5,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[Stack]:
    """Run the stack until the block is left.

    Args:
        ports: where each part listens.
        load: options of the load; None for no load.
        scrape_s: how often Prometheus scrapes and evaluates.
        say: is told what happens.

    Raises:
        StackError: something does not start.
    """
    require_free(ports)
    with tempfile.TemporaryDirectory(prefix="ocr-gateway-stack-") as name:
        stack = Stack(Path(name))
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
