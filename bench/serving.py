"""The gateway as users start it, in a process of its own, for benchmarks and for tests of the whole."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
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
    """Return a port of the loopback on which nobody listens.

    It is none of those that the system hands out by itself (Linux: from 32768 on): one of these may be taken
    by anybody's socket before the server that it is for listens on it.
    """
    while True:
        port = random.randrange(10_000, 32_768)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
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

    Raises:
        RuntimeError: it has ended before it was ready; with the end of its log, where that is a file.
    """
    port = free_port()
    command = [sys.executable, "-m", "gateway.cli", "serve", "--config", str(config), "--port", str(port)]
    command += options
    process = subprocess.Popen(command, cwd=ROOT, stderr=log)
    served = Served(f"http://127.0.0.1:{port}", process)
    try:
        try:
            served.wait_ready()
        except RuntimeError as error:
            if log is not None and log >= 0:
                error.add_note(Path(f"/proc/self/fd/{log}").read_text()[-4000:])
            raise
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
