"""What a configuration means for choosing: routes by index, each pool's table, breaker and retry rules."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.config import route_notes
from gateway.config.shown_values import shortened, shown
from gateway.policy.admit.memory_share import may_hold
from gateway.policy.choose.demand import busy, counts, useful_load
from gateway.policy.choose.gain import (
    Curve,
    SpeedTable,
    crossover_by_curves,
    crossover_by_schedule,
    depth_at,
    spans,
    wins_by_curves,
    wins_by_schedule,
)
from gateway.policy.fail.breaker import Rules
from gateway.policy.sort.evidence import SortRules
from gateway.policy.sort.prompts import KEY_VALUE, TABLE, TEXT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gateway.config import Config, Pool
    from gateway.policy.choose.gain import Crossover


@dataclass(frozen=True, slots=True)
class Fleet:
    """One configuration's routes and pools, ready for choosing.

    Attributes:
        config: the configuration.
        routes: names in its order; everything by index follows it.
        tables: by pool.
        serves: by pool, then by route, whether the route may use it.
        useful: by pool, then by route, the requests up to which one engine is the right place for them.
        depths: by pool, the depth its engines run at under load 1, 2, ...; it stays at the last.
        step_depths: by pool, the most tokens a step drafts; 0 where a step need not draft any.
        profiled: every route has its profile.
        wins: by pool, then by route, the loads, from and to, at which its depth wins; none without schedule
            or profile.
        chosen_by: what each route's choice goes by: `profile`, `schedule`, or `load` where it has neither.
        rules: the breakers'.
        sorting: how requests are sorted into the routes.
        notes: what an operator should know: limits that contradict each other, what profiles lack or were
            measured on instead.
    """

    config: Config
    routes: tuple[str, ...]
    tables: Mapping[str, SpeedTable]
    serves: Mapping[str, tuple[bool, ...]]
    useful: Mapping[str, tuple[int, ...]]
    depths: Mapping[str, Sequence[int]]
    step_depths: Mapping[str, int]
    profiled: bool
    wins: Mapping[str, tuple[tuple[tuple[int, int], ...], ...]]
    chosen_by: Mapping[str, str]
    rules: Rules
    sorting: SortRules
    notes: tuple[str, ...]

    @classmethod
    def of(cls, config: Config) -> Fleet:
        """Work out a configuration."""
        curves = {route: _curves(config, route) for route in config.routes}
        by_load = {name: _depths(pool) for name, pool in config.pools.items()}
        tables = {
            name: SpeedTable(
                [curves[route].get(name) for route in config.routes],
                [_crossover(config, route, name, curves[route], by_load[name]) for route in config.routes],
                pool.max_load,
                [route.weight for route in config.routes.values()],
            )
            for name, pool in config.pools.items()
        }
        breaker = config.breaker
        rules = Rules(breaker.failures, breaker.open_s, breaker.probes)
        return cls(
            config=config,
            routes=tuple(config.routes),
            tables=tables,
            serves={
                name: tuple(name in config.pools_of(route) for route in config.routes)
                for name in config.pools
            },
            useful={
                name: tuple(useful_load(table, route) for route in range(table.routes))
                for name, table in tables.items()
            },
            depths={
                name: [depth_of(pool, load) for load in range(1, _last_change(pool) + 1)]
                for name, pool in config.pools.items()
            },
            step_depths={name: pool.step_depth for name, pool in config.pools.items()},
            profiled=all(curves.values()),
            wins={
                name: tuple(
                    spans(_wins(config, route, name, curves[route], by_load[name])) for route in config.routes
                )
                for name in config.pools
            },
            chosen_by={
                name: "profile" if curves[name] else "schedule" if route.schedule else "load"
                for name, route in config.routes.items()
            },
            rules=rules,
            sorting=sort_rules(config),
            notes=tuple(_notes(config)),
        )

    def depth(self, pool: str, load: int) -> int:
        """Return the depth an engine of the pool runs at under a load."""
        depths = self.depths[pool]
        return depths[min(max(load, 1), len(depths)) - 1]

    def busy(self, pool: str, own: Sequence[int], load: int, in_flight: Sequence[int]) -> float:
        """Return how much an engine writes of what it can; see policy.choose.demand.busy.

        Args:
            pool: its pool.
            own: our requests there by route.
            load: all requests there.
            in_flight: our requests everywhere by route.
        """
        serves = self.serves[pool]
        mix = [count if may else 0 for count, may in zip(in_flight, serves, strict=True)]
        return busy(self.tables[pool], self.useful[pool], counts(own, load, mix if any(mix) else serves))


def sort_rules(config: Config) -> SortRules:
    """Return the rules of sorting that a configuration makes."""
    patterns = {
        route: tuple(re.compile(pattern) for pattern in prompts)
        for route, prompts in config.sorting.prompts.items()
    }
    return SortRules(tuple(config.routes), config.sorting.default, patterns)


def depth_of(pool: Pool, load: int) -> int:
    """Return the depth one of a pool's engines runs at under a load."""
    return depth_at(pool.ranges, max(load, 1), pool.depth)


def _last_change(pool: Pool) -> int:
    """The load from which a pool's engines keep their depth."""
    return max((first for first, _, _ in pool.ranges), default=1)


def _curves(config: Config, route: str) -> Mapping[str, Curve]:
    """A route's curves by pool: of all its pools, or none."""
    profile = config.profiles.get(route)
    pools = config.pools_of(route)
    if profile is None or not all(pool in profile.pools for pool in pools):
        return {}
    return {
        pool: Curve(profile.pools[pool], [first for first, _, _ in config.pools[pool].ranges[1:]])
        for pool in pools
    }


def _crossover(
    config: Config, route: str, name: str, curves: Mapping[str, Curve], depths: Sequence[int]
) -> Crossover:
    pool = config.pools[name]
    if name in curves:
        others = [curve for other, curve in curves.items() if other != name]
        return crossover_by_curves(curves[name], others, pool.max_load)
    return crossover_by_schedule(config.routes[route].schedule, depths, pool.max_load)


def _wins(
    config: Config, route: str, name: str, curves: Mapping[str, Curve], depths: Sequence[int]
) -> list[bool]:
    """Whether a pool's depth wins for a route, at load 1, 2, ... max_load; empty where nothing says so."""
    pool = config.pools[name]
    if name in curves:
        others = [curve for other, curve in curves.items() if other != name]
        return wins_by_curves(curves[name], others, pool.max_load)
    return wins_by_schedule(config.routes[route].schedule, depths)


def _depths(pool: Pool) -> list[int]:
    """The depth of one of a pool's engines at load 1, 2, ... max_load."""
    ranges, depth = pool.ranges, pool.depth
    return [depth_at(ranges, load, depth) for load in range(1, pool.max_load + 1)]


def _notes(config: Config) -> Iterator[str]:
    yield from config.notes
    yield from route_notes(config, (TEXT, KEY_VALUE, TABLE))
    yield from _limit_notes(config)
    for route, profile in config.profiles.items():
        told = f"routes.{route}.profile"
        if lacking := [pool for pool in config.pools_of(route) if pool not in profile.pools]:
            yield f"{told}: it has no curve of {', '.join(lacking)}; the schedule stands in for all of it"
        measured = profile.meta.get("model")
        if measured not in (None, config.model, config.model_path):
            at: tuple[str, ...] = ("model_path",) if config.model_path else ("model",)
            other = "this one" if at in config.from_environment else shown(config.model_path or config.model)
            yield f"{told}: measured on model {shown(measured)}, not on {other}"
        by_pool = profile.meta.get("pools")
        for pool in config.pools_of(route):
            was = by_pool.get(pool) if isinstance(by_pool, dict) else None
            if was is not None and was != _plain(config.pools[pool].speculative_config):
                yield f"{told}: pool {pool} was measured with speculative_config {shortened(str(was), 200)}"


def _limit_notes(config: Config) -> Iterator[str]:
    """What one limit allows and another never lets through."""
    limits, remote = config.limits, config.remote_images
    held = limits.inflight_bytes
    if held and not may_hold(limits.body_bytes, own=0, total=0, limit=held):
        yield (
            f"limits.inflight_bytes: bodies over half of it, {held // 2:,} bytes, are always refused; "
            f"limits.body_bytes allows {limits.body_bytes:,}"
        )
    if limits.request_pixels < limits.image_pixels:
        yield (
            f"limits.request_pixels: images over {limits.request_pixels:,} pixels are always refused; "
            f"limits.image_pixels allows {limits.image_pixels:,}"
        )
    if remote.allow_hosts and remote.max_bytes * 4 // 3 > limits.body_bytes:
        yield (
            f"limits.body_bytes: remote images over {limits.body_bytes * 3 // 4:,} bytes, a third more in "
            f"base64, are always refused; remote_images.max_bytes allows {remote.max_bytes:,}"
        )


def _plain(value: object) -> object:
    """A value as JSON has it: lists for tuples."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, tuple | list) else value
