"""`python -m bench.autoscaling [--quick]`: days of load on pools that are scaled by the shipped rule.

The rule's transcription, the autoscaler's arithmetic and the gateway's own state and metrics run in virtual
time over simulated engines; every figure is simulated. With --quick one short day is run, nothing is written.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.autoscaling.day import DEPTHS, MOST, Case, Course, run
from bench.choice.fleet import Fleet, Pool
from bench.choice.sweep import Sweep, measured, needed
from bench.serving import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

RESULTS = Path(__file__).resolve().parents[1] / "results" / "autoscaling.json"
IMAGE = ROOT / "docs/images/autoscaling.png"
WORKERS = 2
NOON = (0.42, 0.58)
DAYS = {
    "a day, tenfold": Case("slow-verify", "open", 12, 10),
    "a day, twofold": Case("slow-verify", "open", 12, 2),
    "batch clients, tenfold": Case("h100-9b", "closed", 300, 10),
    "noon at once": Case("slow-verify", "open", 9, 1, length=5400.0),
}
# The same engines all day, of which noon is run: depth 3, and plain.
FIXED = ((1, 1), (1, 2), (2, 2), (1, 3), (1, 4))


def swept(fit: str) -> Sweep:
    """Return what a sweep of one engine of each depth measures."""
    kinds = [Fleet("", tuple(Pool(name, depth) for name, depth in DEPTHS.items()))]
    return Sweep(fit, {key: measured(fit, *key) for key in needed(kinds)})


def figures(case: Case, course: Course) -> dict[str, Any]:
    """Return what a day came to."""
    waits = np.array(course.waits)
    seconds = case.length * (case.part[1] - case.part[0])
    return {
        "engines": round(course.engine_seconds / seconds, 2),
        "most": max(sum(moment.wished.values()) for moment in course.moments),
        "tokens_per_engine_second": round(course.tokens / course.engine_seconds),
        "waited": round(float(np.mean(waits > 0)), 4),
        "waited_30_s": round(float(np.mean(waits > 30)), 4),
        "longest_wait_s": round(float(np.max(waits)), 1),
        "p50_s": round(course.latency(50), 1),
        "p95_s": round(course.latency(95), 1),
        "p95_noon_s": round(course.latency(95, NOON), 1),
        "turns": {pool: course.turns(pool) for pool in MOST},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the days, print the table, write plot and figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.autoscaling", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one day of an hour; nothing is written")
    quick = parser.parse_args(arguments).quick
    days = {"an hour": DAYS["a day, tenfold"]._replace(length=3600.0)} if quick else DAYS
    sweeps = {fit: swept(fit) for fit in {case.fit for case in days.values()}}
    fixed = {
        f"fixed: {deep} of depth 3, {plain} plain": DAYS["a day, tenfold"]._replace(
            fixed=(deep, plain), part=NOON
        )
        for deep, plain in ([] if quick else FIXED)
    }
    cases = {**days, **fixed}
    courses = {}
    with ProcessPoolExecutor(WORKERS) as pool:
        found = {name: pool.submit(run, case, sweeps[case.fit]) for name, case in cases.items()}
        for name, future in found.items():
            courses[name] = future.result()
            print(f"simulated: {name}: {figures(cases[name], courses[name])}", flush=True)
    if quick:
        return
    told = {name: figures(cases[name], course) for name, course in courses.items()}
    rows = [f" {json.dumps(name)}: {json.dumps(row)}" for name, row in told.items()]
    RESULTS.write_text('{"label": "simulated",\n' + ",\n".join(rows) + "\n}\n")
    from bench.autoscaling.plots import draw

    draw({name: courses[name] for name in days}, days, IMAGE)
    print(f"figures: {RESULTS.name}, plot: docs/images/{IMAGE.name}; all simulated")


if __name__ == "__main__":
    main()
