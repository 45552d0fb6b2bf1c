"""`python -m bench.replica [--quick]`: what ONE replica of the gateway bears on one core, to size it by.

`ocr-gateway serve` has a core to itself (its affinity); engines that answer at once and the clients share
another. CPU time per request is the figure to size by: on a shared machine others take part of the gateway's
core, and requests per second fall with it, so that share is printed, too. The engines are stubs: nothing here
says how fast OCR is.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import functools
import io
import json
import os
import platform
import random
import statistics
import tempfile
import time
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import uvloop
import yaml
from PIL import Image

from bench.serving import ROOT, Served, serve
from gateway.engines.replies import DONE, chunk_choice, event, usage, whole_choice
from gateway.model import Speculation
from gateway.wire.vllm import EngineCounts, metrics_page

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

RESULTS = ROOT / "bench/results/replica.json"
MODEL = "glm-ocr"
PATH = "/v1/chat/completions"
SIZES = {"200 kB": 200_000, "1.5 MB": 1_500_000}
CONCURRENT = (32, 256)
EVENTS, GAP_S = 64, 0.005
FLEETS = (16, 64, 256)
HELD = 256
OPEN_STREAMS, OPEN_GAP_S = 1000, 0.1
# vLLM's page with a speculative config; `gateway.client` says the same of it.
PAGE_BYTES = 60_000
POLL_S = 6.0
_SPREAD_S = 0.3
_TICKS = os.sysconf("SC_CLK_TCK")
_HEAD_END = b"\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"


def engine_page() -> bytes:
    """Return a vLLM's /metrics at rest, filled up to the real one's length with series that nobody reads."""
    counts = EngineCounts(speculation=Speculation(0, 0, 0, (0, 0, 0)))
    page = metrics_page(counts, MODEL).rstrip("\n") + "\n"
    line = 'vllm:request_params_max_tokens_bucket{{engine="0",le="{}",model_name="glm-ocr"}} 0.0\n'
    more = (PAGE_BYTES - len(page)) // len(line)
    return (page + "".join(line.format(le) for le in range(more))).encode()


def http(body: bytes, kind: str = "application/json") -> bytes:
    """Return a complete answer."""
    return b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (
        kind.encode(),
        len(body),
        body,
    )


def chunked(data: bytes) -> bytes:
    """Return one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Engines:
    """Stub engines, each on a port of its own; how they answer is set while they run.

    Attributes:
        events: of a stream; 0 answers whole.
        gap_s: seconds between a stream's events.
        hold: keep whole answers back until `release`.
        pages: how many GETs were answered.
    """

    def __init__(self) -> None:
        self.events, self.gap_s, self.hold, self.pages = 0, GAP_S, False, 0
        self.held: list[asyncio.Transport] = []
        self.streams: list[dict[asyncio.Transport, int]] = []
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
        self.opening = (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        ) + chunked(event(head, [chunk_choice({"role": "assistant", "content": ""})]))
        self.piece = chunked(event(head, [chunk_choice({"content": " | 3.50 |"})]))
        closing = event(head, [chunk_choice({"content": "\n"}, "stop")])
        closing += event(head, [], usage=usage(1200, 3 * EVENTS)) + DONE
        self.closing = chunked(closing) + _LAST_CHUNK
        message = {"role": "assistant", "content": " | 3.50 |" * EVENTS}
        choices = [whole_choice(message, "stop")]
        self.whole = http(
            json.dumps(
                {**head, "object": "chat.completion", "choices": choices, "usage": usage(1200, 3 * EVENTS)}
            ).encode()
        )
        self.gets = {
            b"/metrics": http(engine_page(), "text/plain; version=0.0.4; charset=utf-8"),
            b"/version": http(b'{"version":"0.32.0"}'),
            b"/health": http(b""),
        }

    @asynccontextmanager
    async def listening(self, count: int) -> AsyncIterator[list[str]]:
        """Serve so many engines; yield their URLs."""
        loop = asyncio.get_running_loop()
        servers, ticking = [], []
        for _ in range(count):
            streams: dict[asyncio.Transport, int] = {}
            self.streams.append(streams)
            servers.append(
                await loop.create_server(functools.partial(_Connection, self, streams), "127.0.0.1", 0)
            )
            ticking.append(loop.create_task(self._step(streams)))
        try:
            yield [f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers]
        finally:
            for task in ticking:
                task.cancel()
            await asyncio.gather(*ticking, return_exceptions=True)
            for server in servers:
                server.close()
            self.streams.clear()

    def release(self) -> None:
        """Answer what was held."""
        for transport in self.held:
            transport.write(self.whole)
        self.held.clear()

    async def _step(self, streams: dict[asyncio.Transport, int]) -> None:
        """Have an engine write: each of its steps an event of every stream."""
        await asyncio.sleep(random.uniform(0, self.gap_s))
        while True:
            await asyncio.sleep(self.gap_s)
            for transport, left in list(streams.items()):
                if transport.is_closing():
                    del streams[transport]
                elif left > 1:
                    streams[transport] = left - 1
                    transport.write(self.piece)
                else:
                    del streams[transport]
                    transport.write(self.closing)


class _Connection(asyncio.Protocol):
    """A connection of the gateway's to a stub engine."""

    def __init__(self, engines: Engines, streams: dict[asyncio.Transport, int]) -> None:
        self._engines, self._streams = engines, streams
        self._head, self._left = b"", 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._left:
            self._left -= len(data)
        else:
            self._head += data
            head, ended, rest = self._head.partition(_HEAD_END)
            if not ended:
                return
            self._head = b""
            method, path, _ = head.split(b" ", 2)
            if method == b"GET":
                self._engines.pages += 1
                self._transport.write(self._engines.gets[path])
                return
            self._left = content_length(head) - len(rest)
        if self._left == 0:
            self._answer()

    def _answer(self) -> None:
        engines = self._engines
        if engines.hold:
            engines.held.append(self._transport)
        elif engines.events:
            self._transport.write(engines.opening)
            self._streams[self._transport] = engines.events
        else:
            self._transport.write(engines.whole)


def content_length(head: bytes) -> int:
    """Return the length of the body that follows a head."""
    (found,) = (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return int(found.partition(b":")[2])


@dataclass
class Load:
    """A closed loop of clients: each sends its next request when it has its answer.

    Attributes:
        request: what each of them sends, head and body.
        done: answers with status 200.
        failed: any other.
        trouble: what came with the last of those.
        bytes: received.
    """

    request: bytes
    going: bool = True
    done: int = 0
    failed: int = 0
    trouble: bytes = b""
    bytes: int = 0
    connections: set[asyncio.Transport] = field(default_factory=set)
    _address: tuple[str, int] = ("", 0)
    _again: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self, url: str, count: int, within_s: float = _SPREAD_S) -> None:
        """Connect so many clients, and have them begin within so many seconds."""
        host, _, port = url.removeprefix("http://").partition(":")
        self._address = host, int(port)
        loop = asyncio.get_running_loop()
        for number in range(count):
            client = await self._connect()
            loop.call_later(within_s * number / count, client.send)

    def again(self) -> None:
        """Have a client whose connection the gateway closes go on over another."""
        if self.going and not self.failed:
            task = asyncio.create_task(self._go_on())
            self._again.add(task)
            task.add_done_callback(self._again.discard)

    async def _go_on(self) -> None:
        (await self._connect()).send()

    async def _connect(self) -> _Client:
        _, client = await asyncio.get_running_loop().create_connection(lambda: _Client(self), *self._address)
        return client

    async def stop(self) -> None:
        """Let no client send again, and close all."""
        self.going = False
        await asyncio.sleep(0.2)
        for transport in list(self.connections):
            transport.abort()
        await asyncio.sleep(0.3)


class _Client(asyncio.Protocol):
    def __init__(self, load: Load) -> None:
        self._load = load
        self._head, self._tail, self._left = b"", b"", -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._load.connections.add(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._load.connections.discard(self._transport)

    def send(self) -> None:
        """Send a request."""
        if self._load.going:
            self._head, self._tail, self._left = b"", b"", -1
            self._transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        self._load.bytes += len(data)
        if not self._tail:
            self._head += data
            head, ended, data = self._head.partition(_HEAD_END)
            if not ended:
                return
            self._head = head
            if b"transfer-encoding: chunked" not in head.lower():
                self._left = content_length(head)
        self._tail = (self._tail + data)[-len(_LAST_CHUNK) :] or b" "
        self._left -= len(data) if self._left > 0 else 0
        if self._left == 0 or (self._left < 0 and self._tail == _LAST_CHUNK):
            if self._head.startswith(b"HTTP/1.1 200 "):
                self._load.done += 1
            else:
                self._load.failed += 1
                self._load.trouble = self._head + data
            if b"\nconnection: close" in self._head.lower():
                self._transport.close()
                self._load.again()
            else:
                self.send()


@functools.cache
def scan(size: int) -> bytes:
    """Return a JPEG of about so many bytes, which are nearly all noise, and whole, as gateways check."""
    pixels = _jpeg_of(1_000_000)
    return _jpeg_of(1_000_000 * size // len(pixels))


def _jpeg_of(pixels: int) -> bytes:
    buffer = io.BytesIO()
    side = round(pixels**0.5)
    Image.effect_noise((side, side), 40).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def request(size: int, *, stream: bool = False) -> bytes:
    """Return a chat request whose body has about so many bytes, nearly all of them a picture's."""
    url = f"data:image/jpeg;base64,{base64.b64encode(scan(size * 3 // 4 - 200)).decode()}"
    parts = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "Text Recognition:"},
    ]
    body = {"model": MODEL, "messages": [{"role": "user", "content": parts}], "stream": stream}
    data = json.dumps(body).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; five minutes at most, for a machine that is busy otherwise."""
    async with asyncio.timeout(300):
        while not condition():  # noqa: ASYNC110 - it looks at counters of a hundred protocols
            await asyncio.sleep(0.05)


def cpu_s(pid: int) -> float:
    """Return the CPU seconds a process has used (Linux)."""
    told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(told[11]) + int(told[12])) / _TICKS


def busy_s(core: int) -> float:
    """Return the seconds a core has worked for anyone (Linux)."""
    (line,) = (line for line in Path("/proc/stat").read_text().splitlines() if line.startswith(f"cpu{core} "))
    user, nice, system, _, _, irq, softirq, steal = map(int, line.split()[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICKS


def rss_mb(pid: int) -> float:
    """Return a process's resident memory in MB (Linux)."""
    (line,) = (x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024 / 1e6


@dataclass(frozen=True)
class Window:
    """What a stretch of time cost the gateway."""

    seconds: float
    cpu: float
    foreign: float

    @property
    def share(self) -> float:
        """The part of its core it used."""
        return self.cpu / self.seconds


class Replica:
    """A gateway on a core of its own, and the engines behind it."""

    def __init__(self, served: Served, engines: Engines, core: int) -> None:
        self.served, self.engines, self._core = served, engines, core

    @property
    def rss_mb(self) -> float:
        """Its resident memory in MB."""
        return rss_mb(self.served.process.pid)

    async def window(self, seconds: float, enough: Callable[[], bool] = lambda: True) -> Window:
        """Let time pass, and more until there is enough; tell what it cost."""
        pid, began = self.served.process.pid, time.monotonic()
        cpu, busy = cpu_s(pid), busy_s(self._core)
        await asyncio.sleep(seconds)
        await until(enough)
        passed, used = time.monotonic() - began, cpu_s(pid) - cpu
        return Window(passed, used, max(0.0, busy_s(self._core) - busy - used) / passed)

    async def requests(self, size: int, concurrent: int, seconds: float, *, stream: bool) -> dict[str, float]:
        """Keep so many requests in flight; tell what they cost."""
        self.engines.events, self.engines.gap_s = EVENTS * stream, GAP_S
        load = Load(request(size, stream=stream))
        await load.start(self.served.url, concurrent)
        # Bodies that arrive together end together: the first of everyone's is over, and waves weigh little.
        await until(lambda: load.done >= concurrent)
        before = load.done
        window = await self.window(seconds, lambda: load.done >= before + 2 * concurrent)
        done = load.done - before
        await load.stop()
        if load.failed:
            raise RuntimeError(f"{load.failed} of {load.done} requests failed: {load.trouble.decode()}")
        return {
            "requests": done,
            "per_s": done / window.seconds,
            "cpu_ms": 1e3 * window.cpu / done,
            "share": window.share,
            "foreign": window.foreign,
        }

    async def held(self, size: int, count: int, rest: float) -> dict[str, float]:
        """Have requests stay at their engines; tell what memory each takes beyond what there was at rest."""
        self.engines.events, self.engines.hold = 0, True
        load = Load(request(size))
        await load.start(self.served.url, count)
        await until(lambda: len(self.engines.held) >= count)
        await asyncio.sleep(0.5)
        full = self.rss_mb
        load.going = False
        self.engines.hold = False
        self.engines.release()
        await until(lambda: load.done >= count)
        await load.stop()
        each = (full - rest) / count
        return {"in_flight": count, "mb": full, "each_mb": each, "after_mb": self.rss_mb}

    async def open_streams(self, count: int, seconds: float, rest: float) -> dict[str, float]:
        """Keep so many streams open, whose engines write ten events a second each."""
        self.engines.events, self.engines.gap_s = 1_000_000, OPEN_GAP_S
        load = Load(request(SIZES["200 kB"], stream=True))
        # They come one after the other, as people do.
        await load.start(self.served.url, count, within_s=count / 100)
        await until(lambda: sum(map(len, self.engines.streams)) >= count)
        await asyncio.sleep(1)
        before = load.bytes
        window = await self.window(seconds)
        events = (load.bytes - before) / len(self.engines.piece)
        mb = self.rss_mb
        await load.stop()
        return {
            "streams": count,
            "mb": mb,
            "each_mb": (mb - rest) / count,
            "events_per_s": events / window.seconds,
            "share": window.share,
            "foreign": window.foreign,
            "cpu_us_per_event": 1e6 * window.cpu / events,
        }

    async def polling(self, seconds: float) -> dict[str, float]:
        """Let it poll its idle engines."""
        pages = self.engines.pages
        window = await self.window(seconds)
        # Each poll asks for /health and /metrics.
        polls = (self.engines.pages - pages) / 2
        page = await asyncio.to_thread(self.served.get, "/metrics")
        return {
            "polls_per_s": polls / window.seconds,
            "cpu_ms_per_poll": 1e3 * window.cpu / polls,
            "share": window.share,
            "foreign": window.foreign,
            "mb": self.rss_mb,
            "series": sum(not line.startswith("#") for line in page.splitlines()),
        }


@asynccontextmanager
async def replica(count: int, cores: Sequence[int]) -> AsyncIterator[Replica]:
    """Start stub engines here, and a gateway in front of them on the first of the cores."""
    engines = Engines()
    async with engines.listening(count) as urls:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "routes.yaml"
            pool = {
                "engines": urls,
                "max_load": 4096,
                "speculative_config": {"method": "mtp", "num_speculative_tokens": 3},
            }
            # Patient: the harness, too, may be starved here, and what is asked is what a request costs.
            limits = {"schedule": [[1, 4096, 3]], "timeouts": {"connect_s": 30}}
            routes = dict.fromkeys(("text", "key-value", "table"), limits)
            config = {
                "model": MODEL,
                "pools": {"mtp3": pool},
                "routes": routes,
                "server": {"linger_s": 0, "drain_s": 1, "replicas": 1},
            }
            path.write_text(yaml.safe_dump(config))
            os.sched_setaffinity(0, cores[1:])
            with ExitStack() as stack:
                # It waits for /ready, which needs the engines, which are here.
                served = await asyncio.to_thread(_started, stack, path, cores[0])
                await asyncio.sleep(2)  # every engine has been read, and its version
                yield Replica(served, engines, cores[0])


def _started(stack: ExitStack, path: Path, core: int) -> Served:
    os.sched_setaffinity(0, [core])  # this thread's, which the process inherits
    return stack.enter_context(serve(path))


def median_of(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure over rounds; counts of requests add up."""
    found = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
    if "requests" in found:
        found["requests"] = sum(one["requests"] for one in rounds)
        found["least_cpu_ms"] = min(one["cpu_ms"] for one in rounds)
        found["most_cpu_ms"] = max(one["cpu_ms"] for one in rounds)
    return {key: round(value, 4) for key, value in found.items()}


async def measure(rounds: int, seconds: float) -> dict[str, Any]:
    """Measure everything; printed as it goes."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("this needs two cores: one for the gateway, one for engines and clients")
    cores = cores[:2]
    found: dict[str, Any] = {"about": about(rounds, seconds), "polling": {}}
    say(title(found["about"]))
    for count in FLEETS:
        async with replica(count, cores) as one:
            if count == FLEETS[0]:
                found |= await memory_of(one) | {"requests": await requests_of(one, rounds, seconds)}
            polls = [await one.polling(POLL_S / rounds) for _ in range(rounds)]
            some = [await one.requests(SIZES["200 kB"], 32, seconds, stream=False) for _ in range(rounds)]
            polling = median_of(polls) | {"request_cpu_ms": median_of(some)["cpu_ms"]}
            found["polling"][str(count)] = polling
            if count == FLEETS[0]:
                say("\nengines  polls/s  ms a poll  of the core   MB  series  ms a 200 kB request, all in")
            say(polling_line(count, polling))
    return found


def say(line: str) -> None:
    """Print at once."""
    print(line, flush=True)


async def memory_of(one: Replica) -> dict[str, Any]:
    """Measure memory in a process that has done nothing yet: what is freed is not all given back."""
    rest = one.rss_mb
    small = await one.held(SIZES["200 kB"], HELD, rest)
    streams = await one.open_streams(OPEN_STREAMS, 4.0, rest)
    large = await one.held(SIZES["1.5 MB"], HELD, rest)
    all_held = {"200 kB": small, "1.5 MB": large}
    say(f"memory: {rest:.0f} MB at rest")
    for name, held in all_held.items():
        say(
            f"  {HELD} requests of {name} at their engines: {held['mb']:.0f} MB, "
            f"{held['each_mb']:.2f} MB each; {held['after_mb']:.0f} MB when all are answered"
        )
    say(
        f"  {OPEN_STREAMS:,} open streams (200 kB), {streams['events_per_s']:,.0f} events a second in all: "
        f"{streams['mb']:.0f} MB, {streams['share']:.0%} of the core, "
        f"{streams['cpu_us_per_event']:.0f} us an event"
    )
    return {"rest_mb": rest, "held": all_held, "open_streams": streams}


async def requests_of(one: Replica, rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    """Measure requests of every kind."""
    cases = [(size, streamed, count) for size in SIZES for streamed in (False, True) for count in CONCURRENT]
    taken: dict[str, list[dict[str, float]]] = {}
    for _ in range(rounds):
        for size, streamed, count in cases:
            name = f"{size} {'streamed' if streamed else 'whole'}, {count}"
            rate = await one.requests(SIZES[size], count, seconds, stream=streamed)
            taken.setdefault(name, []).append(rate)
    say("\nrequest, at once     ms CPU (least, most)   a second: a whole core, seen (core had, others')")
    for name, rates in taken.items():
        say(request_line(name, median_of(rates)))
    return {name: median_of(rates) for name, rates in taken.items()}


def about(rounds: int, seconds: float) -> dict[str, Any]:
    """Return what was measured where."""
    processor = next(
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    )
    return {
        "machine": f"{processor}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        "versions": {"python": platform.python_version()}
        | {
            name: version(name)
            for name in ("ocr-gateway", "uvicorn", "uvloop", "httptools", "aiohttp", "starlette")
        },
        "rounds": rounds,
        "seconds": seconds,
        "events": EVENTS,
        "gap_ms": 1e3 * GAP_S,
        "engines": "stubs, which answer at once",
    }


def title(told: dict[str, Any]) -> str:
    """Return the heading."""
    versions = ", ".join(f"{name} {number}" for name, number in told["versions"].items())
    return (
        f"One replica on one core: {told['machine']}; {versions}; {FLEETS[0]} stub engines; median of "
        f"{told['rounds']} windows of {told['seconds']:g} s; a stream has {EVENTS} events, "
        f"{1e3 * GAP_S:g} ms apart"
    )


def request_line(name: str, found: dict[str, float]) -> str:
    """Return a row about requests of a kind."""
    return (
        f"{name:24}{found['cpu_ms']:5.2f} ({found['least_cpu_ms']:.2f}, {found['most_cpu_ms']:.2f})"
        f"{1e3 / found['cpu_ms']:15.0f}{found['per_s']:10.0f}  ({found['share']:.0%}, {found['foreign']:.0%})"
        f"{found['requests']:8.0f} requests"
    )


def polling_line(count: int, found: dict[str, float]) -> str:
    """Return a row about a fleet's polling."""
    return (
        f"{count:7}{found['polls_per_s']:9.0f}{found['cpu_ms_per_poll']:11.2f}{found['share']:13.1%}"
        f"{found['mb']:5.0f}{found['series']:8.0f}{found['request_cpu_ms']:10.2f}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write the results where the run was a full one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="one short round, a minute and a half; writes no results"
    )
    quick = parser.parse_args(arguments).quick
    found = uvloop.run(measure(1, 2.5) if quick else measure(3, 4.0))
    if not quick:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
