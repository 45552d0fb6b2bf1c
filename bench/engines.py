"""Simulated engines in processes of their own, and a configuration of a gateway for them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import yaml

from bench.serving import ROOT, free_port
from gateway.engines.simulated.step_model import Fit, throughput

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator, Sequence
    from pathlib import Path

FIT = "h100-9b"
DEPTHS = (3, 3, 0, 0)
ROUTES = ("text", "key-value", "table")
_PROFILED_LOADS = (1, 8, 16, 32, 64, 128, 256)


class EngineProcess:
    """An `ocr-gateway simulated-engine` that can be ended and started again at the same address."""

    def __init__(self, depth: int, seed: int, time_scale: float) -> None:
        port = free_port()
        self.depth = depth
        self.name = f"127.0.0.1:{port}"
        self.url = f"http://{self.name}"
        options = {"port": port, "depth": depth, "seed": seed, "time-scale": time_scale, "model-file": FIT}
        self._command = [sys.executable, "-m", "gateway.cli", "simulated-engine"]
        self._command += [f"--{name}={value}" for name, value in options.items()]
        self._started: list[subprocess.Popen[bytes]] = []
        self.start()

    def start(self) -> None:
        """Start a process."""
        self.process = subprocess.Popen(self._command, cwd=ROOT, stderr=subprocess.DEVNULL)
        self._started.append(self.process)

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        self.process.send_signal(number)

    def end(self) -> None:
        """End every process that was started."""
        for process in self._started:
            process.kill()
            process.wait()


@contextlib.contextmanager
def engine_processes(
    depths: Sequence[int] = DEPTHS, time_scale: float = 1.0
) -> Iterator[list[EngineProcess]]:
    """Run simulated engines until the block is left."""
    engines = [EngineProcess(depth, seed, time_scale) for seed, depth in enumerate(depths)]
    try:
        yield engines
    finally:
        for engine in engines:
            engine.end()


def write_config(
    path: Path, engines: Sequence[EngineProcess], *, engine_key: str = "", **sections: Any
) -> None:
    """Write a configuration of a deep and a plain pool, with the model's own profiles.

    Args:
        path: the file; the profiles go beside it.
        engines: of depth 3 or plain.
        engine_key: the pools' `api_key`.
        sections: of the configuration, instead of those written otherwise.
    """
    fit = Fit.builtin(FIT)
    depths = {"mtp3": 3, "plain": 0}
    pools = {
        name: {"engines": [engine.url for engine in engines if engine.depth == depth], "api_key": engine_key}
        | ({"speculative_config": {"method": "mtp", "num_speculative_tokens": depth}} if depth else {})
        for name, depth in depths.items()
    }
    for route in ROUTES:
        curves = {
            name: [[load, throughput(fit, depth, {route: load})[route]] for load in _PROFILED_LOADS]
            for name, depth in depths.items()
        }
        profile = {"route": route, "pools": curves, "meta": {"simulated": FIT}}
        (path.parent / f"{route}.json").write_text(json.dumps(profile))
    config = {
        "model": "glm-ocr",
        "pools": pools,
        "routes": {route: {"profile": f"{route}.json"} for route in ROUTES},
        "server": {"linger_s": 1, "drain_s": 30, "replicas": 1},
        **sections,
    }
    swap(path, yaml.safe_dump(config))


def swap(path: Path, text: str) -> None:
    """Replace a file as Kubernetes does: it is a symbolic link, and the link is swapped."""
    version = path.parent / f"..{time.monotonic_ns()}"
    version.write_text(text)
    link = path.parent / f"..link-{time.monotonic_ns()}"
    link.symlink_to(version)
    link.replace(path)
