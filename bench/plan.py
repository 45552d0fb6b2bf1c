"""`python -m bench.plan [--quick]`: does `ocr-gateway plan` find the fleet that exhaustive simulation finds?

All compositions of four engines of depth 3, depth 1 and plain ones run three days in virtual time, in two
fits, with the gateway's own rule choosing. The plan gets what an operator has: profiles as a sweep writes
them, without noise and with 5% of it, and the day's load as a CSV file. Everything is simulated.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bench.choice import choosers
from bench.choice.fleet import MAX_NUM_SEQS, ROUTES, Fleet, Pool, World
from bench.choice.sweep import FITS, SEEDS, Sweep, engine_schedule, fit_of, measured, needed
from bench.choice.trace import DAY
from bench.serving import ROOT
from gateway.tools.plan import engine_kinds
from gateway.tools.plan.load_history import binned, read_csv
from gateway.tools.plan.plan_command import planned

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gateway.policy.choose.composition import Advice

    # Seconds, then clients of each route; linear between.
    Day = Sequence[tuple[float, int, int, int]]

ENGINES = 4
DEPTHS = (3, 1, 0)
RESULTS = ROOT / "bench" / "results" / "plan.json"
IMAGE = ROOT / "docs" / "images" / "plan.png"
WORKERS = 2
_UPDATE_S = 5.0
# Fleets within this of the best by the first seed run with the other seeds, too.
_CONTENDERS = 0.03


def tide(
    quiet: tuple[int, int, int], crowd: tuple[int, int, int], low_s: float, ramp_s: float, high_s: float
) -> Day:
    """Return a day that goes from few clients to a crowd and back."""
    rows, now = [(0.0, *quiet)], 0.0
    for seconds, counts in ((low_s, quiet), (ramp_s, crowd), (high_s, crowd), (ramp_s, quiet)):
        now += seconds
        rows.append((now, *counts))
    return rows


def twice(day: Day) -> Day:
    """Return a day two times over."""
    return [*day, *((row[0] + day[-1][0], *row[1:]) for row in day[1:])]


QUIET, CROWD = (2, 2, 8), (250, 8, 100)
# The first was known when the plan was made. The last is over before requests that came with the crowd have
# left: a population does not stay long enough for its best split.
DAYS: dict[str, Day] = {
    "ramps": DAY,
    "slow tide": tide(QUIET, CROWD, 200, 100, 400),
    "fast tide": twice(tide(QUIET, CROWD, 130, 20, 100)),
}


def clients_at(day: Day, second: float) -> dict[str, int]:
    """Return a day's clients of each route at a time."""
    times = [row[0] for row in day]
    return {
        route: round(float(np.interp(second, times, [row[place] for row in day])))
        for place, route in enumerate(ROUTES, start=1)
    }


def pools_of(fit: str, depths: Sequence[int] | None) -> tuple[Pool, ...]:
    """Return the pools of a fleet with an engine of each depth; of the engines' own schedule without."""
    if depths is None:
        return (Pool("own", 3, ENGINES, engine_schedule(fit)),)
    return tuple(Pool(f"depth{depth}", depth, depths.count(depth)) for depth in DEPTHS if depth in depths)


def name_of(depths: Sequence[int] | None) -> str:
    """Return a fleet's name in tables."""
    if depths is None:
        return f"{ENGINES} x own schedule"
    return " + ".join(f"{depths.count(depth)} x {depth}" for depth in DEPTHS if depth in depths)


def every_fleet(depths: Sequence[int] = DEPTHS) -> list[tuple[int, ...]]:
    """Return all compositions."""
    return list(itertools.combinations_with_replacement(depths, ENGINES))


def play(fit: str, depths: Sequence[int] | None, day: Day, sweep: Sweep, seed: int) -> float:
    """Return tokens per second of a fleet over a day, the gateway choosing by profiles with 5% noise."""
    pools = pools_of(fit, depths)
    world = World(fit_of(fit), Fleet("", pools), seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        sweep.write_profiles(Path(folder), pools, seed)
        text = choosers.config_text(world.fleet, ROUTES)
        gateway = choosers.Gateway(world, text, Path(folder), seed).poll(1.0)

    def update() -> None:
        world.clients(lambda _: gateway, clients_at(day, world.now))

    for step in range(int(day[-1][0] / _UPDATE_S)):
        world.at(step * _UPDATE_S, update)
    world.run(day[-1][0])
    return world.tokens() / day[-1][0]


def write_day(path: Path, day: Day) -> None:
    """Write a day as `plan` reads it."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["time", *ROUTES])
        for second in np.arange(0.0, day[-1][0], _UPDATE_S):
            rows.writerow([second, *clients_at(day, float(second)).values()])


def plan(fit: str, day: Day, sweep: Sweep, seed: int | None, depths: Sequence[int] = DEPTHS) -> Advice:
    """Return what `plan` advises for a day, from profiles with a seed's noise or without any."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        sweep.write_profiles(path, pools_of(fit, depths), seed)
        write_day(path / "day.csv", day)
        found = engine_kinds.read(path)
        load = binned(read_csv(path / "day.csv"), found.routes)
    return planned(found, load, ENGINES, MAX_NUM_SEQS)


def depths_of(counts: Sequence[int], depths: Sequence[int] = DEPTHS) -> tuple[int, ...]:
    """Return a plan's fleet as the depth of each engine."""
    return tuple(depth for depth, count in zip(depths, counts, strict=True) for _ in range(count))


class Run(NamedTuple):
    """One simulated day."""

    fit: str
    day: str
    depths: tuple[int, ...] | None
    seed: int


class Bench:
    """Simulates what was asked for in two processes, and tells how far it is."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool
        self._started = time.monotonic()

    def sweep(self, fit: str) -> Sweep:
        """Measure what the profiles need."""
        kinds = (*pools_of(fit, DEPTHS), *pools_of(fit, None))
        wanted = needed([Fleet("", kinds)])
        futures = [self._pool.submit(measured, fit, *key) for key in wanted]
        sweep = Sweep(fit, {key: future.result() for key, future in zip(wanted, futures, strict=True)})
        print(f"  sweep of {fit}: {time.monotonic() - self._started:.0f} s", flush=True)
        return sweep

    def simulate(self, runs: Sequence[Run], sweeps: Mapping[str, Sweep]) -> dict[Run, float]:
        """Return the rates of runs."""
        futures = {
            self._pool.submit(play, run.fit, run.depths, DAYS[run.day], sweeps[run.fit], run.seed): run
            for run in runs
        }
        found = {}
        for place, future in enumerate(as_completed(futures), start=1):
            found[futures[future]] = future.result()
            if place % max(1, len(runs) // 10) == 0:
                seconds = time.monotonic() - self._started
                print(f"  simulated {place} of {len(runs)}, {seconds:.0f} s", flush=True)
        return found

    def plans(self, fit: str, day: str, sweep: Sweep) -> dict[int, Advice]:
        """Return what is advised, by the noise's seed; 0: without noise."""
        seeds = (0, *SEEDS)
        futures = [self._pool.submit(plan, fit, DAYS[day], sweep, seed or None) for seed in seeds]
        return {seed: future.result() for seed, future in zip(seeds, futures, strict=True)}


def compare(bench: Bench, days: Sequence[str], seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Plan and simulate every fit and day."""
    sweeps = {fit: bench.sweep(fit) for fit in FITS}
    cases = [(fit, day) for fit in FITS for day in days]
    advised = {case: bench.plans(*case, sweeps[case[0]]) for case in cases}
    first = [Run(fit, day, depths, seeds[0]) for fit, day in cases for depths in (*every_fleet(), None)]
    rates = bench.simulate(first, sweeps)
    again = []
    for fit, day in cases:
        mine = {run: rate for run, rate in rates.items() if (run.fit, run.day) == (fit, day) and run.depths}
        picks = {
            depths_of(outcome.fleet)
            for advice in advised[fit, day].values()
            for outcome in (advice.chosen, advice.best)
        }
        again += [
            run._replace(seed=seed)
            for run, rate in mine.items()
            if rate >= (1 - _CONTENDERS) * max(mine.values()) or run.depths in picks
            for seed in seeds[1:]
        ]
    rates |= bench.simulate(again, sweeps)
    noise = noise_of(rates)
    for fit, day in cases:
        mine = {run: rate for run, rate in rates.items() if (run.fit, run.day) == (fit, day)}
        yield case_of(fit, day, mine, advised[fit, day], noise)


def noise_of(rates: Mapping[Run, float]) -> float:
    """Return the standard deviation of one simulated day over its seeds, relative."""
    groups: dict[Run, list[float]] = {}
    for run, rate in rates.items():
        groups.setdefault(run._replace(seed=0), []).append(rate)
    several = [np.array(found) for found in groups.values() if len(found) > 1]
    squares = sum(float(((found / found.mean() - 1) ** 2).sum()) for found in several)
    freedom = sum(len(found) - 1 for found in several)
    return float(np.sqrt(squares / freedom)) if freedom else 0.0


def case_of(
    fit: str, day: str, rates: Mapping[Run, float], advised: Mapping[int, Advice], noise: float
) -> dict[str, Any]:
    """Return the figures of one fit and day.

    Judged are the recommended fleet, which is the simpler one of those that the plan cannot tell apart, and
    the one with the plan's highest figure. A pick agrees where it is the composition with the highest
    simulated mean, or where it lacks no more of that than two standard errors of their difference.
    """
    by_fleet: dict[tuple[int, ...] | None, list[float]] = {}
    for run, rate in sorted(rates.items(), key=lambda item: item[0].seed):
        by_fleet.setdefault(run.depths, []).append(rate)
    own = by_fleet.pop(None)
    means = {depths: float(np.mean(found)) for depths, found in by_fleet.items() if depths}
    best = max(means, key=means.__getitem__)
    exact = advised[0]
    values = {
        depths_of(outcome.fleet): outcome.rate
        for outcome in (exact.chosen, *(rival.outcome for rival in exact.rivals))
    }

    def judged(pick: tuple[int, ...]) -> dict[str, Any]:
        regret = 1 - means[pick] / means[best]
        within = 2 * noise * np.sqrt(1 / len(by_fleet[pick]) + 1 / len(by_fleet[best]))
        return {"fleet": name_of(pick), "regret": round(regret, 4), "agrees": bool(regret <= within)}

    picks = [
        {
            "profiles": f"noise {seed}" if seed else "no noise",
            "recommended": judged(depths_of(advice.chosen.fleet)),
            "highest": judged(depths_of(advice.best.fleet)),
        }
        for seed, advice in advised.items()
    ]
    return {
        "fit": fit,
        "day": day,
        "best": name_of(best),
        "noise": round(noise, 4),
        "picks": picks,
        "own schedule": {
            "simulated": round(float(np.mean(own)), 1),
            "estimated": exact.own and round(exact.own.rate, 1),
        },
        "fleets": [
            {
                "fleet": name_of(depths),
                "planned": round(values[depths], 1),
                "simulated": [round(rate, 1) for rate in by_fleet[depths]],
            }
            for depths in sorted(means, key=means.__getitem__, reverse=True)
        ],
    }


def show(case: Mapping[str, Any]) -> None:
    """Print one fit and day."""
    print(f"\nSIMULATED, {case['fit']}, {case['day']}: tokens/s of {ENGINES} engines")
    print(f"{'fleet':>24}{'plan':>9}{'simulated':>11}{'plan / simulated':>18}  seeds")
    for fleet in case["fleets"]:
        mean = float(np.mean(fleet["simulated"]))
        seeds = " ".join(f"{rate:.0f}" for rate in fleet["simulated"])
        print(
            f"{fleet['fleet']:>24}{fleet['planned']:9.0f}{mean:11.0f}{fleet['planned'] / mean:18.3f}  {seeds}"
        )
    own = case["own schedule"]
    print(f"four with their own schedule: {own['estimated']} estimated, {own['simulated']} simulated")
    print(f"a simulated day is reproduced within {case['noise']:.2%} (standard deviation over seeds)")
    for pick in case["picks"]:
        told = "; ".join(f"{kind} {_told(pick[kind])}" for kind in ("recommended", "highest"))
        print(f"  {pick['profiles']:>9}: {told}")


def _told(judged: Mapping[str, Any]) -> str:
    verdict = "agrees" if judged["agrees"] else "does not agree"
    return f"{judged['fleet']} (regret {judged['regret']:.2%}, {verdict})"


def draw(cases: Sequence[Mapping[str, Any]]) -> None:
    """Plan against simulation, for every fleet."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    days = list(dict.fromkeys(case["day"] for case in cases))
    figure, grid = pyplot.subplots(
        len(FITS), len(days), figsize=(4.2 * len(days), 3.4 * len(FITS)), layout="constrained", squeeze=False
    )
    for case in cases:
        axes = grid[FITS.index(case["fit"])][days.index(case["day"])]
        fleets = case["fleets"][::-1]
        places = range(len(fleets))
        for place, fleet in enumerate(fleets):
            axes.plot(
                fleet["simulated"], [place] * len(fleet["simulated"]), "o", color="tab:blue", markersize=4
            )
        axes.plot(
            [fleet["planned"] for fleet in fleets], places, "D", color="tab:orange", markersize=4, mfc="none"
        )
        axes.set_yticks(places, [fleet["fleet"] for fleet in fleets], fontsize=7)
        for label, fleet in zip(axes.get_yticklabels(), fleets, strict=True):
            label.set_fontweight(
                "bold" if fleet["fleet"] == case["picks"][0]["recommended"]["fleet"] else "normal"
            )
        axes.set_title(f"{case['day']} ({case['fit']}, simulated)", fontsize=9)
        axes.set_xlabel("output tokens/s of four engines", fontsize=8)
        axes.tick_params(axis="x", labelsize=7)
    grid[0][0].plot([], [], "o", color="tab:blue", markersize=4, label="simulated, a dot a seed")
    grid[0][0].plot(
        [], [], "D", color="tab:orange", markersize=4, mfc="none", label="plan, from profiles without noise"
    )
    figure.legend(
        fontsize=8,
        loc="outside lower center",
        ncols=2,
        title="engines x depth; bold: recommended",
        title_fontsize=8,
    )
    IMAGE.parent.mkdir(exist_ok=True)
    figure.savefig(IMAGE, dpi=110)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Plan, simulate, print the tables, and write figures and plot."""
    parser = argparse.ArgumentParser(prog="python -m bench.plan", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one day, one seed; nothing is written")
    options = parser.parse_args(arguments)
    days, seeds = (["slow tide"], SEEDS[:1]) if options.quick else (list(DAYS), SEEDS)
    with ProcessPoolExecutor(WORKERS) as pool:
        cases = list(compare(Bench(pool), days, seeds))
    for case in cases:
        show(case)
    for kind in ("recommended", "highest"):
        picks = [pick[kind] for case in cases for pick in case["picks"]]
        regrets = [pick["regret"] for pick in picks]
        print(
            f"\nSIMULATED, {kind}: {regrets.count(0)} of {len(picks)} picks are the best composition, "
            f"{sum(pick['agrees'] for pick in picks)} that or within the simulation's noise of it; "
            f"regret {np.mean(regrets):.2%} on average, {max(regrets):.2%} at most"
        )
    if options.quick:
        return
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"label": "simulated", "cases": cases}, indent=1) + "\n")
    draw(cases)
    print(f"figures: {RESULTS.name}, plot: docs/images/{IMAGE.name}; all simulated")


if __name__ == "__main__":
    main()
