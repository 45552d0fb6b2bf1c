"""`python -m bench.faults [--quick]`: engines that fail under load, in real processes; figures are simulated.

`ocr-gateway serve` in front of four simulated engines, two of depth 3 and two plain, with clients in a closed
loop, half of them streaming. One engine after the other fails in another way and comes back. Tokens per
second are those that the engines count. Rates vary on a machine too busy for these processes.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from bench.clients import POLL_S, Clients
from bench.engines import FIT, engine_processes, swap, write_config
from bench.serving import serving
from bench.watch import Watch

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Awaitable, Callable, Sequence

    from bench.clients import Tally
    from bench.engines import EngineProcess

# From an engine's return until its throughput is measured.
SETTLE_S = 4
# When an engine's requests are counted after its return, in seconds.
RETURN_S = (0, 1, 2, 4)


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


def _signals(number: signal.Signals) -> Callable[[Watch, EngineProcess], Awaitable[None]]:
    async def send(watch: Watch, engine: EngineProcess) -> None:
        engine.signal(number)

    return send


def _fails(kind: str, **options: Any) -> Callable[[Watch, EngineProcess], Awaitable[None]]:
    async def begin(watch: Watch, engine: EngineProcess) -> None:
        await watch.fault(engine, kind, **options)

    return begin


async def _start(watch: Watch, engine: EngineProcess) -> None:
    engine.start()


_heal = _fails("none")
FAULTS = (
    Fault("kill -9, started again", _signals(signal.SIGKILL), _start, 3, may_break=True),
    Fault("hang (SIGSTOP)", _signals(signal.SIGSTOP), _signals(signal.SIGCONT), 12, may_break=True),
    Fault("garbage", _fails("garbage"), _heal, 3),
    Fault("503", _fails("unavailable"), _heal, 3),
    Fault("drain (SIGTERM), started again", _signals(signal.SIGTERM), _start, 3),
    Fault("dies mid-stream", _fails("die_mid_stream"), _heal, 3, may_break=True),
    Fault("ten times as slow", _fails("slow", factor=10), _heal, 4),
    Fault("/health 503", _fails("not_ready"), _heal, 3),
)
QUICK = (FAULTS[0], FAULTS[4])


@dataclass
class Outcome:
    """What one fault did; rates in simulated tokens per second, times in seconds.

    Attributes:
        before, during, after: the rate of all engines.
        out_s: from the fault's begin until the engine got no more work; None where it always did.
        back_s: from its end until it got work again.
        usual: its requests before the fault.
        returning: its requests RETURN_S seconds after it got work again.
        most: its requests at most from then on, and those of its equal at that moment.
    """

    fault: Fault
    tally: Tally
    before: float
    during: float
    after: float
    out_s: float | None
    back_s: float | None
    usual: float
    returning: list[int]
    most: tuple[int, int]

    def row(self) -> str:
        """Return its line of the table."""
        tally = self.tally
        return (
            f"| {self.fault.name} | {tally.answered} | {_counted(tally.failed)} | {tally.error_events} | "
            f"{tally.cut} | {self.before:,.0f} | {self.during / self.before:.2f} | "
            f"{self.after / self.before:.2f} | {_seconds(self.out_s)} | {_seconds(self.back_s)} | "
            f"{self.usual:.0f} | {', '.join(map(str, self.returning))} | {self.most[0]} ({self.most[1]}) |"
        )


HEAD = """
| fault of one engine | answered | failed | error events | cut | tokens/s | during | after | out after \
| back after | its requests | at 0, 1, 2, 4 s | most (its equal then) |
|---|---|---|---|---|---|---|---|---|---|---|---|---|"""


async def fail(
    fault: Fault,
    engine: EngineProcess,
    engines: Sequence[EngineProcess],
    watch: Watch,
    clients: Clients,
    window_s: float,
) -> Outcome:
    """Let one engine fail and come back under load.

    Args:
        fault: how.
        engine: which.
        engines: all of them.
        watch: of the gateway.
        clients: that run.
        window_s: how long the rates before and after are measured.
    """
    equal = next(other for other in engines if other.depth == engine.depth and other is not engine)
    first = len(watch.samples)
    before = await watch.rate(window_s)
    usual = [sample.requests[engine.name] for sample in watch.samples[first:]]
    tally = clients.new_tally()
    began = time.monotonic()
    await fault.begin(watch, engine)
    waiting = asyncio.create_task(watch.until(lambda sample: not sample.serves(engine.name), fault.lasts_s))
    during = await watch.rate(fault.lasts_s)
    out = await waiting
    healed = time.monotonic()
    await fault.heal(watch, engine)
    back = await watch.until(lambda sample: sample.serves(engine.name), 30)
    await asyncio.sleep(SETTLE_S)
    after = await watch.rate(window_s)
    since = [sample for sample in watch.samples if sample.at >= (back or healed)]
    fullest = max(since, key=lambda sample: sample.requests[engine.name])
    return Outcome(
        fault,
        tally,
        before,
        during,
        after,
        out - began if out else None,
        back - healed if back else None,
        sum(usual) / len(usual),
        [
            next(sample.requests[engine.name] for sample in since if sample.at >= since[0].at + seconds)
            for seconds in RETURN_S
        ],
        (fullest.requests[engine.name], fullest.requests[equal.name]),
    )


async def faults(folder: Path, chosen: Sequence[Fault], count: int, window_s: float) -> None:
    """Print what each fault does."""
    config = folder / "routes.yaml"
    with engine_processes() as engines:
        write_config(config, engines)
        async with (
            serving(config) as served,
            Watch(served.url, engines) as watch,
            Clients([served.url], count) as clients,
        ):
            await asyncio.sleep(2 * window_s)
            print(HEAD)
            for number, fault in enumerate(chosen):
                engine = engines[number % len(engines)]
                print((await fail(fault, engine, engines, watch, clients, window_s)).row(), flush=True)


LIFE_HEAD = """
| life cycle | answered | failed | error events | cut | |
|---|---|---|---|---|---|"""


def life_row(name: str, tally: Tally, note: str) -> str:
    """Return a line of the second table."""
    return (
        f"| {name} | {tally.answered} | {_counted(tally.failed)} | {tally.error_events} | {tally.cut} | "
        f"{note} |"
    )


async def reload(config: Path, engines: Sequence[EngineProcess], count: int) -> str:
    """Swap the configuration file under load: an engine less, the engine back (SIGHUP), nonsense."""
    last = engines[-1].name
    async with (
        serving(config) as served,
        Watch(served.url, engines) as watch,
        Clients([served.url], count) as clients,
    ):
        await asyncio.sleep(4)
        tally = clients.new_tally()
        write_config(config, engines[:-1])
        gone = await watch.until(lambda sample: last not in sample.requests, 60)
        write_config(config, engines)
        served.process.send_signal(signal.SIGHUP)
        back = await watch.until(lambda sample: last in sample.requests and sample.serves(last), 60)
        swap(config, "model: [")
        while "config_reload_failures_total 1.0" not in await watch.metrics():  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        clients.end()
    write_config(config, engines)
    note = f"engine taken out: {_done(gone)}, taken in again by SIGHUP: {_done(back)}, nonsense counted"
    return life_row("reload: file swapped, SIGHUP, nonsense", tally, note)


async def abandon(config: Path, engines: Sequence[EngineProcess], count: int, seconds: float) -> str:
    """Have half of all requests broken off at random, in the queue and in the middle of streams."""
    async with serving(config) as served, Watch(served.url, engines) as watch:
        async with Clients([served.url], count, abandon=0.5) as clients:
            await asyncio.sleep(seconds)
        while any(await watch.open()):  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
    note = f"{clients.tally.abandoned} broken off; then in flight, waiting and running on engines: all 0"
    return life_row(f"{count} clients at once, half of their requests broken off", clients.tally, note)


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
        for _ in range(round(seconds / POLL_S)):
            seen.append(
                [sum(row["load"] for row in (await watch.status())["engines"]) for watch in (first, second)]
            )
            await asyncio.sleep(POLL_S)
        clients.end()
    write_config(config, engines)
    means = " and ".join(f"{sum(loads) / len(loads):.0f}" for loads in zip(*seen, strict=True))
    return life_row("two gateways, half of the clients each", clients.tally, f"load seen: {means} of {count}")


async def stop(config: Path, engines: Sequence[EngineProcess], count: int) -> str:
    """Send the gateway SIGTERM under load; later requests are refused, and then nobody listens."""
    async with serving(config) as served, Clients([served.url], count) as clients:
        await asyncio.sleep(4)
        tally = clients.new_tally()
        began = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(served.process.wait, 60)
        took = time.monotonic() - began
        clients.end()
    note = f"exit {code} after {took:.1f} s; requests after that: {_counted(tally.failed_stopping)}"
    return life_row("SIGTERM", tally, note)


async def life(folder: Path, count: int, seconds: float, *, quick: bool) -> None:
    """Print what broken-off requests, reloads, replicas and a stop do; the quick form has the stop alone."""
    config = folder / "routes.yaml"
    with engine_processes() as engines:
        write_config(config, engines)
        print(LIFE_HEAD)
        if not quick:
            print(await abandon(config, engines, 2 * count, seconds), flush=True)
            print(await reload(config, engines, count), flush=True)
            print(await replicas(config, engines, count, seconds), flush=True)
        print(await stop(config, engines, count), flush=True)


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f} s"


def _done(at: float | None) -> str:
    return "no" if at is None else "yes"


def _counted(kinds: Counter[str]) -> str:
    return ", ".join(f"{number} x {what}" for what, number in kinds.items()) or "0"


def main(arguments: Sequence[str] = ()) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.faults", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two faults and a stop, fewer clients")
    parser.add_argument("--only", metavar="WORD", help="faults whose name has this; `life` for the rest")
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
