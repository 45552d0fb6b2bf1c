"""`python -m bench.overhead [--quick] [--peers A,B] [--cases A,B] [--rounds N]`: what a gateway costs.

Each gateway has one core; the engine and the clients (`stub.c`, `load.c`) have another. It needs a machine of
two cores at rest: what other processes use is measured, and a disturbed measurement is repeated.
`python -m bench.overhead.install` installs other gateways, `python -m bench.overhead.report` writes tables.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.overhead import cases, machine, results
from bench.overhead.measure import Bench, NotServingError, measured, serving
from bench.overhead.native import NoCompilerError, program
from bench.overhead.peers import DIRECT, HOME, OURS, PEERS, ours
from bench.overhead.results import RESULTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.overhead.cases import Case
    from bench.overhead.peers import Peer

QUICK_PEERS = (DIRECT, OURS, "nginx", "fastapi-httpx")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print as it goes, and write the results."""
    options = _parser().parse_args(arguments)
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.tries = options.tries or (1 if options.quick else 3)
    options.seconds = options.seconds or (0.5 if options.quick else 2.0)
    wanted = cases.chosen(options.cases) if options.cases else list(cases.CASES.values())
    if options.quick and not options.cases:
        wanted = [cases.CASES[name] for name in cases.QUICK]
    peers, skipped = there(_peers(options))
    for name, lacks in skipped.items():
        print(f"{name} is left out: {lacks} is missing (python -m bench.overhead.install)", flush=True)
    try:
        program("stub"), program("load")
    except NoCompilerError as error:
        sys.exit(str(error))
    found: dict[str, Any] = {
        "measured": _surroundings(options),
        "peers": [{"name": peer.name, "version": peer.read_version(), "lacks": peer.lacks} for peer in peers],
        "skipped": {name: lacks.replace(str(HOME), "$home") for name, lacks in skipped.items()},
        "runs": [],
    }
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder, _on_core(options.cores[1]):
        bench = Bench(Path(folder), options.cores, options.seconds, tries=options.tries)
        for number in range(options.rounds):
            for peer in peers:
                found["runs"] += _run(peer, wanted, bench, number)
                if options.out:
                    results.write(options.out, found, keep=options.add)
    print("\n" + results.overview(results.medians(found["runs"])))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.overhead", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="few gateways and cases, for a second in all each"
    )
    parser.add_argument("--peers", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--cases", help=f"parts of the names of: {', '.join(cases.CASES)}")
    parser.add_argument("--rounds", type=int, help="of which the medians count; default: 3")
    parser.add_argument("--seconds", type=float, help="a measurement; default: 2")
    parser.add_argument("--tries", type=int, help="while others have over a tenth of a core; default: 3")
    parser.add_argument(
        "--cores", type=_cores, default=(0, 1), help="the gateway's, and the other; default: 0,1"
    )
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="our gateway as it is in a checkout",
    )
    parser.add_argument("--out", type=Path, help=f"results as JSON; the document's are in {RESULTS.name}")
    parser.add_argument(
        "--add", action="store_true", help="keep the file's results of other gateways and cases"
    )
    return parser


def _cores(text: str) -> tuple[int, int]:
    gateway, other = map(int, text.split(","))
    return gateway, other


def _peers(options: argparse.Namespace) -> list[Peer]:
    also = dict(pair.partition("=")[::2] for pair in options.also)
    known = PEERS | {name: ours(name, Path(folder).resolve()) for name, folder in also.items()}
    names = options.peers.split(",") if options.peers else list(QUICK_PEERS if options.quick else PEERS)
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"unknown: {', '.join(unknown)}; known are {', '.join(known)}")
    return [known[name] for name in dict.fromkeys([*names, *also])]


def there(peers: Sequence[Peer]) -> tuple[list[Peer], dict[str, str]]:
    """Return the gateways that are installed, and for the others, by name, what is missing."""
    missing = {peer.name: peer.missing() for peer in peers}
    return [peer for peer in peers if not missing[peer.name]], {
        name: lacks for name, lacks in missing.items() if lacks
    }


def _surroundings(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "when": datetime.now(UTC).strftime("%Y-%m-%d"),
        "processor": machine.processor(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "compiler": shutil.which("cc") or "gcc",
        "rounds": options.rounds,
        "seconds": options.seconds,
    }


@contextmanager
def _on_core(core: int) -> Iterator[None]:
    """Keep this process off the gateway's core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _run(peer: Peer, wanted: Sequence[Case], bench: Bench, number: int) -> list[dict[str, Any]]:
    """Measure a gateway's cases, each round in the same order."""
    runs: list[dict[str, Any]] = []
    todo = [case for case in wanted if peer.command or case.kind != "held"]
    while todo:
        before = len(todo)
        try:
            with serving(peer, bench) as served:
                while todo:
                    case = todo.pop(0)
                    run = measured(served, case, bench)
                    runs.append({"peer": peer.name, "case": case.name, "round": number, **run})
                    print(f"{time.strftime('%H:%M:%S')} {number} {results.line(runs[-1])}", flush=True)
                    if served.gateway is not None and served.gateway.poll() is not None:
                        print(f"{peer.name} ended, status {served.gateway.returncode}", flush=True)
                        break  # and is started again for the next
        except NotServingError as error:
            print(f"{peer.name}: {error}", flush=True)
            if len(todo) == before:
                break
    return runs


def _end(*_: object) -> None:
    raise SystemExit("ended")


if __name__ == "__main__":
    # A shell's background jobs ignore SIGINT, which the processes started here would inherit.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    main()
