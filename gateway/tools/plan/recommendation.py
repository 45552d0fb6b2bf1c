"""A recommendation in words and as JSON; simulated figures are labelled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gateway.policy.choose.composition import TIE
from gateway.tools.output import aligned, counted
from gateway.tools.plan.engine_kinds import depth, ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gateway.policy.choose.composition import Advice, LoadBand, Rival
    from gateway.policy.choose.fleet_model import Composition, FleetOutcome, LoadHistogram
    from gateway.tools.plan.engine_kinds import Measured

# Fleets that are shown beside the recommended one.
_SHOWN = 5
# How much too high the estimate of engines with their own schedule was in bench/results/plan.json.
_ESTIMATE = 0.05
# Routes kept apart by more than this are worth telling.
_APART = 0.02
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_COLLAPSE = "a collapse where the depth changes has been reported, vllm#49548"


class FleetReport:
    """Puts a recommendation into words; names fleets by depth if those are known and differ, else by pool."""

    def __init__(self, measured: Measured) -> None:
        self._measured = measured
        self.label = "simulated" if measured.simulated else "measured"
        self._pools = [kind.name for kind in measured.kinds]
        configs = [measured.configs[pool] for pool in self._pools]
        depths = [None if ranges(config) else depth(config) for config in configs]
        self._told = [
            self._named(pool, of, scheduled=bool(ranges(config)), alone=depths.count(of) == 1)
            for pool, of, config in zip(self._pools, depths, configs, strict=True)
        ]

    def _named(self, pool: str, depth: int | None, *, scheduled: bool, alone: bool) -> str:
        if scheduled:
            return f"with their own schedule ({pool})"
        if depth is None or not alone:
            return f"of {pool}"
        return f"at depth {depth}" if depth else "plain"

    def fleet(self, fleet: Composition) -> str:
        """Return a fleet as `3 at depth 1, 1 plain`; one of a single kind as `four at depth 1`."""
        parts = [(count, told) for count, told in zip(fleet, self._told, strict=True) if count]
        if len(parts) == 1:
            return f"{_number(parts[0][0])} {parts[0][1]}"
        return ", ".join(f"{count} {told}" for count, told in parts)

    def by_pool(self, fleet: Composition) -> dict[str, int]:
        """Return a fleet as engines by pool."""
        return dict(zip(self._pools, fleet, strict=True))

    def text(self, advice: Advice, load: LoadHistogram, source: str) -> str:
        """Return the recommendation, its table of sizes and of bands."""
        return "\n".join(self._lines(advice, load, source))

    def _lines(self, advice: Advice, load: LoadHistogram, source: str) -> Iterator[str]:
        yield from self._recommendation(advice)
        yield ""
        yield from self._notes(advice, load, source)
        yield ""
        yield from aligned(list(self._sizes(advice)))
        yield (
            f"Fewest engines of one kind on which nothing waits at the peak: {self.fleet(advice.enough)}."
            if advice.enough
            else "No number of engines of one kind serves the peak without waiting."
        )
        yield ""
        yield from aligned(list(self._bands(advice)))
        yield ""
        yield from aligned(list(self._fleets(advice)))

    def _sizes(self, advice: Advice) -> Iterator[Sequence[str]]:
        yield "engines", f"best fleet ({self.label} profiles)", "tokens/s", "an engine", "time with waiting"
        for size in advice.sizes:
            fleet, rate = size.outcome.fleet, size.outcome.rate
            engines = sum(fleet)
            yield (
                str(engines),
                self.fleet(fleet),
                f"{rate:,.0f}",
                f"{rate / engines:,.0f}",
                f"{size.held:.0%}",
            )

    def _bands(self, advice: Advice) -> Iterator[Sequence[str]]:
        yield "in the system", "time", "tokens/s", "best there", "regret", "routes apart", "routes by engine"
        for band in advice.bands:
            yield (
                f"{band.first}-{band.last}" if band.first < band.last else str(band.last),
                f"{band.time:.1%}",
                f"{band.rate:,.0f}",
                self.fleet(band.best),
                f"{band.regret:.1%}",
                f"{band.apart:+.0%}",
                self._shared(band),
            )

    def _fleets(self, advice: Advice) -> Iterator[Sequence[str]]:
        yield "fleet", f"tokens/s ({self.label} profiles)", "recommended over it", "95% interval", "sure"
        yield self.fleet(advice.chosen.fleet), f"{advice.chosen.rate:,.0f}", "", "", ""
        for rival in self._worth_showing(advice):
            yield (
                self.fleet(rival.outcome.fleet),
                f"{rival.outcome.rate:,.0f}",
                f"{rival.gain:+.1%}",
                f"{rival.low:+.1%} to {rival.high:+.1%}",
                f"{rival.sure:.0%}",
            )

    def _recommendation(self, advice: Advice) -> Iterator[str]:
        chosen, engines = advice.chosen, sum(advice.chosen.fleet)
        against = [
            f"{rival.gain:+.0%} over {self.fleet(rival.outcome.fleet)}" for rival in self.singles(advice)
        ]
        if advice.own:
            gain = chosen.rate / advice.own.rate - 1
            against.append(f"{gain:+.0%} over {_number(engines)} that schedule their own depth (an estimate)")
        yield (
            f"With {counted(engines, 'engine')}: {self.fleet(chosen.fleet)}: {chosen.rate:,.0f} "
            f"tokens/s on average over this load ({self.label} profiles)"
            + "".join(f", {one}" for one in against)
            + "."
        )
        if advice.best is not chosen:
            rival = next(rival for rival in advice.rivals if rival.outcome is advice.best)
            more = advice.best.rate / chosen.rate - 1
            yield (
                f"{self.fleet(advice.best.fleet)} comes out {more:.1%} higher, "
                + (
                    f"but in {1 - rival.sure:.0%} of the draws of the profiles' errors only"
                    if more > TIE
                    else f"which is less than these figures are good for ({TIE:.0%})"
                )
                + ": the simpler fleet is recommended."
            )
        elif advice.rivals:
            second = advice.rivals[0]
            close = "; the two cannot be told apart" if second.tied else ""
            yield (
                f"Next is {self.fleet(second.outcome.fleet)}, {second.gain:.1%} behind: the profiles' errors "
                f"leave it worse in {second.sure:.0%} of the draws{close}."
            )

    def _notes(self, advice: Advice, load: LoadHistogram, source: str) -> Iterator[str]:
        totals = load.populations.sum(axis=1)
        yield (
            f"Load: {source}; {float(load.weights @ totals):,.1f} requests in the system on average, "
            f"{totals.max():,.0f} at most, none for {float(load.weights[totals == 0].sum()):.0%} of the time."
        )
        yield (
            f"Profiles: {self.label}"
            + (f", {self._measured.source}" if self._measured.source else "")
            + f". {len(advice.rivals) + 1} of {advice.compositions} compositions were valued."
        )
        apart = [band for band in advice.bands if band.apart > _APART]
        if apart:
            first = min(apart, key=lambda band: band.first)
            most = max(apart, key=lambda band: band.apart)
            yield (
                f"Keep the routes apart from {first.first} requests on, which the gateway does by itself "
                f"once it has profiles: worth up to {most.apart:.0%} ({self._shared(most)})."
            )
        if advice.own:
            better = advice.own.rate > (1 + _ESTIMATE) * advice.chosen.rate
            yield (
                "Engines that schedule their own depth are estimated from the other profiles: the best depth "
                f"for each load, and nothing lost where it changes, which was 3 to {_ESTIMATE:.0%} too much "
                f"in simulations; {_COLLAPSE}. "
                + (
                    "They may do better than this fleet"
                    if better
                    else "They hardly do better than this fleet"
                )
                + "; to know, measure a profile of such a pool."
            )
        for note in self._measured.notes:
            yield f"Note: {note}."

    def singles(self, advice: Advice) -> list[Rival]:
        """Return the rivals that have engines of one kind."""
        return [rival for rival in advice.rivals if np.count_nonzero(rival.outcome.fleet) == 1]

    def _worth_showing(self, advice: Advice) -> list[Rival]:
        first = advice.rivals[:_SHOWN]
        return [*first, *(rival for rival in self.singles(advice) if rival not in first)]

    def _shared(self, band: LoadBand) -> str:
        routes = self._measured.routes
        return "; ".join(
            f"{engines} {self._told[kind]}: {' + '.join(routes[route] for route in there) or 'idle'}"
            for kind, engines, there in band.shared
        )

    def as_json(self, advice: Advice, load: LoadHistogram, source: str) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "profiles": self.label,
            "source": self._measured.source,
            "notes": list(self._measured.notes),
            "load": {
                "source": source,
                "mean": dict(
                    zip(self._measured.routes, (load.weights @ load.populations).tolist(), strict=True)
                ),
                "most": float(load.populations.sum(axis=1).max()),
            },
            "words": list(self._recommendation(advice)),
            "recommended": self._valued(advice.chosen),
            "best": self._valued(advice.best),
            "compositions": advice.compositions,
            "others": [
                {
                    **self._valued(rival.outcome),
                    "gain": rival.gain,
                    "interval": [rival.low, rival.high],
                    "sure": rival.sure,
                    "tied": rival.tied,
                }
                for rival in advice.rivals
            ],
            "own_schedule_estimate": advice.own and {"tokens_per_s": advice.own.rate, "caveat": _COLLAPSE},
            "bands": [
                {
                    "requests": [band.first, band.last],
                    "time": band.time,
                    "tokens_per_s": band.rate,
                    "best": self.by_pool(band.best),
                    "regret": band.regret,
                    "apart": band.apart,
                    "routes": [
                        {
                            "pool": self._pools[kind],
                            "engines": engines,
                            "routes": [self._measured.routes[route] for route in there],
                        }
                        for kind, engines, there in band.shared
                    ],
                }
                for band in advice.bands
            ],
            "sizes": [
                {**self._valued(size.outcome), "time_with_waiting": size.held} for size in advice.sizes
            ],
            "enough": advice.enough and self.by_pool(advice.enough),
        }

    def _valued(self, outcome: FleetOutcome) -> dict[str, Any]:
        return {"engines": self.by_pool(outcome.fleet), "tokens_per_s": outcome.rate}


def _number(count: int) -> str:
    return _NUMBERS[count] if count < len(_NUMBERS) else str(count)
