"""The engines of a sweep: which there are, and whether they are what the configuration says."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec
from pydantic import ValidationError

from gateway.config import EMBEDDED, Config, Pool, Route, load
from gateway.errors import ConfigError, EngineFailed, GatewayError
from gateway.policy.sort.prompts import KEY_VALUE, TABLE, TEXT
from gateway.tools.sweep import sweep_values
from gateway.upstream.discovery import Discovery
from gateway.upstream.poller import health_fault, mismatch
from gateway.wire.vllm.engine import read_version, read_work

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

    from gateway.model import Engine
    from gateway.upstream.client import EngineClient

_PATIENCE_S = 10.0
_Value = TypeVar("_Value")


class _Card(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Card]


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine said of itself: its version, its fit if it is simulated, and its time scale."""

    version: str
    simulated: str
    time_scale: float


def configured(path: Path, pools: Collection[str] | None, routes: Collection[str] | None) -> Config:
    """Read routes.yaml, cut down to what is to be measured.

    Args:
        path: the file.
        pools: None for all.
        routes: None for all.

    Raises:
        ConfigError: the file cannot be used, or has no such pool or route; nothing is left to measure.
    """
    config = load(path, keys=False, authorities=True)
    chosen_pools = _chosen("pool", config.pools, pools, path)
    chosen_routes = {
        name: route.model_copy(update={"pools": allowed})
        for name, route in _chosen("route", config.routes, routes, path).items()
        if (allowed := tuple(pool for pool in config.pools_of(name) if pool in chosen_pools))
    }
    if not chosen_routes:
        raise ConfigError([f"{path}: none of the routes may use pool {', '.join(chosen_pools)}"])
    return config.model_copy(update={"pools": chosen_pools, "routes": chosen_routes})


def named(engines: Iterable[tuple[int, str]], model: str, routes: Collection[str] | None) -> Config:
    """Make a configuration of engines by depth; their pools are called `depth0`, `depth3` ...

    Args:
        engines: depth and URL of each; those of one depth are one pool.
        model: what they serve.
        routes: None for text, key-value and table.

    Raises:
        ConfigError: a URL that is none.
    """
    by_depth: dict[int, list[str]] = {}
    for depth, url in engines:
        by_depth.setdefault(depth, []).append(url)
    try:
        pools = {
            f"depth{depth}": Pool(
                speculative_config={"method": "mtp", "num_speculative_tokens": depth} if depth else {},
                engines=tuple(urls),
            )
            for depth, urls in sorted(by_depth.items())
        }
    except ValidationError as error:
        told = [problem["msg"].removeprefix("Value error, ") for problem in error.errors()]
        raise ConfigError([f"--engine: {message}" for message in told]) from error
    return Config(
        model=model, pools=pools, routes={name: Route() for name in routes or (TEXT, KEY_VALUE, TABLE)}
    )


async def engines(config: Config) -> tuple[Engine, ...]:
    """Return every engine of a configuration; names are resolved once.

    Raises:
        ConfigError: a pool without engines, or with the embedded one.
    """
    problems = [
        f"pool {name}: the embedded engine cannot be swept: it is no vLLM and has no depth; choose --pools"
        for name, pool in config.pools.items()
        if EMBEDDED in pool.engines
    ]
    changed = asyncio.Event()
    discovery = Discovery(config, changed.set, random.Random())
    watching = asyncio.create_task(discovery.run())
    try:
        while discovery.pending():
            await changed.wait()
            changed.clear()
    finally:
        watching.cancel()
        await asyncio.wait([watching])
    found = discovery.engines()
    empty = config.pools.keys() - {engine.pool for engine in found}
    problems += [
        f"pool {name}: {', '.join(pool.engines)}: no engine has this name"
        for name, pool in config.pools.items()
        if name in empty and EMBEDDED not in pool.engines
    ]
    if problems:
        raise ConfigError(problems)
    return found


async def look(client: EngineClient, engine: Engine, config: Config) -> EngineFacts:
    """Ask an engine what it is.

    Raises:
        ConfigError: it cannot be reached, is not well, serves another model, or is not as its pool says.
    """
    who = f"{engine.name} (pool {engine.pool})"
    try:
        await client.check_health(engine, _PATIENCE_S)
    except GatewayError as error:
        told = health_fault(error) if isinstance(error, EngineFailed) else error.message
        raise ConfigError([f"{who}: {engine.url}/health does not answer 200: {told}"]) from error
    try:
        work = read_work(await client.page(engine, "/metrics", _PATIENCE_S))
        version = read_version(await client.page(engine, "/version", _PATIENCE_S))
        models = msgspec.json.decode(await client.page(engine, "/v1/models", _PATIENCE_S), type=_Models)
    except (GatewayError, ValueError, msgspec.MsgspecError) as error:
        raise ConfigError([f"{who}: {error}"]) from error
    problems = []
    served = [card.id for card in models.data]
    if config.model not in served:
        problems.append(f"{who}: it serves {', '.join(served)}, not {config.model}")
    if difference := mismatch(config, engine, work.reading, None):
        problems.append(f"{who}: {difference}")
    if not work.reading.awake:
        problems.append(f"{who}: it sleeps")
    if problems:
        raise ConfigError(problems)
    simulated = work.simulated
    return EngineFacts(
        version, simulated.fit if simulated else "", simulated.time_scale if simulated else 1.0
    )


async def check(client: EngineClient, config: Config, engines: Collection[Engine]) -> dict[str, EngineFacts]:
    """Ask all engines what they are; return their answers by name.

    Raises:
        ConfigError: with every problem of every engine, or a mixture of real and simulated ones.
    """
    found: dict[str, EngineFacts] = {}
    problems: list[str] = []

    async def ask(engine: Engine) -> None:
        try:
            found[engine.name] = await look(client, engine, config)
        except ConfigError as error:
            problems.extend(error.problems)

    await asyncio.gather(*map(ask, engines))
    problems.sort()
    kinds = {answer.simulated for answer in found.values()}
    if len(kinds) > 1:
        names = sorted(f"simulated by fit {kind}" if kind else "real" for kind in kinds)
        problems.append(
            f"the engines are of different kinds, which nobody may compare: {' and '.join(names)}"
        )
    if problems:
        raise ConfigError(problems)
    return found


def pools(
    config: Config, engines: Iterable[Engine], found: Mapping[str, EngineFacts]
) -> dict[str, sweep_values.SweptPool]:
    """Return the pools under test, as sweep.jsonl records them."""
    members: dict[str, list[Engine]] = {}
    for engine in engines:
        members.setdefault(engine.pool, []).append(engine)
    return {
        name: sweep_values.SweptPool(
            depth=pool.depth,
            speculative_config=pool.speculative_config,
            ranges=pool.ranges,
            max_load=pool.max_load,
            engines=len(members.get(name, ())),
            version=", ".join(
                sorted({found[of.name].version for of in members.get(name, ()) if of.name in found})
            ),
        )
        for name, pool in config.pools.items()
    }


def _chosen(
    what: str, having: Mapping[str, _Value], wanted: Collection[str] | None, path: Path
) -> dict[str, _Value]:
    unknown = [name for name in wanted or () if name not in having]
    if unknown:
        raise ConfigError(
            [f"--{what}s: {path} has no {what} {name!r}, but {', '.join(having)}" for name in unknown]
        )
    return {name: value for name, value in having.items() if wanted is None or name in wanted}
