"""Profiles as kinds of engines: a folder of the files that a sweep writes, one a route."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from gateway.config import EMBEDDED, Pool, Profile
from gateway.errors import ConfigError
from gateway.policy.choose.fleet_model import EngineKind
from gateway.policy.choose.gain import Curve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

# What must be the same in all, and what had better be.
_SAME = ("model", "gpu")
_ALIKE = ("engine_version",)


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of the engines one may run.

    Attributes:
        routes: those with a profile.
        kinds: by pool; curves by route in the order of `routes`.
        configs: by pool, its speculative config; None where the profiles do not tell.
        simulated: the profiles were measured on simulated engines.
        source: model, GPU and engine version, as far as they are told.
        notes: what a reader should know of the profiles.
    """

    routes: tuple[str, ...]
    kinds: tuple[EngineKind, ...]
    configs: Mapping[str, Mapping[str, Any] | None]
    simulated: bool
    source: str
    notes: tuple[str, ...]


def read(folder: Path) -> Measured:
    """Read every profile of a folder; other JSON files there are skipped.

    Raises:
        ConfigError: there is none, one cannot be read, or they do not belong together.
    """
    found: dict[Path, Profile] = {}
    problems: list[str] = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        try:
            profile = _profile(path)
        except (OSError, ValueError) as error:
            problems.append(_told(path, error))
            continue
        if profile:
            found[path] = profile
    if not found and not problems:
        problems.append(f"{folder}: there are no profiles here (a sweep writes ROUTE.json files)")
    problems += _differences(found)
    if problems:
        raise ConfigError(problems)
    return _measured(list(found.values()), tuple(_notes(found)))


def _profile(path: Path) -> Profile | None:
    data = json.loads(path.read_bytes())
    if not (isinstance(data, dict) and {"route", "pools"} <= data.keys()):
        return None
    return Profile.model_validate({"meta": {}, **data})


def _told(path: Path, error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    return f"{path}: {error}"


def _differences(found: Mapping[Path, Profile]) -> Iterator[str]:
    """Yield why profiles cannot be of one set of engines."""
    routes: dict[str, Path] = {}
    for path, profile in found.items():
        if profile.route in routes:
            yield f"{path}: route {profile.route!r} has a profile already, {routes[profile.route]}"
        routes[profile.route] = path
    for key in _SAME:
        if len(values := _values(found, key)) > 1:
            yield f"the profiles are of different {key}s: {_listed(values)}"
    kinds = {simulated(profile): path for path, profile in found.items()}
    if len(kinds) > 1:
        yield f"{kinds[True]} is simulated, {kinds[False]} is measured: they do not compare"
    for pool, configs in _configs(found.values()).items():
        if len(configs) > 1:
            yield f"pool {pool!r} had different speculative configs: {', '.join(sorted(configs))}"


def _notes(found: Mapping[Path, Profile]) -> Iterator[str]:
    for key in _ALIKE:
        if len(values := _values(found, key)) > 1:
            yield f"the profiles are of different {key}s: {_listed(values)}"
    for key in _SAME:
        if untold := [path.name for path, profile in found.items() if not profile.meta.get(key)]:
            yield f"not told by {', '.join(untold)}: on which {key} it was measured"
    bare = [
        path.name
        for path, profile in found.items()
        if any(len(point) < 3 for points in profile.pools.values() for point in points)
    ]
    if bare:
        yield f"points without a standard error are taken to be 5% off: {', '.join(bare)}"


def _values(found: Mapping[Path, Profile], key: str) -> dict[str, str]:
    """The values of a key in the profiles' meta, each with a file that has it."""
    return {str(profile.meta[key]): path.name for path, profile in found.items() if profile.meta.get(key)}


def _listed(values: Mapping[str, str]) -> str:
    return ", ".join(f"{value} ({name})" for value, name in values.items())


def _configs(profiles: Iterable[Profile]) -> dict[str, dict[str, Any]]:
    """By pool, the speculative configs that profiles tell, by their JSON."""
    configs: dict[str, dict[str, Any]] = {}
    for profile in profiles:
        told = profile.meta.get("pools")
        for pool in profile.pools:
            known = configs.setdefault(pool, {})
            if isinstance(told, dict) and isinstance(config := told.get(pool), dict):
                known[json.dumps(config, sort_keys=True)] = config
    return configs


def simulated(profile: Profile) -> bool:
    """Return whether a profile was measured on simulated engines."""
    source = str(profile.meta.get("source", "")).lower()
    return bool(profile.meta.get("simulated")) or source.startswith("simulated")


def _measured(profiles: list[Profile], notes: tuple[str, ...]) -> Measured:
    configs = {pool: next(iter(told.values()), None) for pool, told in _configs(profiles).items()}
    breaks = {pool: [first for first, _, _ in ranges(config)[1:]] for pool, config in configs.items()}
    kinds = tuple(
        EngineKind(
            pool,
            tuple(
                Curve(profile.pools[pool], breaks[pool]) if pool in profile.pools else None
                for profile in profiles
            ),
        )
        for pool in configs
    )
    meta = profiles[0].meta
    source = [str(meta[key]) for key in (*_SAME, *_ALIKE) if meta.get(key)]
    return Measured(
        routes=tuple(profile.route for profile in profiles),
        kinds=kinds,
        configs=configs,
        simulated=simulated(profiles[0]),
        source=", ".join(source),
        notes=notes,
    )


def ranges(config: Mapping[str, Any] | None) -> tuple[tuple[int, int, int], ...]:
    """Return the schedule by batch size in a speculative config; empty where it has none."""
    found = _pool(config)
    return found.ranges if found else ()


def depth(config: Mapping[str, Any] | None) -> int | None:
    """Return the depth in a speculative config; None where that is not known."""
    found = _pool(config)
    return found.depth if found else None


def _pool(config: Mapping[str, Any] | None) -> Pool | None:
    if config is None:
        return None
    try:
        return Pool(speculative_config=_frozen(config), engines=(EMBEDDED,))
    except ValidationError:
        return None


def _frozen(value: Any) -> Any:
    """A value as a configuration has it: tuples for lists."""
    if isinstance(value, dict):
        return {key: _frozen(entry) for key, entry in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
