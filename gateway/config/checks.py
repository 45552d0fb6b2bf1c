"""routes.yaml to a valid Config; every error names file, line and key, and what is allowed."""

from __future__ import annotations

import datetime
import difflib
import math
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

from pydantic import ValidationError

from gateway.config.api_keys import Keys, parse_keys
from gateway.config.located_yaml import FromEnvironment, LocatedYaml
from gateway.config.schema import EMBEDDED, Auth, Config, Profile, Route, Section, ValueFault
from gateway.config.small_files import digest, read_file
from gateway.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from gateway.config.located_yaml import Location

# Instead of pydantic's messages about Python's types.
_MESSAGES = {
    "tuple_type": "must be a list",
    "dict_type": "must be a section of keys",
    "model_type": "must be a section of keys",
    "too_short": "has too few entries",
    "string_too_short": "must not be empty",
}
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")


@dataclass(slots=True)
class _OtherFiles:
    """What the files hold that a configuration names.

    Attributes:
        profiles: by route.
        keys: the API keys.
        sources: digests of the configuration's file and of these, those that cannot be read among them.
    """

    profiles: dict[str, Profile] = field(default_factory=dict)
    keys: Keys = field(default_factory=Keys)
    sources: dict[Path, bytes] = field(default_factory=dict)


def load(
    path: Path,
    environment: Mapping[str, str] = os.environ,
    *,
    keys: bool = True,
    again: bool = False,
    workers: int = 1,
) -> Config:
    """Read and validate a configuration file.

    Args:
        path: the file.
        environment: the variables that it may refer to.
        keys: whether to read the API keys, too: they are there where the gateway serves, and need not be
            elsewhere.
        again: whether it has been read before, so that a pipe in its place would be waited for in vain.
        workers: gateway processes of this host that serve it.

    Raises:
        ConfigError: with every problem found, one `file:line: key: ...` line each, and the files it names.
    """
    others = _OtherFiles(sources={path: b""})
    try:
        content = read_file(path, or_pipe=not again)
        others.sources[path] = digest(content)
        text = content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: cannot be read: {error}"], others.sources) from error
    return _parse(text, str(path), path.parent, environment, others, keys=keys, workers=workers)


def parse(
    text: str,
    file: str,
    folder: Path,
    environment: Mapping[str, str],
    *,
    keys: bool = True,
    workers: int = 1,
) -> Config:
    """Validate a configuration's text.

    Args:
        text: the configuration.
        file: names it in errors.
        folder: where the paths in it start.
        environment: the variables that it may refer to.
        keys: whether to read the API keys, too.
        workers: gateway processes of this host that serve it.

    Raises:
        ConfigError: with every problem found.
    """
    return _parse(text, file, folder, environment, _OtherFiles(), keys=keys, workers=workers)


def _parse(
    text: str,
    file: str,
    folder: Path,
    environment: Mapping[str, str],
    others: _OtherFiles,
    *,
    keys: bool,
    workers: int,
) -> Config:
    document = LocatedYaml(file, environment)
    values = document.read(text)
    if document.problems:
        raise ConfigError(document.problems, others.sources)
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        document.report(_explain(error, Config))
        raise ConfigError(document.problems, others.sources) from None
    document.report(_cross_check(config, folder, others))
    document.report(_check_workers(config, workers))
    if keys:
        _read_keys(config.auth, folder, document, others)
    if document.problems:
        raise ConfigError(document.problems, others.sources)
    return config.completed(
        profiles=others.profiles, keys=others.keys, sources=others.sources, workers=workers
    )


def route_notes(config: Config, known: Iterable[str]) -> Iterator[str]:
    """Yield a note on each route that requests reach by its name alone, such as a misspelt one.

    Args:
        config: the configuration.
        known: the routes that requests are sorted into without further configuration.
    """
    names = list(known)
    for route in config.routes:
        if route in names or config.sorting.prompts.get(route):
            continue
        guess = _did_you_mean(route, names)
        if route != config.sorting.default:
            yield (
                f"routes.{route}: only requests that name it reach it: it is none of {', '.join(names)}, "
                f"and sorting.prompts has no prompts for it{guess}"
            )
        elif guess:
            yield f"routes.{route}: only the default leads to it: it is none of {', '.join(names)}{guess}"


def _cross_check(config: Config, folder: Path, others: _OtherFiles) -> Iterator[tuple[Location, str]]:
    """Yield what no single section can see: names that refer to others, files, duplicates."""
    pools, routes = config.pools, config.routes
    for kind, names in (("pools", pools), ("routes", routes)):
        for name in names:
            if not _NAME.fullmatch(name):
                yield (kind, name), "a name is lower-case letters, digits, '-', '_' and '.', at most 63"
    seen: set[str] = set()
    for name, pool in pools.items():
        for index, engine in enumerate(pool.engines):
            if engine in seen:
                yield (
                    ("pools", name, "engines", index),
                    f"{_shown(engine)} is listed twice; an engine is in one pool",
                )
            seen.add(engine)
        if EMBEDDED in pool.engines and pool.speculative_config:
            yield ("pools", name, "speculative_config"), "the embedded engine does not speculate; remove this"
    for name, route in routes.items():
        yield from _check_route(config, name, route, folder, others)
    if config.sorting.default and config.sorting.default not in routes:
        yield ("sorting", "default"), _unknown(config.sorting.default, "route", routes)
    for name, patterns in config.sorting.prompts.items():
        if name not in routes:
            yield ("sorting", "prompts", name), _unknown(name, "route", routes)
        for index, pattern in enumerate(patterns):
            try:
                re.compile(pattern)
            except re.error as error:
                yield ("sorting", "prompts", name, index), f"is not a regular expression: {error}"
    if "prompts" in config.documents.model_fields_set:
        for name in config.documents.prompts:
            if name not in routes:
                yield ("documents", "prompts", name), _unknown(name, "route", routes)


def _check_workers(config: Config, workers: int) -> Iterator[tuple[Location, str]]:
    """Yield what several processes of one host cannot share."""
    port = config.server.admin_port
    if workers == 1:
        return
    if port is None:
        yield (
            ("server", "admin_port"),
            f"is required with {workers} workers: each has its metrics at a port of its own, from here on",
        )
    elif port + workers > 65536:
        yield ("server", "admin_port"), f"{workers} workers have one each from {port} on; there are 65535"
    if config.server.replicas < workers:
        yield (
            ("server", "replicas"),
            f"counts every worker of every host: with {workers} here it is at least {workers}, "
            f"found {config.server.replicas}",
        )


def _check_route(
    config: Config, name: str, route: Route, folder: Path, others: _OtherFiles
) -> Iterator[tuple[Location, str]]:
    for index, pool in enumerate(route.pools or ()):
        if pool not in config.pools:
            yield ("routes", name, "pools", index), _unknown(pool, "pool", config.pools)
            return
    depths = {depth for pool in config.pools_of(name) for depth in config.pools[pool].depths}
    for index, (_, _, depth) in enumerate(route.schedule):
        if depth not in depths:
            yield (
                ("routes", name, "schedule", index),
                f"no pool of this route runs at depth {depth}; its pools offer {sorted(depths)}",
            )
    if route.profile is not None:
        yield from _check_profile(config, name, folder / route.profile, others)


def _check_profile(
    config: Config, name: str, path: Path, others: _OtherFiles
) -> Iterator[tuple[Location, str]]:
    where: Location = ("routes", name, "profile")
    others.sources[path] = b""
    try:
        content = read_file(path)
        others.sources[path] = digest(content)
        profile = Profile.model_validate_json(content)
    except OSError as error:
        yield where, f"{path} cannot be read: {error.strerror}"
    except ValidationError as error:
        for at, message in _explain(error, Profile):
            yield where, f"{path}: {'.'.join(map(str, at)) or 'file'}: {message}"
    else:
        others.profiles[name] = profile
        if profile.route != name:
            yield where, f"{path} was measured for route {profile.route!r}"
        for pool in profile.pools:
            if pool not in config.pools:
                yield where, f"{path}: {_unknown(pool, 'pool', config.pools)}"


def _read_keys(auth: Auth, folder: Path, document: LocatedYaml, others: _OtherFiles) -> None:
    """Read the keys' file, and check the keys that refer to its names."""
    if auth.keys_file:
        path = folder / auth.keys_file
        others.sources[path] = b""
        try:
            content = read_file(path)
            others.sources[path] = digest(content)
            others.keys = parse_keys(content, str(path))
        except OSError as error:
            document.report([(("auth", "keys_file"), f"{path} cannot be read: {error.strerror}")])
            return
        except ConfigError as error:
            document.problems += error.problems
            return
    document.report(_check_names(auth, others.keys.names))


def _check_names(auth: Auth, names: frozenset[str]) -> Iterator[tuple[Location, str]]:
    """Yield names that no key has. It lists none of them: name and key may have changed places in a line."""
    listed: list[tuple[Location, str]] = [(("auth", "limits", name), name) for name in auth.limits]
    listed += [(("auth", "admins", index), name) for index, name in enumerate(auth.admins)]
    for location, name in listed:
        if not auth.keys_file:
            yield location, "there is no auth.keys_file, so this would hold for nobody"
        elif name not in names and location != ("auth", "limits", "*"):
            yield location, f"{auth.keys_file} has no key of that name{_did_you_mean(name, names)}"


def _unknown(found: str, kind: str, allowed: Iterable[str]) -> str:
    names = list(allowed)
    return f"unknown {kind} {found!r}; allowed: {', '.join(names)}{_did_you_mean(found, names)}"


def _did_you_mean(found: str, allowed: Iterable[str]) -> str:
    close = difflib.get_close_matches(found, list(allowed), n=1)
    return f" - did you mean {close[0]!r}?" if close else ""


def _explain(error: ValidationError, root: type[Section]) -> Iterator[tuple[Location, str]]:
    errors = error.errors(include_url=False)
    for found in errors:
        location = found["loc"]
        below = [other for other in errors if other["loc"][: len(location)] == location]
        if found["type"] == "too_short" and len(below) > 1:
            continue  # pydantic counts entries that failed as missing; they have their own errors
        if found["type"] == "extra_forbidden":
            allowed = _fields_at(location[:-1], root)
            key = str(location[-1])
            yield location, f"unknown key{_did_you_mean(key, allowed)}; allowed here: {', '.join(allowed)}"
        elif found["type"] == "missing":
            yield location, "is required and missing"
        elif isinstance(fault := found.get("ctx", {}).get("error"), ValueFault):
            location += fault.location
            values = [f", found {_shown(value, location)}" for value in fault.found]
            yield location, "".join([fault.message, *values])
        else:
            message = _MESSAGES.get(found["type"]) or found["msg"].removeprefix("Value error, ")
            message = message.replace("Input should be", "must be")
            yield location, f"{message}, found {_shown(found['input'], location)}"


def _fields_at(location: Location, root: type[Section]) -> list[str]:
    """Return the keys allowed in the section at `location`."""
    kind: Any = root
    for step in location:
        if isinstance(kind, type) and issubclass(kind, Section):
            kind = kind.model_fields[str(step)].annotation
        else:
            kind = get_args(kind)[-1]
    return list(kind.model_fields)


def _shown(value: object, location: Location = ()) -> str:
    """Return a value as an error may name it: in YAML's words, short, and never a credential."""
    if "api_key" in location or isinstance(value, FromEnvironment):
        return "a value (not shown)"
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case dict():
            return "a section" if value else "an empty section"
        case list() | tuple():
            return "a list" if value else "an empty list"
        case bytes():
            return "binary data"
        case datetime.date():
            return f"the date {value.isoformat()}"
        case float() if not math.isfinite(value):
            return {math.inf: ".inf", -math.inf: "-.inf"}.get(value, ".nan")
    text = re.sub(r"//.*@", "//...@", repr(value))
    return text if len(text) <= 60 else f"{text[:57]}..."
