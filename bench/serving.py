"""The gateway as users start it, in a process of its own, for benchmarks and for tests of the whole."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
_START_S = 120


@dataclass(frozen=True)
class Served:
    """A running `ocr-gateway serve`."""

    url: str
    process: subprocess.Popen[bytes]

    def get(self, path: str) -> str:
        """Return a page's body."""
        with urllib.request.urlopen(self.url + path, timeout=30) as page:
            return str(page.read(), "utf-8")

    def engine_pid(self) -> int:
        """Return the embedded engine's process id (Linux)."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        (pid,) = (pid for pid in children if b"embedded" in Path(f"/proc/{pid}/cmdline").read_bytes())
        return int(pid)

    def ready(self) -> bool:
        """Whether every route has an engine."""
        try:
            return all(json.loads(self.get("/ready"))["routes"].values())
        except OSError:
            return False

    def wait_ready(self, within_s: float = _START_S) -> None:
        """Wait until every route has an engine.

        Raises:
            RuntimeError: the process has ended.
            TimeoutError: not within so many seconds.
        """
        end = time.monotonic() + within_s
        while not self.ready():
            if self.process.poll() is not None:
                raise RuntimeError(f"the gateway ended with exit status {self.process.returncode}")
            if time.monotonic() > end:
                raise TimeoutError(f"not ready within {within_s} s")
            time.sleep(0.1)


def free_port() -> int:
    """Return a port of the loopback on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@contextlib.contextmanager
def serve(
    config: Path = ROOT / "routes.yaml", log: int | None = subprocess.DEVNULL, options: Sequence[str] = ()
) -> Iterator[Served]:
    """Serve on a free port until the block is left.

    Args:
        config: the configuration file.
        log: where the log goes, as subprocess takes it.
        options: further ones of `ocr-gateway serve`.
    """
    port = free_port()
    command = [sys.executable, "-m", "gateway.cli", "serve", "--config", str(config), "--port", str(port)]
    command += options
    process = subprocess.Popen(command, cwd=ROOT, stderr=log)
    served = Served(f"http://127.0.0.1:{port}", process)
    try:
        served.wait_ready()
        yield served
    finally:
        process.terminate()
        process.wait(30)


@contextlib.asynccontextmanager
async def serving(config: Path, **options: Any) -> AsyncIterator[Served]:
    """Serve as `serve` does, without blocking the event loop meanwhile."""
    server = serve(config, **options)
    served = await asyncio.to_thread(server.__enter__)
    try:
        yield served
    finally:
        await asyncio.to_thread(server.__exit__, None, None, None)
