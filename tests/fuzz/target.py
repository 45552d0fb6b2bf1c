"""The gateway under fuzz: `ocr-gateway serve` in a process, with an engine that answers as vLLM does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
import time
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from bench.serving import serve
from tests.support import FakeEngine, answer, png, served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.serving import Served

KEY = "fuzz-0123456789abcdef"
# The key of a client with small limits.
LIMITED = "slow-0123456789abcdef"
# In a seed's URL it stands for the port of the image server.
IMAGE_PORT = 99999
ROUTES = ("text", "key-value", "table")
# The gateway's limit for sending a request.
SLOW_S = 1.0
# Longer than any of the gateway's time limits: no answer until then is a hang.
HANG_S = 20.0


class Engine(FakeEngine):
    """Answers requests that are JSON, refuses others as vLLM does, and serves an image."""

    image = png("remote", (64, 32))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/page.png":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"y")]})
            await send({"type": "http.response.body", "body": self.image})
            return
        try:
            await super().__call__(scope, receive, send)
        except (ValueError, RecursionError):
            headers = [(b"content-type", b"application/json")]
            error = {"message": "not JSON", "type": "BadRequestError", "param": None, "code": 400}
            await send({"type": "http.response.start", "status": 400, "headers": headers})
            await send({"type": "http.response.body", "body": json.dumps({"error": error}).encode()})


async def _answer(engine: FakeEngine, request: Any, send: Any) -> None:
    engine.bodies.clear()
    engine.headers.clear()
    await answer(engine, request, send)


@contextlib.contextmanager
def engine() -> Iterator[str]:
    """Serve an engine from a thread; yield its base URL."""
    started: threading.Event = threading.Event()
    urls: list[str] = []
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def run() -> None:
        async with served(Engine(behave=_answer)) as url:
            urls.append(url)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    try:
        if not started.wait(30):
            raise TimeoutError("the engine did not start")
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@dataclass
class Target:
    """The gateway under fuzz."""

    served: Served
    log: Path
    image_port: int

    @property
    def url(self) -> str:
        return self.served.url

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def page(self, path: str) -> str:
        """Return a page's body, asked for with the key."""
        request = urllib.request.Request(self.url + path, headers={"authorization": f"Bearer {KEY}"})
        with urllib.request.urlopen(request, timeout=HANG_S) as answer:
            return str(answer.read(), "utf-8")

    def rss_mb(self) -> float:
        """Return its resident memory (Linux)."""
        with open(f"/proc/{self.served.process.pid}/statm") as pages:
            return int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def held(self) -> dict[str, float]:
        """Return the gauges that are not 0 and are 0 at rest."""
        held: dict[str, float] = {}
        for line in self.page("/metrics").splitlines():
            series, _, value = line.rpartition(" ")
            if series.partition("{")[0] in _HELD and float(value):
                held[series] = float(value)
        return held

    def check_at_rest(self, within_s: float = HANG_S) -> None:
        """Check that it runs, and comes to rest.

        Raises:
            AssertionError: it does not.
        """
        end = time.monotonic() + within_s
        while held := self.held():
            assert time.monotonic() < end, f"still held: {held}"
            time.sleep(0.05)
        assert self.served.process.poll() is None

    def own_faults(self) -> list[str]:
        """Return the log's lines that report a fault of the gateway, with the lines behind each."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [
            "\n".join(lines[number : number + 30])
            for number, line in enumerate(lines)
            if "Traceback" in line or "CRITICAL" in line
        ]


_HELD = (
    *("ocr_gateway_in_flight", "ocr_gateway_waiting", "ocr_gateway_engine_in_flight"),
    "ocr_gateway_inflight_bytes",
)


@contextlib.contextmanager
def target(folder: Path, **sections: Any) -> Iterator[Target]:
    """Serve the gateway under fuzz; `sections` replace those of its configuration."""
    with engine() as url:
        keys, config, log = folder / "keys", folder / "routes.yaml", folder / "log"
        keys.write_text(f"fuzz {KEY}\nlimited {LIMITED}\n")
        image_port = int(url.rpartition(":")[2])
        values = {
            "model": "glm-ocr",
            "pools": {"pool": {"engines": [url]}},
            "routes": {
                name: {"timeouts": {"connect_s": 2, "first_event_s": 5, "total_s": 10}} for name in ROUTES
            },
            "polling": {"scrape_s": 0.5},
            "auth": {
                "keys_file": str(keys),
                "limits": {"limited": {"requests_per_minute": 20, "image_bytes_per_minute": 50_000}},
            },
            "remote_images": {
                "allow_hosts": [f"127.0.0.1:{image_port}"],
                "allow_networks": ["127.0.0.0/8"],
                "timeout_s": 2,
            },
            "limits": {
                "body_bytes": 1_000_000,
                "image_pixels": 4_000_000,
                "header_s": SLOW_S,
                "body_s": SLOW_S,
            },
            "server": {"linger_s": 0, "drain_s": 5},
            **sections,
        }
        config.write_text(yaml.safe_dump(values))
        with log.open("wb") as stderr, serve(config, stderr.fileno()) as gateway:
            yield Target(gateway, log, image_port)
