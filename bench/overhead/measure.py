"""Runs one gateway between the engine and the clients, and measures a case."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.overhead import bodies, machine
from bench.overhead.native import program
from bench.overhead.peers import HOME, filled
from bench.serving import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from bench.overhead.cases import Case
    from bench.overhead.peers import Peer

PATH = "/v1/chat/completions"
# Above this share of a core used by other processes a measurement is repeated.
DISTURBED = 0.1
# A gateway is at rest while it uses less than this share of its core.
_REST = 0.05
_REST_POLL_S, _REST_WITHIN_S = 0.25, 20
_STOP_S = 4
# The metrics page is as long as a real vLLM's with a speculative config.
_ENGINE = {"delay": 0, "jitter": 0, "gap": 5, "events": 64, "hold": 0, "page": 60_000}


class NotServingError(RuntimeError):
    """A gateway does not answer."""


@dataclass(frozen=True, slots=True)
class Bench:
    """How to measure.

    Attributes:
        folder: for this run's files.
        cores: the gateway's, and the one of engine and clients.
        seconds: that are measured, after warming up.
        most_s: after which a case ends, however few requests it had.
        tries: at most, while other processes disturb it.
    """

    folder: Path
    cores: tuple[int, int]
    seconds: float = 2.0
    most_s: float = 12.0
    tries: int = 3


@dataclass(frozen=True, slots=True)
class Serving:
    """A running gateway and its engine; without a gateway the port is the engine's."""

    peer: Peer
    port: int
    engine_port: int
    engine: subprocess.Popen[bytes]
    gateway: subprocess.Popen[bytes] | None

    def pids(self) -> list[int]:
        """Return the gateway's processes."""
        return machine.tree(self.gateway.pid) if self.gateway else []


@contextmanager
def serving(peer: Peer, bench: Bench) -> Iterator[Serving]:
    """Start an engine and a gateway, wait until it answers, and end both after the block.

    Raises:
        NotServingError: it does not answer in time; the message has the end of what it printed.
    """
    engine_port = free_port()
    command = [str(program("stub")), str(engine_port)]
    with _process(command, bench.cores[1], None) as engine:
        _wait_for_engine(engine_port)
        if not peer.command:
            yield Serving(peer, engine_port, engine_port, engine, None)
            return
        port = free_port()
        values = {
            "port": str(port),
            "engine": str(engine_port),
            "spare": str(free_port()),
            "home": str(HOME),
            "run": str(bench.folder),
        }
        for name, text in peer.files.items():
            (bench.folder / name).write_text(filled(text, **values))
        command = [filled(word, **values) for word in peer.command]
        environment = {key: filled(value, **values) for key, value in peer.environment.items()}
        log = bench.folder / f"{peer.name}.log"
        with _process(command, bench.cores[0], log, environment, peer.folder) as gateway:
            served = Serving(peer, port, engine_port, engine, gateway)
            _wait_for_gateway(served, log)
            yield served


def measured(served: Serving, case: Case, bench: Bench) -> dict[str, Any]:
    """Measure a case, again while other processes disturb it; return the least disturbed measurement."""
    tried: list[dict[str, Any]] = []
    for _ in range(bench.tries):
        tried.append(_once(served, case, bench))
        if _disturbance(tried[-1]) <= DISTURBED:
            break
    return min(tried, key=_disturbance) | {"tries": len(tried)}


def _disturbance(run: dict[str, Any]) -> float:
    share: dict[str, float] = run["share"]
    return max(share["gateway_foreign"], share["harness_foreign"])


def _once(served: Serving, case: Case, bench: Bench) -> dict[str, Any]:
    settings = "&".join(f"{key}={value}" for key, value in {**_ENGINE, **case.engine}.items())
    _get(f"http://127.0.0.1:{served.engine_port}/set?{settings}")
    _wait_for_rest(served)
    pids = served.pids()
    resting_mib = machine.resident_mib(pids)
    machine.reset_peak(pids)
    body = bodies.write(bench.folder, case.size, stream=case.events > 0)
    command = [str(program("load")), str(served.port), PATH, str(body), *_options(served.peer, case, bench)]
    with subprocess.Popen(
        _pinned(command, bench.cores[1]), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as load:
        assert load.stdout is not None
        moments = []
        for line in load.stdout:
            if line.startswith("{"):
                break
            moments.append(machine.Moment.now(pids, served.engine.pid, bench.cores))
        else:
            raise NotServingError(f"the clients ended without a result, status {load.wait()}")
    before, after = moments
    found: dict[str, Any] = json.loads(line)
    share = machine.shares(before, after, found["client_cpu_s"])
    if not pids:  # nothing of what is measured is on that core
        share["gateway_foreign"] = 0.0
    return {
        **found,
        **_rates(found, after.gateway - before.gateway if pids else None),
        "rss_mib": round(machine.peak_mib(pids), 1),
        "resting_mib": round(resting_mib, 1),
        "processes": len(pids),
        "share": {name: round(value, 3) for name, value in share.items()},
        "body_bytes": body.stat().st_size,
    }


def _options(peer: Peer, case: Case, bench: Bench) -> list[str]:
    seconds = bench.seconds if case.connections > 1 else bench.seconds / 2
    warm = 0.4 if case.kind != "held" else 0.0
    if case.kind == "held":
        seconds = 0.0
    elif case.spread_ms:
        warm += 1.5 * case.spread_ms / 1000
    options = ["-c", str(case.connections), "-w", str(warm), "-t", str(seconds), "-s", str(case.spread_ms)]
    options += ["-x", str(60 if case.kind == "held" else bench.most_s), "-m", str(case.connections)]
    options += ["-e", str(case.events)]
    for header in peer.headers:
        options += ["-H", header]
    return options


def _rates(found: dict[str, Any], cpu_s: float | None) -> dict[str, float | None]:
    seconds, events = found["seconds"], found["events"]
    answered = found["answered"]
    return {
        "requests_s": answered / seconds if seconds else 0.0,
        "cpu_s_per_1000": 1000 * cpu_s / answered if cpu_s is not None and answered else None,
        "cpu_s_per_1000_events": 1000 * cpu_s / events if cpu_s is not None and events else None,
    }


def _wait_for_rest(served: Serving) -> None:
    """Wait until the gateway has finished what the last case left."""
    end, resting, last = time.monotonic() + _REST_WITHIN_S, 0, machine.cpu_seconds(served.pids())
    while served.gateway and resting < 2 and time.monotonic() < end:
        time.sleep(_REST_POLL_S)
        now = machine.cpu_seconds(served.pids())
        resting = resting + 1 if now - last <= _REST * _REST_POLL_S else 0
        last = now


def _pinned(command: Sequence[str], core: int) -> list[str]:
    return ["taskset", "-c", str(core), *command]


@contextmanager
def _process(
    command: Sequence[str],
    core: int,
    log: Path | None,
    environment: dict[str, str] | None = None,
    folder: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    output = log.open("wb") if log else subprocess.DEVNULL
    process = subprocess.Popen(
        _pinned(command, core),
        env=os.environ | (environment or {}),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
    )
    try:
        machine.first_to_die(process.pid)
        yield process
    finally:
        _stop(process)
        if not isinstance(output, int):
            output.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it started; a gateway that lingers is not waited for."""
    pids = machine.tree(process.pid)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            continue
        if all(machine.resident_mib([pid]) == 0 for pid in pids):
            return


def _get(url: str) -> None:
    with urllib.request.urlopen(url, timeout=10) as page:
        page.read()


def _wait_for_engine(port: int) -> None:
    for _ in range(100):
        try:
            _get(f"http://127.0.0.1:{port}/health")
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise NotServingError("the engine does not listen")


def _wait_for_gateway(served: Serving, log: Path) -> None:
    end = time.monotonic() + served.peer.start_s
    while not _answers(served):
        ended = served.gateway is not None and served.gateway.poll() is not None
        if ended or time.monotonic() > end:
            printed = log.read_text(errors="replace")[-2000:]
            raise NotServingError(f"{served.peer.name} {'ended' if ended else 'does not answer'}: {printed}")
        time.sleep(0.2)
    for _ in range(served.peer.primes):
        _answers(served)


def _answers(served: Serving) -> bool:
    headers = dict(header.split(": ", 1) for header in served.peer.headers)
    request = urllib.request.Request(
        f"http://127.0.0.1:{served.port}{PATH}",
        bodies.body("1 kB"),
        {"Content-Type": "application/json", **headers},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return b"Invoice" in answer.read()
    except OSError:
        return False
