"""`python -m bench.choice [regret|trace|replicas|cost|all] [--quick]`: simulated figures of the choice."""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.choice import cost, plots, regret, replicas, tables, trace
from bench.choice.sweep import FITS, Sweep, measured, needed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

RESULTS = Path(__file__).resolve().parents[1] / "results" / "choice.json"
WORKERS = 2
QUICK_CLIENTS = (1, 32, 128, 400)


class Bench:
    """Runs simulations in two processes, and prints its progress."""

    def __init__(self, pool: ProcessPoolExecutor, *, quick: bool) -> None:
        self._pool = pool
        self._started = time.monotonic()
        self.quick = quick
        self.fits = FITS[:1] if quick else FITS
        self.sweeps = {fit: self._sweep(fit) for fit in self.fits}

    def _sweep(self, fit: str) -> Sweep:
        fleets = [regret.fleet_of(name, fit) for name in regret.FLEETS]
        wanted = needed(fleets)
        rates = self.all(f"sweep of {fit}", measured, [(fit, *key) for key in wanted])
        return Sweep(fit, dict(zip(wanted, rates, strict=True)))

    def all(self, name: str, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return what a function gives for each of its arguments."""
        # The long ones, which come last, are started first, so that both processes end together.
        futures = [self._pool.submit(function, *call) for call in reversed(calls)]
        results = []
        for place, future in enumerate(futures, start=1):
            results.append(future.result())
            if place % max(1, len(calls) // 10) == 0:
                print(
                    f"  {name}: {place} of {len(calls)}, {time.monotonic() - self._started:.0f} s", flush=True
                )
        return results[::-1]

    def regret(self) -> list[dict[str, Any]]:
        """Measure every cell."""
        cells = [
            (regret.Cell(fit, fleet, kind, clients), self.sweeps[fit], self.quick)
            for fit in self.fits
            for fleet in (regret.FLEETS[:2] if self.quick else regret.FLEETS)
            for kind in (("table", "mix") if self.quick else regret.KINDS)
            for clients in (QUICK_CLIENTS if self.quick else regret.CONCURRENCY)
        ]
        return self.all("regret", regret.run, cells)

    def trace(self) -> list[dict[str, Any]]:
        """Measure the day on every fleet."""
        shrink = 0.1 if self.quick else 1.0
        runs = [
            (case, self.sweeps[fit], shrink)
            for fit in self.fits
            for case in trace.cases(fit, quick=self.quick)
        ]
        return self.all("trace", trace.run, runs)

    def replicas(self) -> list[dict[str, Any]]:
        """Measure two gateways against one."""
        cases = [
            (replicas.Case(fit, fleet, clients), self.sweeps[fit])
            for fit in self.fits
            for fleet in (regret.fleet_of("deep + plain", fit), trace.fleet_of((3, 3, 0, 0)))
            for clients in (replicas.CLIENTS[1:2] if self.quick else (0, *replicas.CLIENTS))
        ]
        return self.all("replicas", replicas.run, cases)


def main(arguments: Iterable[str] | None = None) -> None:
    """Measure, print the tables, and write the plots and the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.choice", description=__doc__)
    parser.add_argument(
        "part", nargs="?", default="all", choices=["regret", "trace", "replicas", "cost", "all"]
    )
    parser.add_argument("--quick", action="store_true", help="a few cells, short runs; nothing is written")
    options = parser.parse_args(arguments if arguments is None else list(arguments))
    parts = ("cost", "regret", "trace", "replicas") if options.part == "all" else (options.part,)
    found: dict[str, Any] = {}
    if "cost" in parts:
        found["cost"] = cost.run(2_000 if options.quick else 20_000)
        tables.cost(found["cost"])
    if others := [part for part in parts if part != "cost"]:
        with ProcessPoolExecutor(WORKERS) as pool:
            bench = Bench(pool, quick=options.quick)
            for part in others:
                found[part] = getattr(bench, part)()
                getattr(tables, part)(found[part])
            if not options.quick:
                plots.curves(bench.sweeps)
    if options.quick:
        return
    if "regret" in found:
        plots.regret(found["regret"])
    if "trace" in found:
        plots.trace(found["trace"])
    write(found)


def write(found: dict[str, Any]) -> None:
    """Write the figures; parts that were not measured now are kept."""
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    figures = {"label": "simulated", **kept, **found}
    for run in figures.get("trace", ()):
        run.pop("course", None)
    RESULTS.parent.mkdir(exist_ok=True)
    lines = [f" {json.dumps(part)}: {_lines(value)}" for part, value in figures.items()]
    RESULTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"figures: {RESULTS.name}, plots: docs/images; all simulated")


def _lines(value: object) -> str:
    """Return JSON with a line for each entry of a list, for readable diffs."""
    if isinstance(value, list):
        return "[\n" + ",\n".join(f"  {json.dumps(entry)}" for entry in value) + "\n ]"
    return json.dumps(value)


if __name__ == "__main__":
    main()
