"""`python -m bench.soak [--minutes 30]`: good and bad clients and failing engines for long. Simulated.

`ocr-gateway serve` with API keys, in front of four simulated engines of which one after the other fails and
comes back. Good clients in a closed loop, half of them streaming, beside bad ones that send nonsense, leave,
are slow or never read; configuration and keys change meanwhile. Memory, descriptors and tasks of the gateway
are read every ten seconds. Exit status 1 where one of them grows, where a good request failed, where anything
is left once all clients have gone, and where a secret is in the log or on a page.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import itertools
import os
import platform
import signal
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import numpy as np
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from bench.bad_clients import SECRETS, BadClients, picture
from bench.clients import Clients, Tally, http_client
from bench.engines import FIT, engine_processes, swap, write_config
from bench.faults import FAULTS
from bench.serving import free_port, serving
from bench.trend import Slope, slope
from bench.watch import Sample, Watch
from gateway.server.background import background

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.bad_clients import BadTally
    from bench.engines import EngineProcess

SAMPLE_S = 10.0
# This share of a run, and at least two minutes, fills caches and pools; what follows must not grow.
WARM_UP = 0.2
WARM_UP_S = 120.0
# The most growth in ten minutes, and the most descriptors and tasks left at rest, for connections kept open.
MOST_GROWTH = {"megabytes": 1.0, "descriptors": 3.0, "tasks": 3.0}
MOST_LEFT = 10
_FAULT_EVERY_S, _CHANGE_EVERY_S = 20.0, 15.0
_QUIET_S = 60.0


@dataclass(frozen=True)
class Vitals:
    """One reading of the gateway's process.

    Attributes:
        at: seconds since the first reading.
        megabytes: resident memory.
        descriptors: open files.
        tasks: of the event loop.
        in_flight: requests on engines and in queues.
        bodies: bytes of requests held.
        answered: good requests since the reading before.
        p99_s: of their times.
    """

    at: float
    megabytes: float
    descriptors: int
    tasks: int
    in_flight: int
    bodies: int
    answered: int
    p99_s: float


class Observed:
    """A gateway's process under observation, and the sum of its good clients' tallies."""

    def __init__(self, admin: str) -> None:
        """Observe a gateway by the URL of its admin port."""
        self._admin = admin
        self.began = time.monotonic()
        self.samples: list[Vitals] = []
        self.total = Tally()

    async def read(self, http: httpx.AsyncClient, tally: Tally | None = None) -> Vitals:
        """Read the process, and add a tally of good clients to the sum."""
        tally = tally or Tally()
        page = (await http.get(f"{self._admin}/metrics")).text
        gauges: defaultdict[str, float] = defaultdict(float)
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                gauges[sample.name] += sample.value
        self.total.answered += tally.answered
        self.total.error_events += tally.error_events
        self.total.cut += tally.cut
        self.total.failed.update(tally.failed)
        return Vitals(
            at=time.monotonic() - self.began,
            megabytes=gauges["process_resident_memory_bytes"] / 2**20,
            descriptors=int(gauges["process_open_fds"]),
            tasks=int(gauges["ocr_gateway_tasks"]),
            in_flight=int(gauges["ocr_gateway_in_flight"] + gauges["ocr_gateway_waiting"]),
            bodies=int(gauges["ocr_gateway_inflight_bytes"]),
            answered=tally.answered,
            p99_s=float(np.quantile(tally.seconds, 0.99)) if tally.seconds else 0.0,
        )

    async def read_at_rest(self, http: httpx.AsyncClient, before: Vitals) -> Vitals:
        """Return its vitals once nothing is left of what came since `before`, or after a minute."""
        end = time.monotonic() + _QUIET_S
        while left_behind(before, vitals := await self.read(http)) and time.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(1)
        return vitals


def left_behind(before: Vitals, after: Vitals) -> list[str]:
    """Return what is left at rest that was not there before."""
    found = []
    if after.in_flight or after.bodies:
        found.append(f"{after.in_flight} requests and {after.bodies} bytes are left")
    grown = {name: getattr(after, name) - getattr(before, name) for name in ("descriptors", "tasks")}
    return found + [f"{count} {name} are left" for name, count in grown.items() if count > MOST_LEFT]


def trends(samples: Sequence[Vitals]) -> tuple[dict[str, tuple[Slope, float]], int]:
    """Return growth in ten minutes with what is allowed, and how many samples were left out as warming up."""
    last = samples[-1].at
    warm = [sample for sample in samples if sample.at >= min(max(WARM_UP * last, WARM_UP_S), last / 2)]
    times = [sample.at / 600 for sample in warm]
    load = np.array([sample.in_flight for sample in warm], float)
    load -= load.mean()
    found = {}
    for name, limit in MOST_GROWTH.items():
        values = np.array([getattr(sample, name) for sample in warm], float)
        if name != "megabytes" and load.any():  # less what comes and goes with the requests in flight
            values -= load * (load @ values) / (load @ load)
        found[name] = slope(times, values.tolist()), limit
    return found, len(samples) - len(warm)


def verdict(
    observed: Observed, bad: BadTally, before: Vitals, after: Vitals, leaked: Sequence[str]
) -> list[str]:
    """Return what is wrong; growth counts where the 95% interval excludes the limit, for short runs vary."""
    found = [
        f"{name} grow by {growth.low:.2f} to {growth.high:.2f} in ten minutes, over {limit:g}"
        for name, (growth, limit) in trends(observed.samples)[0].items()
        if growth.low > limit
    ]
    total = observed.total
    if total.failed or total.cut:
        found.append(f"good requests failed: {dict(total.failed)}, {total.cut} streams without an end")
    if bad.unexpected:
        found.append(f"unexpected answers: {dict(bad.unexpected)}")
    found += left_behind(before, after)
    return found + [f"a secret shows: {what}" for what in leaked]


async def fail_in_turn(watch: Watch, engines: Sequence[EngineProcess]) -> None:
    """Let one engine after the other fail and come back, for ever."""
    for number in itertools.count():
        engine, fault = engines[number % len(engines)], FAULTS[number % len(FAULTS)]
        await fault.begin(watch, engine)
        await asyncio.sleep(fault.lasts_s)
        await fault.heal(watch, engine)
        await watch.until(partial(Sample.serves, name=engine.name), _QUIET_S)
        await asyncio.sleep(_FAULT_EVERY_S)


async def reconfigure(path: Path, write: Callable[[int], None]) -> None:
    """Change configuration and keys, for ever; every third change is no valid configuration."""
    for number in itertools.count(1):
        await asyncio.sleep(_CHANGE_EVERY_S)
        if number % 3:
            write(number)
        else:
            swap(path, "model: [")


def leaks(pages: dict[str, str], log: Path) -> list[str]:
    """Return which secrets are where; the log is read line by line."""
    found = {
        f"the {what} on {page}"
        for page, text in pages.items()
        for what, word in SECRETS.items()
        if word in text
    }
    base64_of = {what: base64.b64encode(word.encode())[:16].decode() for what, word in SECRETS.items()}
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            found |= {
                f"the {what} in the log"
                for what, word in SECRETS.items()
                if word in line or base64_of[what] in line
            }
    return sorted(found)


async def soak(folder: Path, minutes: float, count: int) -> tuple[Observed, BadTally, list[str]]:
    """Run, print a line a minute, and return what was sampled, what bad clients did, and what is wrong."""
    config, log, admin = folder / "routes.yaml", folder / "gateway.log", free_port()
    keys = folder / "keys"

    def write(number: int) -> None:
        keys.write_text(
            f"soak {SECRETS['key']}\nmetered {SECRETS['metered key']}\nspare sk-spare-{number:016d}\n"
        )
        write_config(
            config,
            engines,
            engine_key=SECRETS["engine key"],
            auth={"keys_file": "keys", "limits": {"metered": {"requests_per_minute": 30, "concurrent": 4}}},
            server={"linger_s": 1, "drain_s": 30, "replicas": 1, "admin_port": admin},
            breaker={"open_s": 5 + number % 2},
        )

    with engine_processes() as engines, log.open("wb") as lines:
        write(0)
        async with (
            http_client() as http,
            serving(config, log=lines.fileno(), options=["--log-format", "json"]) as served,
            Watch(f"http://127.0.0.1:{admin}", engines) as watch,
        ):
            observed = Observed(f"http://127.0.0.1:{admin}")
            before = await observed.read(http)
            print(HEAD)
            async with (
                Clients([served.url], count * 3 // 4, keys=[SECRETS["key"]], picture=picture) as clients,
                BadClients(served.url, count - count * 3 // 4) as bad,
                background(fail_in_turn(watch, engines), reconfigure(config, write)),
            ):
                while time.monotonic() - observed.began < 60 * minutes:
                    await asyncio.sleep(SAMPLE_S)
                    tally = clients.tally
                    clients.new_tally()
                    observed.samples.append(await observed.read(http, tally))
                    if len(observed.samples) % 6 == 0:
                        print(row(observed.samples[-6:]), flush=True)
            for engine in engines:
                engine.signal(signal.SIGCONT)
                with contextlib.suppress(httpx.TransportError):
                    await watch.fault(engine, "none")
            after = await observed.read_at_rest(http, before)
            pages = {
                path: (await http.get(f"http://127.0.0.1:{admin}{path}")).text
                for path in ("/metrics", "/status")
            }
        wrong = verdict(observed, bad.tally, before, after, leaks(pages, log))
        return observed, bad.tally, wrong


HEAD = """
| minutes | answered | p99 s | in flight | bodies MB | RSS MB | descriptors | tasks |
|---|---|---|---|---|---|---|---|"""


def row(samples: Sequence[Vitals]) -> str:
    """Return a minute's line: sums, the worst p99, and medians."""
    values = {
        name: float(np.median([getattr(sample, name) for sample in samples]))
        for name in ("in_flight", "bodies", "megabytes", "descriptors", "tasks")
    }
    return (
        f"| {samples[-1].at / 60:.0f} | {sum(sample.answered for sample in samples):,} | "
        f"{max(sample.p99_s for sample in samples):.2f} | {values['in_flight']:.0f} | "
        f"{values['bodies'] / 1e6:.1f} | {values['megabytes']:.1f} | {values['descriptors']:.0f} | "
        f"{values['tasks']:.0f} |"
    )


def draw(observed: Observed, path: Path) -> None:
    """Draw what was sampled."""
    from matplotlib.figure import Figure

    figure = Figure((9, 6), layout="constrained")
    plots = figure.subplots(4, sharex=True)
    minutes = [sample.at / 60 for sample in observed.samples]
    for axes, (name, title) in zip(
        plots,
        {"megabytes": "RSS, MB", "descriptors": "descriptors", "tasks": "tasks", "p99_s": "p99, s"}.items(),
        strict=True,
    ):
        axes.plot(minutes, [getattr(sample, name) for sample in observed.samples], linewidth=1)
        axes.set_ylabel(title)
        axes.set_ylim(bottom=0)
    plots[0].set_title("The gateway under mixed good, bad and faulty traffic (simulated engines)")
    plots[-1].set_xlabel("minutes")
    figure.savefig(path, dpi=110)


def main(arguments: Sequence[str] = ()) -> int:
    """Print a line a minute, trends and verdict; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30, metavar="N", help="default: 30")
    parser.add_argument("--clients", type=int, default=128, metavar="N", help="at once; default: 128")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the samples there")
    parser.add_argument("--log", type=Path, metavar="DIR", help="keep the gateway's log there")
    options = parser.parse_args(arguments)
    packages = ", ".join(f"{name} {version(name)}" for name in ("ocr-gateway", "uvicorn", "httpx", "uvloop"))
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {packages}")
    print(f"Simulated: four engines of fit {FIT}; {options.clients} clients, three in four of them good")
    if options.log:
        options.log.mkdir(parents=True, exist_ok=True)
    with (
        contextlib.ExitStack() as stack,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        folder = options.log or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        observed, bad, wrong = runner.run(soak(folder, options.minutes, options.clients))
    if options.plot:
        draw(observed, options.plot)
    found, left_out = trends(observed.samples)
    total = observed.total
    print(f"\n{len(observed.samples)} samples, {left_out} warming up. Growth in ten minutes (Theil-Sen):")
    for name, (growth, limit) in found.items():
        between = f"95%: {growth.low:+.2f} to {growth.high:+.2f}"
        print(f"  {name}: {growth.median:+.2f} ({between}); at most {limit:g}")
    print(
        f"good requests: {total.answered:,} answered, {sum(total.failed.values())} failed; "
        f"{total.error_events} streams ended with an error event where their engine died"
    )
    print(f"bad requests: {sum(bad.sent.values()):,} in {len(bad.sent)} kinds")
    for problem in wrong:
        print(f"WRONG: {problem}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
