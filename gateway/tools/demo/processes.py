"""Processes that are started together, watched, and all ended, whatever happens."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

import yaml

from gateway import child

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

HOST = "127.0.0.1"
GATEWAY, PROMETHEUS = "gateway", "Prometheus"
_START_S = 120.0
_END_S = 20.0
_LOOK_S = 0.2
_TAIL_LINES = 15
_OCR_GATEWAY = tuple(child.interpreter("-m", "gateway.cli"))
# SIGHUP: the terminal is closed.
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ServiceFailed(Exception):
    """A process cannot start, or has ended; the text says what would help."""


@dataclass(frozen=True)
class Service:
    """A process to run.

    Attributes:
        name: what it is called where its end is told.
        command: its command line.
        ready: the URL that answers 200 once it is up; empty where there is none.
        environment: variables beside our own.
    """

    name: str
    command: Sequence[str]
    ready: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


class Processes:
    """Services that are started one group after the other, and ended in the opposite order."""

    def __init__(self, folder: Path, cwd: Path | None = None) -> None:
        """Start with none.

        Args:
            folder: where their logs are written.
            cwd: where they run; `folder` where it is None.
        """
        self._folder = folder
        self._cwd = cwd or folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def names(self) -> list[str]:
        """Return what runs."""
        return list(self._processes)

    def start(self, services: Sequence[Service], *, shown: bool = False) -> None:
        """Start services and wait until all of them are ready; `shown` ones print to our own output.

        Raises:
            ServiceFailed: one ended instead, or took too long.
        """
        for service in services:
            with self._log(service.name).open("wb") as log:
                self._processes[service.name] = subprocess.Popen(  # noqa: S603 - our own commands
                    service.command,
                    cwd=self._cwd,
                    env={**os.environ, **service.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=None if shown else log,
                    stderr=None if shown else log,
                    preexec_fn=child.end_with_parent,
                    start_new_session=True,  # so that Ctrl-C is ours alone, and the order of ending kept
                )
        end = time.monotonic() + _START_S
        for service in services:
            while service.ready and not _answers(service.ready):
                self.require_alive()
                if time.monotonic() > end:
                    tail = self._tail(service.name)
                    raise ServiceFailed(f"{service.name} was not ready within {_START_S:.0f} s{tail}")
                time.sleep(_LOOK_S)

    def require_alive(self) -> None:
        """Check that every process runs.

        Raises:
            ServiceFailed: one has ended; the text has the end of its log.
        """
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise ServiceFailed(f"{name} ended with exit status {process.returncode}{self._tail(name)}")

    def end(self) -> None:
        """End every process, the last one started first; where that is interrupted, kill what is left."""
        try:
            for process in reversed(self._processes.values()):
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_END_S)
        finally:
            for process in self._processes.values():
                process.kill()
                process.wait()
            self._processes.clear()

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _tail(self, name: str) -> str:
        lines = self._log(name).read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        return "".join(f"\n  {line}" for line in lines)


def interrupted_by_signals() -> None:
    """Have the first signal that ends us raise KeyboardInterrupt, also where a shell has SIGINT ignored.

    A second one must not keep the first from ending every process.
    """

    def interrupt(number: int, frame: object) -> NoReturn:
        for number in _ENDS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in _ENDS:
        signal.signal(number, interrupt)


def is_free(port: int) -> bool:
    """Return whether nobody listens on a port of the loopback."""
    try:
        with socket.create_server((HOST, port)):
            return True
    except OSError:
        return False


def free_port(first: int, taken: Iterable[int] = ()) -> int:
    """Return the first free port from `first` on that is not among `taken`.

    Raises:
        ServiceFailed: there is none.
    """
    avoided = set(taken)
    for port in range(first, 65536):
        if port not in avoided and is_free(port):
            return port
    raise ServiceFailed(f"no port of {HOST} from {first} on is free")


def simulated_engine(name: str, port: int, **options: object) -> Service:
    """Return a simulated engine; options as `ocr-gateway simulated-engine` has them."""
    flags = [f"--{option.replace('_', '-')}={value}" for option, value in options.items()]
    command = [*_OCR_GATEWAY, "simulated-engine", f"--port={port}", *flags]
    return Service(name, command, f"http://{HOST}:{port}/health")


def gateway(config: Path, port: int, environment: Mapping[str, str] | None = None) -> Service:
    """Return a gateway that serves a routes.yaml."""
    command = [*_OCR_GATEWAY, "serve", f"--config={config}", f"--port={port}"]
    return Service(GATEWAY, command, f"http://{HOST}:{port}/ready", environment or {})


def prometheus(folder: Path, port: int, config: object) -> Service | None:
    """Return a Prometheus with a configuration, its files in `folder`; None where it is not installed."""
    program = shutil.which("prometheus")
    if program is None:
        return None
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    command = [
        program,
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address={HOST}:{port}",
        "--log.level=warn",
    ]
    return Service(PROMETHEUS, command, f"http://{HOST}:{port}/-/ready")


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as page:  # noqa: S310 - our own addresses
            return bool(page.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
