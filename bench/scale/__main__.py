"""`python -m bench.scale [--quick] [--rounds N]`: how the gateway's cost grows, and what that makes of it.

One gateway on one core, engines and clients in C on another (`bench.overhead`'s). It wants a machine of two
cores at rest, and takes a quarter of an hour; `python -m bench.scale.report` writes the documents.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.overhead import machine
from bench.overhead.measure import Bench
from bench.overhead.native import NoCompilerError, program
from bench.scale import curves, figures, report, rig, spread
from gateway.server.listen import allow_many_connections

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.scale.curves import Point


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print as it goes, and write the results where the run was a full one."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a few points, once, in a minute; writes no file"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of which the medians count; default: 3")
    parser.add_argument("--tries", type=int, default=3, help="while others disturb a point; default: 3")
    parser.add_argument("--only", default="", metavar="CURVE", help="of: " + ", ".join(_curves()))
    options = parser.parse_args(arguments)
    try:
        program("stub"), program("load")
    except NoCompilerError as error:
        sys.exit(str(error))
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        sys.exit("this needs two cores: one for the gateway, one for engines and clients")
    allow_many_connections()
    rounds, seconds = (1, 1.0) if options.quick else (options.rounds, 2.0)
    wanted = [point for point in curves.points(options.quick) if options.only in ("", point.curve)]
    with tempfile.TemporaryDirectory(prefix="scale-") as folder:
        os.sched_setaffinity(0, {cores[1]})
        try:
            tries = 1 if options.quick else options.tries
            bench = Bench(Path(folder), (cores[0], cores[1]), seconds, tries=tries)
            runs = measure(wanted, bench, rounds)
        finally:
            os.sched_setaffinity(0, set(cores))
    found = {"about": _about(rounds, seconds), "points": rig.medians(runs)}
    if not options.only:
        found["spread"] = spread.measure(100 if options.quick else 1000)
    print("\n" + figures.Figures(found).text())
    if not (options.quick or options.only):
        report.write(found)


def measure(wanted: Sequence[Point], bench: Bench, rounds: int) -> list[dict[str, Any]]:
    """Measure points, round by round; print each."""
    runs = []
    for _ in range(rounds):
        for fleet, some in itertools.groupby(wanted, key=lambda point: point.fleet):
            with rig.gateway(fleet, bench) as served:
                for point in some:
                    runs.append(rig.point(served, point, bench))
                    print(rig.line(runs[-1]), flush=True)
    return runs


def _curves() -> list[str]:
    return list(dict.fromkeys(point.curve for point in curves.points()))


def _about(rounds: int, seconds: float) -> dict[str, Any]:
    return {
        "when": datetime.now(UTC).date().isoformat(),
        "processor": machine.processor(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "rounds": rounds,
        "seconds": seconds,
        "engines": "stubs in C, which answer at once",
    }


if __name__ == "__main__":
    main()
