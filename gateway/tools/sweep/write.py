"""Writes a sweep's findings: profiles beside routes.yaml, and both into it; every other byte stays."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gateway.config import load, parse
from gateway.errors import ConfigError
from gateway.tools.sweep.profile_files import profiles
from gateway.tools.sweep.splice import RouteChange, updated
from gateway.tools.sweep.sweep_values import Results

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.config import Config
    from gateway.tools.sweep.sweep_values import Findings

FOLDER = "profiles"


def changes(results: Results, findings: Findings) -> dict[str, RouteChange]:
    """Return what the findings change, by route; routes without a recommendation are left alone."""
    written = profiles(results)
    return {
        route: RouteChange(
            tuple((found.first, found.last, found.depth) for found in of.schedule),
            f"{FOLDER}/{route}.json" if route in written else None,
        )
        for route, of in findings.routes.items()
        if of.schedule
    }


def permitted(
    path: Path, results: Results, environment: Mapping[str, str] = os.environ
) -> tuple[Results, list[str]]:
    """Return the windows of pools that each route of a routes.yaml may use, and a note on those left out.

    After a sweep of many depths an operator keeps the few that are worth an engine: schedule and profile are
    of those.

    Raises:
        ConfigError: the file cannot be used.
    """
    config = load(path, environment, keys=False)
    routes = {route: config.pools_of(route) for route in config.routes}
    kept = tuple(
        window
        for window in results.windows
        if window.cell.pool in routes.get(window.cell.route, (window.cell.pool,))
    )
    left_out = {window.cell.pool for window in results.windows} - {window.cell.pool for window in kept}
    notes = [f"pool {pool} is not in {path}: its windows are left out" for pool in sorted(left_out)]
    return Results(results.setting, kept), notes


def apply(
    path: Path, results: Results, findings: Findings, environment: Mapping[str, str] = os.environ
) -> list[str]:
    """Write a sweep's profiles into `profiles/` beside a routes.yaml, and both into that file.

    Each file is replaced at once, the profiles first: a gateway that watches them never reads a half.

    A route of which a pool was not measured keeps its schedule: the gateway goes by that until the profile is
    complete.

    Returns:
        What was done, and what to know of it, a line each.

    Raises:
        ConfigError: the file cannot be changed safely, or would not be valid, and nothing has been written;
            or a file cannot be written, which leaves it and those after it as they were.
    """
    plan = _planned(path, results, findings, environment)
    done = []
    for name, content in plan.files.items():
        target = path.parent / name
        if not _holds(target, content):
            _replace(target, content)
            done.append(f"wrote {target}")
    if plan.new != plan.old:
        _replace(path, plan.new.encode())
        done.append(f"updated {path}")
    return [*(done or [f"{path} and its profiles are up to date"]), *plan.notes]


def preview(
    path: Path, results: Results, findings: Findings, environment: Mapping[str, str] = os.environ
) -> str:
    """Return what `apply` would change in a routes.yaml: notes behind `#`, and a unified diff.

    Raises:
        ConfigError: as `apply` does.
    """
    plan = _planned(path, results, findings, environment)
    return "".join(f"# {note}\n" for note in plan.notes) + diff(plan.old, plan.new, str(path))


def diff(old: str, new: str, file: str) -> str:
    """Return a unified diff of two texts of a file; empty where they are the same."""
    before, after = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (old, new))
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(before, after, file, file)
    )


class _Plan(NamedTuple):
    """The file's text before and after, the profiles by path, and notes for the operator."""

    old: str
    new: str
    files: dict[str, bytes]
    notes: list[str]


def _planned(path: Path, results: Results, findings: Findings, environment: Mapping[str, str]) -> _Plan:
    try:
        old = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: cannot be read: {error}"]) from error
    wanted = changes(results, findings)
    files = {route: content for route, content in profiles(results).items() if route in wanted}
    config = _checked(old, path, wanted, files, environment)
    fit = results.setting.simulated
    notes = [f"the figures are SIMULATED, by fit {fit}"] if fit and wanted else []
    for route in wanted:
        lacking = [pool for pool in config.pools_of(route) if pool not in findings.routes[route].points]
        if lacking:
            wanted[route] = wanted[route]._replace(schedule=None)
            notes.append(f"route {route} keeps its schedule: nothing was measured of {', '.join(lacking)}")
    _checked(old, path, wanted, files, environment)
    new = updated(old, str(path), wanted, environment)
    return _Plan(old, new, {f"{FOLDER}/{route}.json": content for route, content in files.items()}, notes)


def _checked(
    old: str,
    path: Path,
    wanted: Mapping[str, RouteChange],
    files: Mapping[str, bytes],
    environment: Mapping[str, str],
) -> Config:
    """Check the file as it will be, with the profiles in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        for route, content in files.items():
            (Path(folder) / f"{route}.json").write_bytes(content)
        elsewhere = {
            route: change._replace(profile=change.profile and f"{folder}/{route}.json")
            for route, change in wanted.items()
        }
        try:
            text = updated(old, str(path), elsewhere, environment)
            return parse(text, f"{path} (updated)", path.parent, environment, keys=False)
        except ConfigError as error:
            raise ConfigError([problem.replace(folder, FOLDER) for problem in error.problems]) from error


def _holds(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except OSError:
        return False


def _replace(path: Path, content: bytes) -> None:
    """Replace a file atomically; it keeps its mode and owner, and a symbolic link stays one."""
    path = path.resolve()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            Path(file.name).chmod(0o644)  # it is for one reader only until then
            if path.exists():
                shutil.copymode(path, file.name)
                with contextlib.suppress(OSError):
                    os.chown(file.name, path.stat().st_uid, path.stat().st_gid)
            os.replace(file.name, path)
        except BaseException:
            Path(file.name).unlink()
            raise
    except OSError as error:
        raise ConfigError([f"{path}: cannot be written: {error.strerror}"]) from error
