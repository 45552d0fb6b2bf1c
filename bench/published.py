"""`python -m bench.published`: the published experiment by `ocr-gateway sweep`, on simulated engines.

The Reducto ML team's experiment ("When does accepted speculative decoding translate into higher throughput
and lower latency?"): three routes, nine concurrencies, depths 0, 1, 2, 3, 4, 8 and 16. The engines are
simulated and fitted to its figures, so this shows that the sweep measures what is there, not what a GPU does.
Published figure, model and sweep are printed side by side.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import yaml
from PIL import Image

from bench.choice import choosers, regret
from bench.choice.fleet import MAX_NUM_SEQS, Fleet, Pool
from bench.faults import FIT, PROMPTS, engine_processes
from bench.fit import PUBLISHED, PUBLISHED_LENGTHS
from bench.serving import ROOT
from gateway.engines.simulated.step_model import Fit, throughput
from gateway.tools.sweep.report import ResultsFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.faults import EngineProcess
    from gateway.tools.sweep.sweep_values import Results, Window

DEPTHS = (0, 1, 2, 3, 4, 8, 16)
QUICK_DEPTHS = (0, 3)
QUICK_LOADS = (1, 32, 80, 256)
IMAGES = ROOT / "docs/images"
# Seven engines and their clients on two cores: a faster clock is more than they can follow.
TIME_SCALE = 2.5


def pool_name(depth: int) -> str:
    """Return the name of the pool of a depth."""
    return f"mtp{depth}" if depth else "plain"


def configured(engines: Iterable[EngineProcess]) -> str:
    """Return a routes.yaml with a pool of each engine."""
    queue = {"max_waiting": 100_000, "max_wait_s": 100_000}
    pools = {
        pool_name(engine.depth): {
            **(
                {"speculative_config": {"method": "mtp", "num_speculative_tokens": engine.depth}}
                if engine.depth
                else {}
            ),
            "engines": [engine.url],
            "max_load": MAX_NUM_SEQS,
        }
        for engine in engines
    }
    routes = {route: {"queue": queue} for route in PROMPTS}
    return yaml.safe_dump({"model": "glm-ocr", "pools": pools, "routes": routes})


def draw(folder: Path) -> None:
    """Draw images for each route: small ones, since nobody reads them and sending takes time."""
    for route in PROMPTS:
        (folder / route).mkdir(parents=True)
        for side in range(100, 110):
            Image.new("L", (side, side), 255).save(folder / route / f"{side}.png")


def sweep(config: Path, out: Path, options: Iterable[str]) -> Results:
    """Run the command as an operator would; return what it measured."""
    command = [sys.executable, "-m", "gateway.cli", "sweep"]
    subprocess.run([*command, f"--config={config}", f"--out={out}", *options], cwd=ROOT, check=True)
    return msgspec.json.decode((out / "results.json").read_bytes(), type=ResultsFile).results


class Measured:
    """Valid windows of a sweep, by route, depth and load."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self._windows: dict[tuple[str, int, int], list[Window]] = {}
        for window in results.windows:
            if window.valid and not window.cell.per_s:
                depth = results.setting.pools[window.cell.pool].depth
                self._windows.setdefault((window.cell.route, depth, window.cell.load), []).append(window)

    def at(self, route: str, depth: int, load: int) -> Sequence[Window]:
        """Return the windows of a cell."""
        return self._windows.get((route, depth, load), ())

    def rate(self, route: str, depth: int, load: int) -> float | None:
        """Return mean tokens per second; None where nothing was measured."""
        windows = self.at(route, depth, load)
        return sum(window.rate for window in windows) / len(windows) if windows else None

    def latency(self, route: str, depth: int, load: int) -> float | None:
        """Return the mean seconds of a request."""
        means = [window.request_s.mean for window in self.at(route, depth, load) if window.request_s]
        return sum(means) / len(means) if means else None

    def length(self, route: str, depth: int, load: int) -> float | None:
        """Return the acceptance length by the engine's counters."""
        found = [window.speculation for window in self.at(route, depth, load) if window.speculation]
        drafts = sum(speculation.drafts for speculation in found)
        return 1 + sum(speculation.accepted for speculation in found) / drafts if drafts else None


def figures(measured: Measured) -> list[str]:
    """Return rows of a table: published, model and sweep."""
    fit = Fit.builtin(FIT)
    rows = ["| figure | published | model (simulated) | sweep (simulated) |", "|---|---|---|---|"]
    for depth, published in PUBLISHED_LENGTHS:
        model = [fit.routes[route].acceptance_length(depth) for route in PROMPTS]
        found = [measured.length(route, depth, 32) for route in PROMPTS]
        rows.append(
            f"| tokens a pass, depth {depth}, 32 requests | {published} | {_span(model)} | {_span(found)} |"
        )
    for route, depth, rate, seconds in PUBLISHED:
        model_rate = throughput(fit, depth, {route: 32})[route]
        model_s = 32 * fit.routes[route].output_tokens / model_rate
        what = f"{route}, depth {depth}, 32 requests"
        measured_rate = _shown(measured.rate(route, depth, 32), ",.0f")
        rows.append(f"| {what}: tokens/s | {rate:,} | {model_rate:,.0f} | {measured_rate} |")
        latency = _shown(measured.latency(route, depth, 32), ".1f")
        rows.append(f"| {what}: mean latency, s | {seconds} | {model_s:.1f} | {latency} |")
    return rows


def gains(measured: Measured) -> list[str]:
    """Return rows of a table: depth 3 over ordinary decoding, by the model and by the sweep."""
    fit = Fit.builtin(FIT)
    loads = measured.results.setting.loads
    rows = ["| depth 3 over none | " + " | ".join(map(str, loads)) + " |", "|---" * (len(loads) + 1) + "|"]
    for route in PROMPTS:
        model = [throughput(fit, 3, {route: n})[route] / throughput(fit, 0, {route: n})[route] for n in loads]
        deep, plain = ([measured.rate(route, depth, n) for n in loads] for depth in (3, 0))
        found = [a / b if a and b else None for a, b in zip(deep, plain, strict=True)]
        for who, ratios in (("model", model), ("sweep", found)):
            cells = (_shown(ratio and ratio - 1, "+.0%") for ratio in ratios)
            rows.append(f"| {route}, {who} (simulated) | " + " | ".join(cells) + " |")
    return rows


def chosen(config: Path, kind: str, clients: int) -> float:
    """Return tokens per second by the gateway's choice under a configuration, over the best fixed split's.

    One engine of depth 3 and a plain one, in virtual time, as in bench.choice.
    """
    fleet = Fleet("deep + plain", (Pool(pool_name(3), 3), Pool(pool_name(0), 0)))
    trial = regret.Trial(FIT, fleet, regret.Cell(FIT, fleet.name, kind, clients).by_route())
    result = trial.go(
        lambda world: choosers.Gateway(world, config.read_text(), config.parent, clients).poll(1.0)
    )
    return result.rate / trial.best.rate


def regrets(config: Path, clients: Sequence[int]) -> list[str]:
    """Return rows of a table: the choice under a configuration, by kind of work and clients."""
    rows = ["| choice over the best split | " + " | ".join(map(str, clients)) + " |"]
    rows.append("|---" * (len(clients) + 1) + "|")
    cells = list(itertools.product(regret.KINDS, clients))
    with ProcessPoolExecutor(2) as pool:
        ratios = pool.map(chosen, itertools.repeat(config), *zip(*cells, strict=True))
        found = dict(zip(cells, ratios, strict=True))
    return rows + [
        f"| {kind} (simulated) | " + " | ".join(f"{found[kind, n]:.3f}" for n in clients) + " |"
        for kind in regret.KINDS
    ]


def _span(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{min(known):.2f}-{max(known):.2f}" if known else "-"


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def main(arguments: Sequence[str] | None = None) -> None:
    """Start the engines, sweep, print the tables; with --keep, put the pictures into docs/images."""
    parser = argparse.ArgumentParser(prog="python -m bench.published", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="depths 0 and 3, four loads, short windows")
    parser.add_argument("--out", type=Path, help="default: a folder that is deleted; an old one is continued")
    parser.add_argument("--time-scale", type=float, default=TIME_SCALE, metavar="X", help="default: 2.5")
    parser.add_argument("--keep", action="store_true", help="put the plot of tables into docs/images")
    options = parser.parse_args(arguments)
    depths = QUICK_DEPTHS if options.quick else DEPTHS
    loads = ",".join(map(str, QUICK_LOADS))
    more = (
        [f"--concurrency={loads}", "--window=30", "--repeats-max=1"]
        if options.quick
        else ["--window=60", "--repeats-max=2"]
    )
    with tempfile.TemporaryDirectory() as folder, engine_processes(depths, options.time_scale) as engines:
        config, out = Path(folder) / "routes.yaml", options.out or Path(folder) / "out"
        config.write_text(configured(engines))
        draw(images := Path(folder) / "images")
        # Whole answers, as most OCR clients ask for, and as two cores can take them from seven engines.
        measured = Measured(sweep(config, out, [f"--images={images}", "--no-stream", *more]))
        print("\n".join([*figures(measured), "", *gains(measured), ""]), flush=True)
        two = Path(folder) / "two.yaml"
        two.write_text(configured([engine for engine in engines if engine.depth in QUICK_DEPTHS]))
        sweep(two, out, ["--report-only", "--write"])
        print("\n".join(regrets(two, QUICK_LOADS if options.quick else regret.CONCURRENCY)))
        if options.keep:
            shutil.copy(out / "table-throughput.png", IMAGES / "sweep-table.png")


if __name__ == "__main__":
    main()
