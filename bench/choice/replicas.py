"""Two gateways in front of one fleet, which see each other's requests only in scrapes. All simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bench.choice import trace
from bench.choice.fleet import World, evenly, measure
from bench.choice.sweep import fit_of

if TYPE_CHECKING:
    from bench.choice.fleet import Fleet
    from bench.choice.sweep import Sweep

CLIENTS = (64, 320)
# Replicas, and seconds between scrapes.
SETTINGS = ((1, 1.0), (2, 1.0), (2, 5.0))
SHRINK = 0.5
_WARM_S, _WINDOW_S = 60.0, 120.0


class Case(NamedTuple):
    """A fleet under a constant number of clients of a mix; 0 stands for the day's trace."""

    fit: str
    fleet: Fleet
    clients: int


def run(case: Case, sweep: Sweep) -> dict[str, object]:
    """Return tokens per second, as ratios to one gateway's, by `replicas/scrape seconds`."""
    rates = {setting: _rate(case, sweep, *setting) for setting in SETTINGS}
    alone = rates[SETTINGS[0]]
    ratios = {
        f"{count} replicas, {int(scrape_s)} s": rates[count, scrape_s] / alone
        for count, scrape_s in SETTINGS[1:]
    }
    return {
        "fit": case.fit,
        "fleet": case.fleet.name,
        "clients": case.clients or "trace",
        "one": round(alone, 1),
        **{name: round(ratio, 4) for name, ratio in ratios.items()},
    }


def _rate(case: Case, sweep: Sweep, replicas: int, scrape_s: float) -> float:
    if not case.clients:
        return trace.play(
            case.fit, case.fleet, "ours", sweep, 1, replicas=replicas, scrape_s=scrape_s, shrink=SHRINK
        ).rate
    world = World(fit_of(case.fit), case.fleet, seed=case.clients)
    gateways = trace.choosers_of(world, "ours", sweep, 1, replicas=replicas, scrape_s=scrape_s)
    world.clients(lambda client: gateways[client % len(gateways)], evenly(case.clients))
    return measure(world, _WARM_S, _WARM_S + _WINDOW_S).rate
