"""What a sweep says: schedules with their margins, whether drafting deeper pays, and all of it in words."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from gateway.policy.account.acceptance import added
from gateway.tools.output import counted, listed
from gateway.tools.sweep.crossover import ENDS, compare, decide
from gateway.tools.sweep.curves import ASSUMED_NOISE, noise_of, points_of, usable
from gateway.tools.sweep.sweep_values import DeeperDraft, Findings, RouteFindings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.tools.sweep.crossover import Comparison, DepthSchedule
    from gateway.tools.sweep.sweep_values import DepthRange, Results, Setting, Window

    Schedule = tuple[tuple[int, int, int], ...]

# A simulated engine that had less than this share of its load is no measurement of it.
_HELD = 0.9


def findings(results: Results, seed: int = 0) -> Findings:
    """Conclude from what was measured so far.

    Args:
        results: a sweep, complete or not.
        seed: of the draws behind the intervals.
    """
    setting, windows = results.setting, results.windows
    routes = [route for route in setting.routes if usable(windows, route)]
    found = {route: _route(results, route, seed) for route in routes}
    together = compare(setting.pools, windows, routes, seed=seed)
    own = decide(together).as_vllm if together else ()
    return Findings(routes=found, own_schedule=own, words=tuple(_words(results, own)))


def _route(results: Results, route: str, seed: int) -> RouteFindings:
    setting, windows = results.setting, results.windows
    points = points_of(windows, route)
    compared = compare(setting.pools, windows, [route], seed=seed)
    schedule = decide(compared) if compared else None
    deeper = tuple(_deeper(setting, windows, route))
    return RouteFindings(
        points=points,
        noise=noise_of(usable(windows, route).values()).seen,
        schedule=schedule.ranges if schedule else (),
        changes=schedule.changes if schedule else (),
        deeper=deeper,
        own_schedule=schedule.as_vllm if schedule else (),
        words=tuple(_RouteWords(results, route).sentences(compared, schedule, deeper)),
    )


def _deeper(setting: Setting, windows: Sequence[Window], route: str) -> list[DeeperDraft]:
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


def _pair(load: int, shallow: int, deep: int, by_depth: Mapping[int, Sequence[Window]]) -> DeeperDraft | None:
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
    return DeeperDraft(load, shallow, deep, tokens, slower, shares)


def _tokens(windows: Sequence[Window], depth: int) -> float | None:
    """Tokens per step: the acceptance length over all windows, or as the engine's histograms have it."""
    if not depth:
        return 1.0
    if told := added(window.speculation for window in windows):
        return told.length
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
        f"{counted(count, 'window')} of {setting.window_s:g} s; "
        + (f"{invalid} of them invalid and left out." if invalid else "none of them invalid.")
    )
    lacking = sum(map(_lacked_load, results.windows)) if setting.simulated else 0
    if lacking:
        words.append(
            f"In {counted(lacking, 'window')} this machine was too busy to keep the simulated engine at its "
            "load, and the rate is too low: take a smaller --time-scale, or a quieter machine."
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


def _lacked_load(window: Window) -> bool:
    held = window.running + window.waiting
    return window.valid and not window.cell.per_s and 0 < held < _HELD * window.cell.load


class _RouteWords:
    """Puts what was found of one route into sentences."""

    def __init__(self, results: Results, route: str) -> None:
        self._results = results
        self._route = route
        self._start = f"{route}{' (simulated)' if results.setting.simulated else ''}: "

    def sentences(
        self, compared: Comparison | None, schedule: DepthSchedule | None, deeper: Sequence[DeeperDraft]
    ) -> list[str]:
        """Return the sentences."""
        if not compared or not schedule:
            return [f"{self._start}no load was measured on all pools.", *self._left_out()]
        if len(compared.pools) < 2:
            words = [f"{self._start}only {compared.pools[0]} was measured: nothing to compare."]
            return [*words, *self._left_out()]
        undecided = [
            load
            for load, depths in compared.contenders.items()
            if len(depths) > 1 and not schedule.near(load)
        ]
        words = [self._recommendation(compared, schedule, undecided)]
        if undecided:
            words.append(self._inside_noise(compared, undecided))
        last = int(compared.loads[-1])
        words.append(
            f"Measured up to {last} requests per engine; beyond, the last range is assumed to hold."
            if schedule.changes
            else f"Measuring ended at {last} requests per engine; a crossover beyond it would not be seen."
        )
        return [*words, _noise(compared), *_pays(deeper), *self._left_out()]

    def _recommendation(self, compared: Comparison, schedule: DepthSchedule, undecided: Sequence[int]) -> str:
        first = schedule.ranges[0]
        if schedule.changes:
            parts = [f"{_named(first.depth)} up to {schedule.changes[0].load - 1} requests per engine"]
            parts += [
                f"{_named(entry.depth)} from {change.load} (95%: {change.low} to {change.high})"
                for change, entry in zip(schedule.changes, schedule.ranges[1:], strict=True)
            ]
            return f"{self._start}{', '.join(parts)}; {_examples(compared, schedule.ranges)}."
        if not first.runner_up:
            return f"{self._start}{_named(first.depth)} throughout; no other depth was measured."
        if len(undecided) == len(compared.measured):
            return (
                f"{self._start}no difference beyond the noise at any load; on the whole "
                f"{_named(first.depth)} was ahead of {self._called(first.runner_up)}, {_interval(first)}."
            )
        none = "no crossover beyond the noise" if undecided else "no crossover"
        loads = compared.measured
        told = [
            f"{_faster(_gain(compared, first.pool, first.runner_up, load))} at {load}"
            for load in sorted({loads[0], loads[len(loads) // 2], loads[-1]})
        ]
        against = f"against {self._called(first.runner_up)} {listed(told)}"
        return f"{self._start}{none}: {_named(first.depth)} throughout, {against}."

    def _inside_noise(self, compared: Comparison, undecided: Sequence[int]) -> str:
        """The loads away from crossovers at which noise hides the winner, and how wide it is at the worst."""
        places = np.searchsorted(compared.loads, undecided)
        order = np.argsort(-compared.mean[:, places], axis=0)
        gaps = compared.draws[:, order[0], places] - compared.draws[:, order[1], places]
        low, high = np.percentile(gaps, ENDS, axis=0)
        worst = int(np.argmax(high - low))
        first, second = (compared.pools[order[rank, worst]] for rank in (0, 1))
        gain = _gain(compared, first, second, undecided[worst])
        apart = f"{gain:+.0%} (95%: {np.expm1(low[worst]):+.0%} to {np.expm1(high[worst]):+.0%})"
        return (
            f"Inside the noise at {listed(list(map(str, undecided)))} requests per engine: no depth wins "
            "there for certain, and the schedule keeps the one beside it. "
            f"At {undecided[worst]}, {self._called(first)} against {self._called(second)} is {apart}."
        )

    def _called(self, pool: str) -> str:
        """A pool's depth in words; its name where its engines change their depth."""
        known = self._results.setting.pools[pool]
        return pool if known.ranges else _named(known.depth)

    def _left_out(self) -> list[str]:
        """The invalid windows, with the reasons; not those that were measured again and were well."""
        windows = [window for window in self._results.windows if window.cell.route == self._route]
        well = {window.cell for window in windows if window.valid}
        cells = Counter(
            (window.cell.pool, window.cell.load, window.invalid)
            for window in windows
            if not window.valid and window.cell not in well
        )
        if not cells:
            return []
        told = [
            f"{pool} at {load}{f' ({count} times)' if count > 1 else ''}: {', '.join(reasons)}"
            for (pool, load, reasons), count in sorted(cells.items())
        ]
        return [f"Left out as invalid: {'; '.join(told)}."]


def _gain(compared: Comparison, one: str, other: str, load: int) -> float:
    """By how much one pool is faster than another at a load, by the smoothed curves; relative."""
    place = int(np.searchsorted(compared.loads, load))
    pair = [compared.pools.index(name) for name in (one, other)]
    return float(np.expm1(compared.mean[pair[0], place] - compared.mean[pair[1], place]))


def _examples(compared: Comparison, ranges: Sequence[DepthRange]) -> str:
    """How each range's pool does against its neighbour's, at a load in the middle of the range."""
    told = []
    for index, entry in enumerate(ranges):
        inside = [load for load in compared.measured if entry.first <= load <= entry.last]
        other = ranges[index - 1] if index else ranges[1]
        if inside and entry.pool != other.pool:
            load = inside[len(inside) // 2]
            gain = _faster(_gain(compared, entry.pool, other.pool, load))
            told.append(f"{_named(entry.depth)} is {gain} than {_named(other.depth)} at {load}")
    return listed(told) or "the engine changes its depth by itself"


def _noise(compared: Comparison) -> str:
    noise = compared.noise
    if noise.seen is None:
        return (
            "Nothing was repeated, so how windows differ is not known; it is taken to be twice the error "
            f"that each tells of itself, or {ASSUMED_NOISE:.0%}, and no crossover counts as certain."
        )
    return (
        f"One window differs from the next by {noise.deviation:.1%} (standard deviation, from "
        f"{counted(noise.freedom, 'repeat')})."
    )


def _pays(deeper: Sequence[DeeperDraft]) -> list[str]:
    """At which loads each deeper step gains more than it costs."""
    words = []
    for shallow, deep in sorted({(one.shallow, one.deep) for one in deeper}):
        found = [one for one in deeper if (one.shallow, one.deep) == (shallow, deep)]
        shown = found[len(found) // 2]
        where = [str(one.load) for one in found if one.pays]
        if len(where) == len(found):
            pays = "pays at every load measured"
        else:
            pays = f"pays at {listed(where)} requests per engine" if where else "pays at no load measured"
        words.append(
            f"From {_named(shallow)} to {_named(deep)}: {shown.tokens - 1:+.0%} tokens per step for "
            f"{shown.time - 1:+.0%} time at {shown.load}; {pays}."
        )
    return words


def _named(depth: int) -> str:
    return f"depth {depth}" if depth else "ordinary decoding"


def _faster(gain: float) -> str:
    return f"{gain:.0%} faster" if gain >= 0 else f"{-gain:.0%} slower"


def _interval(entry: DepthRange) -> str:
    return f"{entry.margin:+.0%} (95%: {entry.low:+.0%} to {entry.high:+.0%})"
