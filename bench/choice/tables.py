"""The figures as tables, for people."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.choice.fleet import ROUTES
from bench.choice.trace import DEPTHS, ENGINES, fleet_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RULES = (
    "schedule only",
    "best by schedule",
    "fill to crossover",
    "fastest for itself",
    "least loaded",
    "round robin",
)


def regret(cells: Sequence[Mapping[str, Any]]) -> None:
    """Print every cell, then the worst."""
    print(
        "\nSIMULATED. Tokens/s (and mean seconds a request) over the best fixed split's; ours: mean, worst of"
    )
    print(
        "profiles with 5% noise. 'schedule only' is ours without profiles; 'best by schedule' the best fixed"
    )
    print("split that obeys the schedule.")
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for cell in cells:
        groups[cell["fit"], cell["fleet"]].append(cell)
    for (fit, fleet), group in groups.items():
        print(f"\n{fit}, {fleet} (simulated)")
        print(
            f"{'route':>10}{'clients':>8}{'best tok/s':>11}{'ours':>16}"
            + "".join(f"{rule:>19}" for rule in RULES)
        )
        for cell in group:
            rates = [rate for rate, _ in cell["ours"]]
            delay = np.mean([latency for _, latency in cell["ours"]])
            ours = f"{np.mean(rates):.3f} {min(rates):.3f} ({delay:.2f})"
            others = "".join(_ratio(cell.get(rule)) for rule in RULES)
            print(f"{cell['kind']:>10}{cell['clients']:8}{cell['best']['rate']:11.0f}{ours:>20}{others}")
        worst = min(group, key=lambda cell: min(rate for rate, _ in cell["ours"]))
        least = min(rate for rate, _ in worst["ours"])
        print(f"worst of ours: {least:.3f} ({worst['kind']}, {worst['clients']} clients)")
        scheduled = [
            (cell["schedule only"][0] / cell["best by schedule"][0], cell["kind"], cell["clients"])
            for cell in group
            if "best by schedule" in cell
        ]
        if scheduled:
            share, kind, clients = min(scheduled)
            print(f"worst of schedule only over what it allows: {share:.3f} ({kind}, {clients} clients)")


def trace(runs: Sequence[Mapping[str, Any]]) -> None:
    """Print every run against the best single depth."""
    for fit in dict.fromkeys(run["fit"] for run in runs):
        mine = [run for run in runs if run["fit"] == fit]
        base, own = baseline(mine)
        print(
            f"\nSIMULATED, {fit}: a day on {ENGINES} engines; total over the best single depth, least loaded"
        )
        print(f"({base['fleet']}: {base['rate']:.0f} tokens per engine-second, p95 {base['p95']:.1f} s);")
        print("each route over its own best single depth: tokens, and p95")
        head = "".join(f"{route:>14}" for route in ROUTES)
        print(
            f"{'fleet':>24}{'rule':>14}{'weights':>9}{'seed':>5}{'total':>7}{'p95':>6}{head}{'of bound':>10}"
        )
        for run in mine:
            parts = "".join(
                f"{run['by_route'][route] / own[route]['by_route'][route]:8.2f}"
                f"{run['p95_by_route'][route] / own[route]['p95_by_route'][route]:6.2f}"
                for route in ROUTES
            )
            bound = f"{run['rate'] / run['bound']:10.3f}" if "bound" in run else ""
            print(
                f"{run['fleet']:>24}{run['rule']:>14}{run['power']:9}{run['seed']:5}"
                f"{run['rate'] / base['rate']:7.3f}{run['p95'] / base['p95']:6.2f}{parts}{bound}"
            )


def baseline(runs: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], dict[str, Mapping[str, Any]]]:
    """Return the best run of a single depth with least loaded, and the one that is best for each route."""
    names = {fleet_of((depth,) * ENGINES).name for depth in DEPTHS}
    single = [run for run in runs if run["fleet"] in names and run["rule"] == "least loaded"]
    own = {
        route: max((run["by_route"][route], place) for place, run in enumerate(single)) for route in ROUTES
    }
    return max(single, key=lambda run: run["rate"]), {
        route: single[place] for route, (_, place) in own.items()
    }


def replicas(cases: Sequence[Mapping[str, Any]]) -> None:
    """Print the throughput of two gateways over one's."""
    print("\nSIMULATED. Tokens/s of two gateways over one's, by seconds between scrapes; mixed routes")
    columns = [key for key in cases[0] if "replicas" in key]
    print(
        f"{'fit':>12}{'fleet':>18}{'clients':>9}{'one tok/s':>11}" + "".join(f"{key:>18}" for key in columns)
    )
    for case in cases:
        ratios = "".join(f"{case[key]:18.3f}" for key in columns)
        print(f"{case['fit']:>12}{case['fleet']:>18}{case['clients']:>9}{case['one']:11.0f}{ratios}")


def cost(figures: Mapping[str, Any]) -> None:
    """Print the CPU time of a choice."""
    print(
        f"CPU of one choice: {figures['machine']}, Python {figures['python']}, {figures['engines']} engines, "
        f"{figures['requests']} requests, {figures['samples']} samples"
    )
    for name in ("choose alone", "take", "release", "take + release"):
        one = figures[name]
        print(f"  {name:<15} median {one['median']:.1f} us, mean {one['mean']:.1f}, p99 {one['p99']:.1f}")


def _ratio(pair: Sequence[float] | None) -> str:
    return f"{pair[0]:12.3f} ({pair[1]:4.2f})" if pair else f"{'-':>19}"
