"""`python -m bench.faults [--quick]`: engines that fail under load, in real processes; figures are simulated.

`ocr-gateway serve` over four simulated engines, two of depth 3 and two plain, with clients in a closed loop,
half of them streaming. One engine after the other fails in another way and comes back. Tokens per second are
those that the engines themselves count. A machine too busy for these processes makes all rates waver.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import io
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import uvloop
import yaml
from PIL import Image

from bench.serving import ROOT, Served, free_port, serve
from gateway.engines.simulated.step_model import Fit, throughput
from gateway.wire.vllm.engine import read_metrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

FIT = "h100-9b"
DEPTHS = (3, 3, 0, 0)
PROMPTS = {
    "text": "Text Recognition:",
    "key-value": "Output the value of total",
    "table": "Table Recognition:",
}
LOADS = (1, 8, 16, 32, 64, 128, 256)
MAX_TOKENS = 128
# From an engine's return to the measurement of what it brings.
SETTLE_S = 4
PATH = "/v1/chat/completions"
_SAMPLE_S = 0.1
_TAIL = 4096


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
        self._old: list[subprocess.Popen[bytes]] = []
        self.start()

    def start(self) -> None:
        """Start a process."""
        self.process = subprocess.Popen(self._command, cwd=ROOT, stderr=subprocess.DEVNULL)
        self._old.append(self.process)

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        self.process.send_signal(number)

    def end(self) -> None:
        """End every process that was started."""
        for process in self._old:
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
    """Write a configuration of a deep and a plain pool, with profiles as the model has them."""
    fit = Fit.builtin(FIT)
    pools = {
        name: {"engines": [engine.url for engine in engines if engine.depth == depth], "api_key": engine_key}
        | ({"speculative_config": {"method": "mtp", "num_speculative_tokens": depth}} if depth else {})
        for name, depth in (("mtp3", 3), ("plain", 0))
    }
    for route in PROMPTS:
        curves = {
            name: [[load, throughput(fit, depth, {route: load})[route]] for load in LOADS]
            for name, depth in (("mtp3", 3), ("plain", 0))
        }
        profile = {"route": route, "pools": curves, "meta": {"simulated": FIT}}
        (path.parent / f"{route}.json").write_text(json.dumps(profile))
    config = {
        "model": "glm-ocr",
        "pools": pools,
        "routes": {route: {"profile": f"{route}.json"} for route in PROMPTS},
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


@contextlib.asynccontextmanager
async def serving(config: Path, **options: Any) -> AsyncIterator[Served]:
    """`ocr-gateway serve`, awaited; see bench.serving.serve."""
    server = serve(config, **options)
    served = await asyncio.to_thread(server.__enter__)
    try:
        yield served
    finally:
        await asyncio.to_thread(server.__exit__, None, None, None)


def blank() -> bytes:
    """Return a small white page as PNG."""
    page = io.BytesIO()
    Image.new("L", (200, 100), 255).save(page, "PNG")
    return page.getvalue()


def request_body(prompt: str, picture: bytes, *, stream: bool) -> bytes:
    """Return a chat request for a document."""
    url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": prompt}]
    messages = [{"role": "user", "content": content}]
    return json.dumps({"messages": messages, "stream": stream, "max_tokens": MAX_TOKENS}).encode()


@dataclass
class Tally:
    """What became of requests.

    Attributes:
        answered: whole answers, and streams that ended with [DONE].
        lost: failures before a byte of an answer, by status and code.
        told: streams that broke off with an error event.
        silent: streams that ended with neither.
        left: requests that their clients broke off.
        late: failures of requests made once the gateway had said that it stops.
        seconds: how long each that was answered took.
    """

    answered: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    told: int = 0
    silent: int = 0
    left: int = 0
    late: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)


class Clients:
    """Clients in a closed loop; an asynchronous context manager that runs them."""

    def __init__(
        self,
        urls: Sequence[str],
        count: int,
        *,
        leaving: float = 0.0,
        streams: float = 0.5,
        keys: Sequence[str] = (),
        picture: Callable[[int], bytes] = lambda _: blank(),
    ) -> None:
        """Prepare clients.

        Args:
            urls: the gateways, to which they go in turn.
            count: how many there are.
            leaving: share of requests that are broken off after a random time.
            streams: share of clients that stream.
            keys: API keys, which they take in turn.
            picture: the document of a client by its number, as PNG.
        """
        self._keys = keys
        self._picture = picture
        self._urls = urls
        self._count = count
        self._leaving = leaving
        self._streams = streams
        self._rng = random.Random(0)
        self._ending = self._stopping = False
        self.tally = Tally()

    async def __aenter__(self) -> Clients:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        self._tasks = [asyncio.create_task(self._client(number)) for number in range(self._count)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ending = True
        await asyncio.gather(*self._tasks)
        await self._session.close()

    def end(self) -> None:
        """Let every client end with the request it has."""
        self._ending = True

    async def answered(self, more: int) -> None:
        """Wait until so many more requests have been answered."""
        wanted = self.tally.answered + more
        while self.tally.answered < wanted:  # noqa: ASYNC110
            await asyncio.sleep(_SAMPLE_S)

    def fresh(self) -> Tally:
        """Count anew, and return the new count."""
        self.tally = Tally()
        return self.tally

    async def _client(self, number: int) -> None:
        stream = number < self._count * self._streams
        prompt = list(PROMPTS.values())[number % len(PROMPTS)]
        body = request_body(prompt, self._picture(number), stream=stream)
        headers = {"content-type": "application/json"}
        if self._keys:
            headers["authorization"] = f"Bearer {self._keys[number % len(self._keys)]}"
        url = self._urls[number % len(self._urls)] + PATH
        while not self._ending:
            limit = self._rng.uniform(0, 2) if self._rng.random() < self._leaving else None
            try:
                async with asyncio.timeout(limit):
                    well = await self._request(url, body, headers, stream=stream)
            except TimeoutError:
                self.tally.left += 1
                continue
            if not well:
                await asyncio.sleep(_SAMPLE_S)

    async def _request(self, url: str, body: bytes, headers: Mapping[str, str], *, stream: bool) -> bool:
        """Make a request and count its end; tell whether it was answered."""
        began = time.monotonic()
        tail, status, failures = b"", 0, self.tally.late if self._stopping else self.tally.lost
        try:
            async with self._session.post(url, data=body, headers=headers) as reply:
                status = reply.status
                async for data in reply.content.iter_any():
                    tail = (tail + data)[-_TAIL:]
        except aiohttp.ClientError:
            if status != 200:
                failures["no connection, or cut"] += 1
            elif stream:
                self.tally.silent += 1
            return False
        if status != 200:
            code = json.loads(tail)["error"]["code"]
            if code == "shutting_down" and "retry-after" in reply.headers:
                self._stopping, failures = True, self.tally.late
            failures[f"{status} {code}"] += 1
            return False
        if stream and not tail.rstrip().endswith(b"data: [DONE]"):
            last = tail.rstrip().rpartition(b"data: ")[2]
            if b'"error"' in last:
                self.tally.told += 1
            else:
                self.tally.silent += 1
            return False
        self.tally.answered += 1
        self.tally.seconds.append(time.monotonic() - began)
        return True


@dataclass(frozen=True)
class Sample:
    """How each engine stood with the gateway at one moment: fitness, and the gateway's requests there."""

    at: float
    fitness: dict[str, str]
    ours: dict[str, int]

    def serves(self, name: str) -> bool:
        """Whether an engine takes part."""
        return self.fitness[name] in ("free", "held")


class Watch:
    """Samples a gateway's /status, and reads engines' counters; an asynchronous context manager."""

    def __init__(self, gateway: str, engines: Sequence[EngineProcess]) -> None:
        self._gateway = gateway
        self._engines = engines
        self.samples: list[Sample] = []

    async def __aenter__(self) -> Watch:
        self._session = aiohttp.ClientSession()
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._session.close()

    async def status(self) -> Any:
        """Return the gateway's /status."""
        async with self._session.get(f"{self._gateway}/status") as reply:
            return await reply.json()

    async def until(self, condition: Callable[[Sample], bool], within_s: float) -> float | None:
        """Return when a condition came true; None where it did not."""
        began = time.monotonic()
        seen = len(self.samples)
        while time.monotonic() - began < within_s:
            for sample in self.samples[seen:]:
                if condition(sample):
                    return sample.at
            seen = len(self.samples)
            await asyncio.sleep(_SAMPLE_S / 2)
        return None

    async def rate(self, seconds: float) -> float:
        """Return the tokens per second of all engines that answer, over so many seconds from now."""
        before, began = await self._tokens(), time.monotonic()
        await asyncio.sleep(seconds)
        after, took = await self._tokens(), time.monotonic() - began
        both = before.keys() & after.keys()
        return sum(max(0.0, after[name] - before[name]) for name in both) / took

    async def _tokens(self) -> dict[str, float]:
        pages = await asyncio.gather(*(self._page(engine) for engine in self._engines))
        return {
            engine.name: read_metrics(page).generation_tokens
            for engine, page in zip(self._engines, pages, strict=True)
            if page
        }

    async def _page(self, engine: EngineProcess) -> bytes:
        try:
            async with asyncio.timeout(1), self._session.get(f"{engine.url}/metrics") as reply:
                return await reply.read()
        except (TimeoutError, aiohttp.ClientError):
            return b""

    async def open(self) -> tuple[int, int, int]:
        """Return the requests in flight and waiting in the gateway, and those that engines have."""
        routes = (await self.status())["routes"].values()
        pages = await asyncio.gather(*(self._page(engine) for engine in self._engines))
        readings = [read_metrics(page) for page in pages]
        return (
            sum(route["in_flight"] for route in routes),
            sum(route["waiting"] for route in routes),
            sum(reading.running + reading.waiting for reading in readings),
        )

    async def metrics(self) -> str:
        """Return the gateway's metrics."""
        async with self._session.get(f"{self._gateway}/metrics") as reply:
            return await reply.text()

    async def fault(self, engine: EngineProcess, kind: str, **options: Any) -> None:
        """Make an engine fail."""
        async with self._session.post(f"{engine.url}/faults", json={"kind": kind, **options}) as reply:
            reply.raise_for_status()

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                engines = (await self.status())["engines"]
                self.samples.append(
                    Sample(
                        time.monotonic(),
                        {row["engine"]: row["fitness"] for row in engines},
                        {row["engine"]: sum(row["ours"].values()) for row in engines},
                    )
                )
            await asyncio.sleep(_SAMPLE_S)


@dataclass(frozen=True)
class Fault:
    """A way to fail: how it begins and ends, and how long it lasts in seconds.

    Attributes:
        may_break: streams may break off after their first byte.
    """

    name: str
    begin: Callable[[Watch, EngineProcess], Awaitable[None]]
    heal: Callable[[Watch, EngineProcess], Awaitable[None]]
    lasts_s: float
    may_break: bool = False


async def _kill(watch: Watch, engine: EngineProcess) -> None:
    engine.signal(signal.SIGKILL)


async def _stop(watch: Watch, engine: EngineProcess) -> None:
    engine.signal(signal.SIGSTOP)


async def _continue(watch: Watch, engine: EngineProcess) -> None:
    engine.signal(signal.SIGCONT)


async def _drain(watch: Watch, engine: EngineProcess) -> None:
    engine.signal(signal.SIGTERM)


async def _start(watch: Watch, engine: EngineProcess) -> None:
    engine.start()


async def _well(watch: Watch, engine: EngineProcess) -> None:
    await watch.fault(engine, "none")


def _suffers(kind: str, **options: Any) -> Callable[[Watch, EngineProcess], Awaitable[None]]:
    async def begin(watch: Watch, engine: EngineProcess) -> None:
        await watch.fault(engine, kind, **options)

    return begin


FAULTS = (
    Fault("kill -9, started again", _kill, _start, 3, may_break=True),
    Fault("hang (SIGSTOP)", _stop, _continue, 12, may_break=True),
    Fault("garbage", _suffers("garbage"), _well, 3),
    Fault("503", _suffers("unavailable"), _well, 3),
    Fault("drain (SIGTERM), started again", _drain, _start, 3),
    Fault("dies mid-stream", _suffers("die_mid_stream"), _well, 3, may_break=True),
    Fault("ten times as slow", _suffers("slow", factor=10), _well, 4),
    Fault("/health 503", _suffers("not_ready"), _well, 3),
)
QUICK = (FAULTS[0], FAULTS[4])


@dataclass
class Bench:
    """What a run works with."""

    engines: list[EngineProcess]
    served: Served
    watch: Watch
    clients: Clients
    window_s: float


@dataclass
class Outcome:
    """What one fault did; rates in simulated tokens per second, times in seconds.

    Attributes:
        out_s: from the fault's begin until the engine got no more work; None where it always did.
        back_s: from its end until it got work again.
        newcomer: the engine's requests against its twin's, at most, from its end on.
        ramp: its requests one, two and four seconds after it got work again.
        usual: its requests before.
    """

    fault: Fault
    tally: Tally
    before: float
    during: float
    after: float
    out_s: float | None
    back_s: float | None
    newcomer: int
    twin: int
    ramp: list[int]
    usual: float


async def suffer(bench: Bench, fault: Fault, engine: EngineProcess) -> Outcome:
    """Let an engine fail and come back under load."""
    twin = next(other for other in bench.engines if other.depth == engine.depth and other is not engine)
    watch, samples = bench.watch, bench.watch.samples
    start = len(samples)
    before = await watch.rate(bench.window_s)
    usual = [sample.ours[engine.name] for sample in samples[start:]]
    tally = bench.clients.fresh()
    began = time.monotonic()
    await fault.begin(watch, engine)
    waiting = asyncio.create_task(watch.until(lambda sample: not sample.serves(engine.name), fault.lasts_s))
    during = await watch.rate(fault.lasts_s)
    out = await waiting
    healed = time.monotonic()
    await fault.heal(watch, engine)
    back = await watch.until(lambda sample: sample.serves(engine.name), 30)
    await asyncio.sleep(SETTLE_S)
    after = await watch.rate(bench.window_s)
    since = [sample for sample in samples if sample.at >= (back or healed)]
    most = max(since, key=lambda sample: sample.ours[engine.name])
    ramp = [
        next(sample.ours[engine.name] for sample in since if sample.at >= since[0].at + seconds)
        for seconds in (0, 1, 2, 4)
    ]
    return Outcome(
        fault,
        tally,
        before,
        during,
        after,
        out - began if out else None,
        back - healed if back else None,
        most.ours[engine.name],
        most.ours[twin.name],
        ramp,
        sum(usual) / len(usual),
    )


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f} s"


def row(outcome: Outcome) -> str:
    """Return a fault's line of the table."""
    tally = outcome.tally
    return (
        f"| {outcome.fault.name} | {tally.answered} | {_counted(tally.lost)} | {tally.told} | "
        f"{tally.silent} | {outcome.before:,.0f} | "
        f"{outcome.during / outcome.before:.2f} | {outcome.after / outcome.before:.2f} | "
        f"{_seconds(outcome.out_s)} | {_seconds(outcome.back_s)} | {outcome.usual:.0f} | "
        f"{', '.join(map(str, outcome.ramp))} | {outcome.newcomer} ({outcome.twin}) |"
    )


HEAD = """
| fault of one engine | answered | lost | broken, told | silently | tokens/s | during | after | out after \
| back after | its requests | at 0, 1, 2, 4 s | most (twin then) |
|---|---|---|---|---|---|---|---|---|---|---|---|---|"""


async def faults(folder: Path, chosen: Sequence[Fault], count: int, window_s: float) -> None:
    """Print what each fault does."""
    with engine_processes() as engines:
        config = folder / "routes.yaml"
        write_config(config, engines)
        async with (
            serving(config) as served,
            Watch(served.url, engines) as watch,
            Clients([served.url], count) as clients,
        ):
            bench = Bench(engines, served, watch, clients, window_s)
            await asyncio.sleep(2 * window_s)
            print(HEAD)
            for number, fault in enumerate(chosen):
                print(row(await suffer(bench, fault, engines[number % len(engines)])), flush=True)


LIFE_HEAD = """
| life cycle | answered | lost | broken, told | broken, silently | |
|---|---|---|---|---|---|"""


def life_row(name: str, tally: Tally, told: str) -> str:
    """Return a line of the second table."""
    return f"| {name} | {tally.answered} | {_counted(tally.lost)} | {tally.told} | {tally.silent} | {told} |"


async def reload(config: Path, engines: Sequence[EngineProcess], count: int) -> str:
    """Swap the configuration file under load: an engine less, the engine back (SIGHUP), nonsense."""
    async with (
        serving(config) as served,
        Watch(served.url, engines) as watch,
        Clients([served.url], count) as clients,
    ):
        await asyncio.sleep(4)
        tally = clients.fresh()
        write_config(config, engines[:-1])
        gone = await watch.until(lambda sample: engines[-1].name not in sample.ours, 60)
        write_config(config, engines)
        served.process.send_signal(signal.SIGHUP)
        back = await watch.until(
            lambda sample: engines[-1].name in sample.ours and sample.serves(engines[-1].name), 60
        )
        swap(config, "model: [")
        while "config_reload_failures_total 1.0" not in await watch.metrics():  # noqa: ASYNC110
            await asyncio.sleep(_SAMPLE_S)
        clients.end()
    write_config(config, engines)
    told = f"engine taken out: {_done(gone)}, taken in again by SIGHUP: {_done(back)}, nonsense counted"
    return life_row("reload: file swapped, SIGHUP, nonsense", tally, told)


async def leaving(config: Path, engines: Sequence[EngineProcess], count: int, seconds: float) -> str:
    """Have half of all requests broken off at random, in the queue and in the middle of streams."""
    async with serving(config) as served, Watch(served.url, engines) as watch:
        async with Clients([served.url], count, leaving=0.5) as clients:
            await asyncio.sleep(seconds)
        while any(await watch.open()):  # noqa: ASYNC110
            await asyncio.sleep(_SAMPLE_S)
    told = f"{clients.tally.left} clients left; then in flight, waiting and running on engines: all 0"
    return life_row(f"{count} clients at once, half of their requests broken off", clients.tally, told)


async def replicas(config: Path, engines: Sequence[EngineProcess], count: int, seconds: float) -> str:
    """Have two gateways serve the same engines, and compare what load each sees with what there is."""
    write_config(config, engines, server={"replicas": 2, "linger_s": 1})
    async with (
        serving(config) as one,
        serving(config) as other,
        Watch(one.url, engines) as first,
        Watch(other.url, engines) as second,
        Clients([one.url, other.url], count) as clients,
    ):
        await asyncio.sleep(4)
        seen: list[list[int]] = []
        for _ in range(round(seconds / _SAMPLE_S)):
            seen.append(
                [sum(row["load"] for row in (await watch.status())["engines"]) for watch in (first, second)]
            )
            await asyncio.sleep(_SAMPLE_S)
        clients.end()
    write_config(config, engines)
    means = " and ".join(f"{sum(loads) / len(loads):.0f}" for loads in zip(*seen, strict=True))
    return life_row("two gateways, half of the clients each", clients.tally, f"load seen: {means} of {count}")


async def stop(config: Path, engines: Sequence[EngineProcess], count: int) -> str:
    """Send the gateway SIGTERM under load; later requests are refused, and then find nobody."""
    async with serving(config) as served, Clients([served.url], count) as clients:
        await asyncio.sleep(4)
        tally = clients.fresh()
        began = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(served.process.wait, 60)
        took = time.monotonic() - began
        clients.end()
    told = f"exit {code} after {took:.1f} s; came later: {_counted(tally.late)}"
    return life_row("SIGTERM", tally, told)


def _done(at: float | None) -> str:
    return "no" if at is None else "yes"


def _counted(kinds: Counter[str]) -> str:
    return ", ".join(f"{number} x {what}" for what, number in kinds.items()) or "0"


async def life(folder: Path, count: int, seconds: float, *, quick: bool) -> None:
    """Print what clients that leave, reloads, replicas and a stop do; the quick form has the stop alone."""
    with engine_processes() as engines:
        config = folder / "routes.yaml"
        write_config(config, engines)
        print(LIFE_HEAD)
        if not quick:
            print(await leaving(config, engines, 2 * count, seconds), flush=True)
            print(await reload(config, engines, count), flush=True)
            print(await replicas(config, engines, count, seconds), flush=True)
        print(await stop(config, engines, count), flush=True)


def main(arguments: Sequence[str] = ()) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.faults", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two faults and a stop, fewer clients")
    parser.add_argument("--only", metavar="WORD", help="faults whose name holds this; `life` for the rest")
    options = parser.parse_args(arguments)
    chosen = [
        fault
        for fault in (QUICK if options.quick else FAULTS)
        if not options.only or options.only in fault.name
    ]
    clients, window_s = (48, 2.0) if options.quick else (128, 3.0)
    print(f"Simulated: four engines of fit {FIT}, {clients} clients in a closed loop\n")
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        if chosen:
            runner.run(faults(Path(folder), chosen, clients, window_s))
        if options.only in (None, "life"):
            runner.run(life(Path(folder), clients, window_s, quick=options.quick))


if __name__ == "__main__":
    main(sys.argv[1:])
