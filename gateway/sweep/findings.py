"""What a sweep says: schedules with their margins, whether drafting deeper pays, and all of it in words."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from gateway.sweep.crossover import contest, decide
from gateway.sweep.curves import ASSUMED_NOISE, noise_of, points_of, usable
from gateway.sweep.model import Deeper, Findings, RouteFindings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.sweep.crossover import Contest, Outcome
    from gateway.sweep.model import Point, Pool, Range, Results, Setting, Window

    Schedule = tuple[tuple[int, int, int], ...]


def findings(results: Results, seed: int = 0) -> Findings:
    """Conclude from what was measured so far.

    Args:
        results: a sweep, complete or not.
        seed: of the draws behind the intervals.
    """
    setting, windows = results.setting, results.windows
    routes = [route for route in setting.routes if usable(windows, route)]
    found = {route: _route(results, route, seed) for route in routes}
    together = contest(setting.pools, windows, routes, seed=seed)
    own = _own_schedule(decide(together)) if together else ()
    return Findings(routes=found, own_schedule=own, words=tuple(_words(results, own)))


def _route(results: Results, route: str, seed: int) -> RouteFindings:
    setting, windows = results.setting, results.windows
    points = points_of(windows, route)
    compared = contest(setting.pools, windows, [route], seed=seed)
    outcome = decide(compared) if compared else None
    deeper = tuple(_deeper(setting, windows, route))
    return RouteFindings(
        points=points,
        noise=noise_of(usable(windows, route).values()).seen,
        schedule=outcome.ranges if outcome else (),
        changes=outcome.changes if outcome else (),
        deeper=deeper,
        own_schedule=_own_schedule(outcome) if outcome else (),
        words=tuple(_Teller(results, route, points).tell(compared, outcome, deeper)),
    )


def _own_schedule(outcome: Outcome) -> Schedule:
    """The ranges as vLLM takes them: from 1 on, ascending, without gaps."""
    return tuple((entry.first, entry.last, entry.depth) for entry in outcome.ranges)


def _deeper(setting: Setting, windows: Sequence[Window], route: str) -> list[Deeper]:
    """Compare each pool with the next deeper one, at each load where both were measured."""
    groups = usable(windows, route)
    by_load: dict[int, dict[int, list[Window]]] = defaultdict(dict)
    for (name, load), same in groups.items():
        if not setting.pools[name].ranges:
            by_load[load].setdefault(setting.pools[name].depth, same)
    pairs = [
        _pair(load, shallow, deep, depths)
        for load, depths in sorted(by_load.items())
        for shallow, deep in pairwise(sorted(depths))
    ]
    return [pair for pair in pairs if pair]


def _pair(load: int, shallow: int, deep: int, by_depth: Mapping[int, Sequence[Window]]) -> Deeper | None:
    """Compare two depths at one load; None where it is not known how many tokens a step delivers."""
    less, more = by_depth[shallow], by_depth[deep]
    written = _tokens(less, shallow), _tokens(more, deep)
    if written[0] is None or written[1] is None:
        return None
    tokens = written[1] / written[0]
    steps = _mean([window.step_s for window in less]), _mean([window.step_s for window in more])
    rates = _mean([window.rate for window in less]), _mean([window.rate for window in more])
    slower = steps[1] / steps[0] if all(steps) else tokens * rates[0] / rates[1]
    drafts = sum(window.speculation.drafts for window in more if window.speculation)
    accepted = [window.speculation.accepted_per_position[shallow:] for window in more if window.speculation]
    shares = tuple(sum(position) / drafts for position in zip(*accepted, strict=False)) if drafts else ()
    return Deeper(load, shallow, deep, tokens, slower, shares)


def _tokens(windows: Sequence[Window], depth: int) -> float | None:
    """Tokens per step: the acceptance length over all windows, or as the engine's histograms have it."""
    if not depth:
        return 1.0
    told = [window.speculation for window in windows if window.speculation and window.speculation.drafts]
    if told:
        return 1 + sum(one.accepted for one in told) / sum(one.drafts for one in told)
    return _mean([window.tokens_per_step for window in windows]) or None


def _mean(values: Sequence[float | None]) -> float:
    """The mean of what is known; 0 where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else 0.0


def _words(results: Results, own: Schedule) -> list[str]:
    """What holds for the whole sweep."""
    setting = results.setting
    words = []
    if setting.simulated:
        words.append(f"Simulated: engines after the fit {setting.simulated}; nothing was measured on a GPU.")
    count = len(results.windows)
    invalid = sum(not window.valid for window in results.windows)
    words.append(
        f"{_many(count, 'window')} of {setting.window_s:g} s; "
        + (f"{invalid} of them invalid and left out." if invalid else "none of them invalid.")
    )
    if len({depth for _, _, depth in own}) > 1:
        words.append(
            "One engine for all routes that schedules its own depth: num_speculative_tokens_per_batch_size "
            f"{[list(entry) for entry in own]}, by the geometric mean of the routes' rates. "
            "vLLM drops such a schedule without a word where data_parallel_size is above 1, and a collapse "
            "of throughput at the threshold has been reported (vllm#49548): measure such an engine as a pool "
            "of its own before you rely on it."
        )
    elif own:
        words.append(
            f"One engine for all routes has no use for a schedule of its own: {_named(own[0][2])} throughout."
        )
    return words


class _Teller:
    """Puts what was found of one route into sentences."""

    def __init__(self, results: Results, route: str, points: Mapping[str, Sequence[Point]]) -> None:
        self._results = results
        self._route = route
        self._rates = {(name, point.load): point.rate for name, found in points.items() for point in found}
        simulated = " (simulated)" if results.setting.simulated else ""
        self._start = f"{route}{simulated}: "

    def tell(self, compared: Contest | None, outcome: Outcome | None, deeper: Sequence[Deeper]) -> list[str]:
        """Return the sentences."""
        if not compared or not outcome:
            return [f"{self._start}no load was measured on all pools.", *self._left_out()]
        if len(compared.pools) < 2:
            words = [f"{self._start}only {compared.pools[0]} was measured: nothing to compare."]
            return [*words, *self._left_out()]
        words = [self._recommendation(compared, outcome)]
        words += self._undecided(compared, outcome)
        words += self._ends(compared, outcome)
        words.append(self._noise(compared, outcome))
        words += self._deeper(deeper)
        return [*words, *self._left_out()]

    def _recommendation(self, compared: Contest, outcome: Outcome) -> str:
        if outcome.changes:
            parts = [
                f"{_named(outcome.ranges[0].depth)} up to {outcome.changes[0].load - 1} requests per engine"
            ]
            parts += [
                f"{_named(entry.depth)} from {change.load} (95%: {change.low} to {change.high})"
                for change, entry in zip(outcome.changes, outcome.ranges[1:], strict=True)
            ]
            return f"{self._start}{', '.join(parts)}; {self._examples(compared, outcome)}."
        entry = outcome.ranges[0]
        wins = any(depth is not None for depth in compared.certain().values())
        if not wins:
            return (
                f"{self._start}no difference beyond the noise between the pools at any load; on the whole "
                f"{_named(entry.depth)} was ahead, {_interval(entry)} against {_pool(self._depth(entry))}."
            )
        return (
            f"{self._start}no crossover beyond the noise: {_named(entry.depth)} throughout, "
            f"{self._examples(compared, outcome)}."
        )

    def _examples(self, compared: Contest, outcome: Outcome) -> str:
        """How the first range's pool does against the next one's at a load in the middle of each range."""
        first = outcome.ranges[0]
        if not outcome.changes:
            pair, places = (first.pool, first.runner_up), compared.measured
            loads = sorted({places[0], places[len(places) // 2], places[-1]})
            told = [f"{self._against(*pair, load)} at {load}" for load in loads if self._known(pair, load)]
            return f"against {_pool(self._depth(first))} {_listed(told)}"
        told = []
        for index, entry in enumerate(outcome.ranges):
            inside = [load for load in compared.measured if entry.first <= load <= entry.last]
            other = outcome.ranges[index - 1] if index else outcome.ranges[1]
            pair = (entry.pool, other.pool)
            if inside and self._known(pair, load := inside[len(inside) // 2]):
                gain = self._against(*pair, load)
                told.append(f"{_named(entry.depth)} is {gain} than {_named(other.depth)} at {load}")
        return _listed(told)

    def _known(self, pair: tuple[str, str], load: int) -> bool:
        return all((name, load) in self._rates for name in pair)

    def _against(self, one: str, other: str, load: int) -> str:
        return _faster(self._rates[one, load] / self._rates[other, load] - 1)

    def _depth(self, entry: Range) -> Pool:
        return self._results.setting.pools[entry.runner_up]

    def _undecided(self, compared: Contest, outcome: Outcome) -> list[str]:
        """The loads away from crossovers at which noise hides the winner."""
        loads = [
            load for load, depth in compared.certain().items() if depth is None and not outcome.near(load)
        ]
        if not loads or len(loads) == len(compared.measured):
            return []
        return [
            f"Inside the noise at {_listed(list(map(str, loads)))} requests per engine: no depth wins there "
            "for certain, and the schedule keeps the one beside it."
        ]

    def _ends(self, compared: Contest, outcome: Outcome) -> list[str]:
        last = int(compared.loads[-1])
        if outcome.changes:
            return [f"Measured up to {last} requests per engine; beyond, the last range is assumed to hold."]
        return [f"Measuring ended at {last} requests per engine; a crossover beyond it would not be seen."]

    def _noise(self, compared: Contest, outcome: Outcome) -> str:
        noise = compared.noise
        if noise.seen is None:
            return (
                "Nothing was repeated, so how windows differ is not known; it is taken to be twice the error "
                f"that each tells of itself, or {ASSUMED_NOISE:.0%}, and no crossover counts as certain."
            )
        return (
            f"One window differs from the next by {noise.deviation:.1%} (standard deviation, from "
            f"{_many(noise.freedom, 'repeat')})."
        )

    def _deeper(self, deeper: Sequence[Deeper]) -> list[str]:
        """From which load on each deeper step costs more than it gains."""
        words = []
        for pair in sorted({(one.shallow, one.deep) for one in deeper}):
            found = [one for one in deeper if (one.shallow, one.deep) == pair]
            shown = found[len(found) // 2]
            where = [one.load for one in found if one.pays]
            pays = (
                "pays at every load measured"
                if len(where) == len(found)
                else f"pays at {_listed(list(map(str, where)))} requests per engine"
                if where
                else "pays at no load measured"
            )
            words.append(
                f"From {_named(pair[0])} to {_named(pair[1])}: {shown.tokens - 1:+.0%} tokens per step for "
                f"{shown.time - 1:+.0%} time at {shown.load}; {pays}."
            )
        return words

    def _left_out(self) -> list[str]:
        """The invalid windows, with the reasons."""
        cells = Counter(
            (window.cell.pool, window.cell.load, window.invalid)
            for window in self._results.windows
            if window.cell.route == self._route and not window.valid
        )
        if not cells:
            return []
        told = [
            f"{pool} at {load}{f' ({count} times)' if count > 1 else ''}: {', '.join(reasons)}"
            for (pool, load, reasons), count in sorted(cells.items())
        ]
        return [f"Left out as invalid: {'; '.join(told)}."]


def _named(depth: int) -> str:
    return f"depth {depth}" if depth else "ordinary decoding"


def _pool(pool: Pool) -> str:
    return "an engine that schedules its own depth" if pool.ranges else _named(pool.depth)


def _faster(gain: float) -> str:
    return f"{gain:.0%} faster" if gain >= 0 else f"{-gain:.0%} slower"


def _interval(entry: Range) -> str:
    return f"{entry.margin:+.0%} (95%: {entry.low:+.0%} to {entry.high:+.0%})"


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"


def _listed(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
