"""routes.yaml to a valid Config; every error names file, line and key, and what is allowed."""

from __future__ import annotations

import os
import re
import ssl
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

from pydantic import ValidationError

from gateway.config.api_keys import Keys, parse_keys
from gateway.config.located_yaml import LocatedYaml
from gateway.config.schema import EMBEDDED, Auth, Config, Pool, Profile, Route, Section, ValueFault
from gateway.config.shown_values import did_you_mean, shortened, shown, shown_name, shows_key
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
    "too_long": "has too many entries",
    "string_too_short": "must not be empty",
}
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
_KEYS_FILE: Location = ("auth", "keys_file")
# Of the configuration, of a profile, and of a file of authorities; all are read in a second or two.
_MAX_BYTES = 1024 * 1024
# How other text than UTF-8 begins, and what that is.
_ENCODINGS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"\x1f\x8b": "compressed"}


@dataclass(slots=True)
class _OtherFiles:
    """What the files hold that a configuration names.

    Attributes:
        profiles: by route.
        authorities: certificates of authorities, as PEM text, by pool.
        keys: the API keys.
        sources: digests of the configuration's file and of these, those that cannot be read among them.
    """

    profiles: dict[str, Profile] = field(default_factory=dict)
    authorities: dict[str, str] = field(default_factory=dict)
    keys: Keys = field(default_factory=Keys)
    sources: dict[Path, bytes] = field(default_factory=dict)


def load(
    path: Path,
    environment: Mapping[str, str] = os.environ,
    *,
    keys: bool = True,
    authorities: bool | None = None,
    again: bool = False,
    workers: int = 1,
) -> Config:
    """Read and validate a configuration file.

    Args:
        path: the file.
        environment: the variables that it may refer to.
        keys: whether to read the API keys, too: they are there where the gateway serves, and need not be
            elsewhere.
        authorities: whether to read the pools' `ca_file`, which whoever talks to engines needs; None: as
            with keys.
        again: whether it has been read before, so that a pipe in its place would be waited for in vain.
        workers: gateway processes of this host that serve it.

    Raises:
        ConfigError: with every problem found, one `file:line: key: ...` line each, and the files it names.
    """
    others = _OtherFiles(sources={path: b""})
    try:
        content = read_file(path, or_pipe=not again)
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"], others.sources) from error
    others.sources[path] = digest(content)
    if trouble := _too_long(content):
        raise ConfigError([f"{path}: {trouble}"], others.sources)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        kind = f": it is {_ENCODINGS[content[:2]]}" if content[:2] in _ENCODINGS else ""
        raise ConfigError([f"{path}:{line}: is not UTF-8 text{kind}"], others.sources) from None
    return _parse(text, str(path), path.parent, environment, others, keys, authorities, workers)


def parse(
    text: str,
    file: str,
    folder: Path,
    environment: Mapping[str, str],
    *,
    keys: bool = True,
    authorities: bool | None = None,
    workers: int = 1,
) -> Config:
    """Validate a configuration's text.

    Args:
        text: the configuration.
        file: names it in errors.
        folder: where the paths in it start.
        environment: the variables that it may refer to.
        keys: whether to read the API keys, too.
        authorities: whether to read the pools' `ca_file`; None: as with keys.
        workers: gateway processes of this host that serve it.

    Raises:
        ConfigError: with every problem found.
    """
    return _parse(text, file, folder, environment, _OtherFiles(), keys, authorities, workers)


def _parse(
    text: str,
    file: str,
    folder: Path,
    environment: Mapping[str, str],
    others: _OtherFiles,
    keys: bool,
    authorities: bool | None,
    workers: int,
) -> Config:
    document = LocatedYaml(file, environment)
    values = document.read(text)
    if document.problems:
        raise ConfigError(document.problems, others.sources)
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        document.report(_explain(error, document))
        raise ConfigError(document.problems, others.sources) from None
    document.report(_cross_check(config, document, folder, others))
    document.report(_check_workers(config, document, workers))
    if keys if authorities is None else authorities:
        for name, pool in config.pools.items():
            document.report(_check_authorities(name, pool, document, folder, others))
    if keys:
        _read_keys(config.auth, folder, document, others)
    if document.problems:
        raise ConfigError(document.problems, others.sources)
    return config.completed(
        profiles=others.profiles,
        authorities=others.authorities,
        keys=others.keys,
        sources=others.sources,
        workers=workers,
        notes=document.notes,
        from_environment=document.from_environment,
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
        guess = did_you_mean(route, names)
        if route != config.sorting.default:
            yield (
                f"routes.{route}: only requests that name it reach it: it is none of {', '.join(names)}, "
                f"and sorting.prompts has no prompts for it{guess}"
            )
        elif guess:
            yield f"routes.{route}: only the default leads to it: it is none of {', '.join(names)}{guess}"


def _cross_check(
    config: Config, document: LocatedYaml, folder: Path, others: _OtherFiles
) -> Iterator[tuple[Location, str]]:
    """Yield what no single section can see: names that refer to others, files, duplicates."""
    pools, routes = config.pools, config.routes
    for kind, names in (("pools", pools), ("routes", routes)):
        for name in names:
            if not _NAME.fullmatch(name):
                yield (kind, name), "a name is lower-case letters, digits, '-', '_' and '.', at most 63"
    seen: set[str] = set()
    for name, pool in pools.items():
        for index, engine in enumerate(pool.engines):
            where: Location = ("pools", name, "engines", index)
            if engine in seen:
                yield where, f"{document.shown(engine, where)} is listed twice; an engine is in one pool"
            seen.add(engine)
        if EMBEDDED in pool.engines and pool.speculative_config:
            yield ("pools", name, "speculative_config"), "the embedded engine does not speculate; remove this"
    for name, route in routes.items():
        yield from _check_route(config, name, route, document, folder, others)
    if config.sorting.default and config.sorting.default not in routes:
        yield _unknown(("sorting", "default"), config.sorting.default, "route", routes, document)
    for name, patterns in config.sorting.prompts.items():
        if name not in routes:
            yield _unknown(("sorting", "prompts", name), name, "route", routes, document)
        for index, pattern in enumerate(patterns):
            where = ("sorting", "prompts", name, index)
            if trouble := _pattern_trouble(pattern):
                hidden = where in document.from_environment
                yield where, "is not a regular expression" + ("" if hidden else f": {trouble}")
    if "prompts" in config.documents.model_fields_set:
        for name in config.documents.prompts:
            if name not in routes:
                yield _unknown(("documents", "prompts", name), name, "route", routes, document)


def _pattern_trouble(pattern: str) -> str:
    """Return why a text is not a regular expression; empty where it is one."""
    try:
        re.compile(pattern)
    except re.error as error:
        return shortened(error.msg)
    except (OverflowError, RecursionError):
        return "it repeats or nests too much"
    return ""


def _check_workers(config: Config, document: LocatedYaml, workers: int) -> Iterator[tuple[Location, str]]:
    """Yield what several processes of one host cannot share."""
    port, replicas = config.server.admin_port, config.server.replicas
    if workers == 1:
        return
    if port is None:
        yield (
            ("server", "admin_port"),
            f"is required with {workers} workers: each has its metrics at a port of its own, from here on",
        )
    elif port + workers > 65536:
        shown_port = document.shown(port, ("server", "admin_port"))
        yield (
            ("server", "admin_port"),
            f"{workers} workers have one each from {shown_port} on; there are 65535",
        )
    if replicas < workers:
        yield (
            ("server", "replicas"),
            f"counts every worker of every host: with {workers} here it is at least {workers}, "
            f"found {document.shown(replicas, ('server', 'replicas'))}",
        )


def _check_authorities(
    name: str, pool: Pool, document: LocatedYaml, folder: Path, others: _OtherFiles
) -> Iterator[tuple[Location, str]]:
    where: Location = ("pools", name, "ca_file")
    if pool.ca_file is None:
        return
    content, told, trouble = _read_named(pool.ca_file, where, document, folder, others)
    if content is None:
        yield where, f"{told} {trouble}"
        return
    try:
        text = content.decode("ascii")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (UnicodeDecodeError, ValueError, ssl.SSLError):
        yield where, f"{told} has no certificates in PEM (-----BEGIN CERTIFICATE-----)"
    else:
        others.authorities[name] = text


def _check_route(
    config: Config, name: str, route: Route, document: LocatedYaml, folder: Path, others: _OtherFiles
) -> Iterator[tuple[Location, str]]:
    for index, pool in enumerate(route.pools or ()):
        if pool not in config.pools:
            yield _unknown(("routes", name, "pools", index), pool, "pool", config.pools, document)
            return
    depths = {depth for pool in config.pools_of(name) for depth in config.pools[pool].depths}
    for index, (_, _, depth) in enumerate(route.schedule):
        if depth not in depths:
            where: Location = ("routes", name, "schedule", index)
            found = "this depth" if where in document.from_environment else f"depth {depth}"
            yield where, f"no pool of this route runs at {found}; its pools offer {sorted(depths)}"
    if route.profile is not None:
        yield from _check_profile(config, name, route.profile, document, folder, others)


def _check_profile(
    config: Config, name: str, path: str, document: LocatedYaml, folder: Path, others: _OtherFiles
) -> Iterator[tuple[Location, str]]:
    where: Location = ("routes", name, "profile")
    content, told, trouble = _read_named(path, where, document, folder, others)
    if content is None:
        yield where, f"{told} {trouble}"
        return
    try:
        profile = Profile.model_validate_json(content)
    except ValidationError as error:
        for at, message in _explain(error):
            key = ".".join(shown_name(str(step)) for step in at)
            yield where, f"{told}: {key or 'file'}: {message}"
    else:
        others.profiles[name] = profile
        if profile.route != name:
            yield where, f"{told} was measured for route {shown(profile.route)}"
        for pool in profile.pools:
            if pool not in config.pools:
                yield where, f"{told}: {_unknown((), pool, 'pool', config.pools)[1]}"


def _read_named(
    path: str, where: Location, document: LocatedYaml, folder: Path, others: _OtherFiles
) -> tuple[bytes | None, str, str]:
    """Read a file that the configuration names.

    Returns:
        What it holds, or None; what errors call it; why it cannot be used.
    """
    full = folder / path
    told = "the file" if where in document.from_environment else shortened(str(full), 200)
    if "\0" in path:
        return None, "the file", "cannot be read: its name holds NUL"
    others.sources[full] = b""
    try:
        content = read_file(full)
    except OSError as error:
        return None, told, f"cannot be read: {error.strerror}"
    others.sources[full] = digest(content)
    trouble = _too_long(content) if where != _KEYS_FILE else ""
    return (None if trouble else content), told, trouble


def _too_long(content: bytes) -> str:
    return f"is larger than {_MAX_BYTES:,} bytes" if len(content) > _MAX_BYTES else ""


def _read_keys(auth: Auth, folder: Path, document: LocatedYaml, others: _OtherFiles) -> None:
    """Read the keys' file, and check the keys that refer to its names."""
    if auth.keys_file:
        content, told, trouble = _read_named(auth.keys_file, _KEYS_FILE, document, folder, others)
        if content is None:
            document.report([(_KEYS_FILE, f"{told} {trouble}")])
            return
        try:
            others.keys = parse_keys(content, "auth.keys_file" if told == "the file" else told)
        except ConfigError as error:
            document.problems += error.problems
            return
    document.report(_check_names(auth, others.keys.names, document))


def _check_names(auth: Auth, names: frozenset[str], document: LocatedYaml) -> Iterator[tuple[Location, str]]:
    """Yield names that no key has. It lists none of them: name and key may have changed places in a line."""
    listed: list[tuple[Location, str]] = [(("auth", "limits", name), name) for name in auth.limits]
    listed += [(("auth", "admins", index), name) for index, name in enumerate(auth.admins)]
    hidden = _KEYS_FILE in document.from_environment
    file = "the file" if hidden else shortened(auth.keys_file or "", 200)
    for location, name in listed:
        if not auth.keys_file:
            yield location, "there is no auth.keys_file, so this would hold for nobody"
        elif name not in names and location != ("auth", "limits", "*"):
            guess = "" if location in document.from_environment else did_you_mean(name, names)
            yield location, f"{file} has no key of that name{guess}"


def _unknown(
    where: Location, found: str, kind: str, allowed: Iterable[str], document: LocatedYaml | None = None
) -> tuple[Location, str]:
    """Return the problem of a name that refers to nothing."""
    names = [name for name in allowed if _NAME.fullmatch(name)]
    hidden = document is not None and where in document.from_environment
    name = shown_name(found) if where[-1:] == (found,) else found
    told = f"no {kind} has this name" if hidden else f"unknown {kind} {shown(name)}"
    return where, f"{told}; allowed: {', '.join(names)}{'' if hidden else did_you_mean(found, names)}"


def _explain(error: ValidationError, document: LocatedYaml | None = None) -> Iterator[tuple[Location, str]]:
    """Yield what pydantic found: of a configuration's document, or of a profile where there is none."""
    errors = error.errors(include_url=False)
    root: type[Section] = Config if document else Profile
    below = Counter(found["loc"][:length] for found in errors for length in range(len(found["loc"]) + 1))
    for found in errors:
        location = found["loc"]
        if found["type"] == "too_short" and below[location] > 1:
            continue  # pydantic counts entries that failed as missing; they have their own errors
        if found["type"] == "extra_forbidden":
            yield location, _unknown_key(location, _fields_at(location[:-1], root), document)
        elif found["type"] == "missing":
            yield location, "is required and missing"
        elif isinstance(fault := found.get("ctx", {}).get("error"), ValueFault):
            location += fault.location
            values = [f", found {_shown_at(value, location, document)}" for value in fault.found]
            hidden = document is not None and location in document.from_environment
            yield location, "".join([fault.rule if hidden else fault.message, *values])
        else:
            message = _MESSAGES.get(found["type"]) or found["msg"].removeprefix("Value error, ")
            if found["type"] == "too_long":
                message += f" (at most {found['ctx']['max_length']})"
            message = message.replace("Input should be", "must be")
            yield location, f"{message}, found {_shown_at(found['input'], location, document)}"


def _unknown_key(location: Location, allowed: list[str], document: LocatedYaml | None) -> str:
    key = str(location[-1])
    if document and not shows_key(key, allowed, valueless=document.lacks_value(location)):
        document.hide_key(location)
    start = re.split(r"[\s=]", key, maxsplit=1)[0]
    if start != key and start in allowed:
        question = f" - is the colon behind {start!r} missing?"
    else:
        question = did_you_mean(key, allowed)
    return f"unknown key{question}; allowed here: {', '.join(allowed)}"


def _shown_at(value: object, location: Location, document: LocatedYaml | None) -> str:
    return document.shown(value, location) if document else shown(value)


def _fields_at(location: Location, root: type[Section]) -> list[str]:
    """Return the keys allowed in the section at `location`."""
    kind: Any = root
    for step in location:
        if isinstance(kind, type) and issubclass(kind, Section):
            kind = kind.model_fields[str(step)].annotation
        else:
            kind = get_args(kind)[-1]
    return list(kind.model_fields)
