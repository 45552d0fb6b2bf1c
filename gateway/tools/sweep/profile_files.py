"""A sweep's results as profiles, the files by which the gateway chooses engines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.tools.sweep.curves import noise_of, points_of, usable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.tools.sweep.sweep_values import Results, SweptPool, Window


def profiles(results: Results) -> dict[str, bytes]:
    """Return each route's profile: the JSON that `profile:` in routes.yaml names.

    A point `[load, tokens per second, standard error]` is the mean of the valid closed-loop windows at a
    load, not smoothed; the windows themselves stand in `meta`. A route without a point has no profile.
    """
    found = {route: _profile(results, route) for route in results.setting.routes}
    return {route: _laid_out(profile).encode() + b"\n" for route, profile in found.items() if profile}


def _profile(results: Results, route: str) -> dict[str, Any] | None:
    curves = points_of(results.windows, route)
    if not curves:
        return None
    groups = usable(results.windows, route)
    setting = results.setting
    pools = {name: pool for name, pool in setting.pools.items() if name in curves}
    noise = noise_of(groups.values())
    meta = {
        "model": setting.model,
        "gpu": setting.gpu,
        "simulated": setting.simulated,
        "engine_version": _version(pools),
        "pools": {name: msgspec.to_builtins(pool.speculative_config) for name, pool in pools.items()},
        "started": setting.started,
        "window_s": setting.window_s,
        "tool": setting.tool,
        "client": setting.client,
        "requests": msgspec.to_builtins(setting.routes[route]),
        "noise": {"of_one_window": _rounded(noise.deviation, 3), "assumed": noise.seen is None},
        "windows": {
            name: [_window(window) for (pool, _), same in groups.items() if pool == name for window in same]
            for name in pools
        },
    }
    return {
        "route": route,
        "pools": {
            pool: [[point.load, _rounded(point.rate, 6), _rounded(point.stderr, 3)] for point in curves[pool]]
            for pool in pools
        },
        "meta": {key: value for key, value in meta.items() if value != ""},
    }


def _window(window: Window) -> dict[str, Any]:
    told = {
        "load": window.cell.load,
        "rate": _rounded(window.rate, 6),
        "stderr": _rounded(window.stderr, 3),
        "seconds": _rounded(window.seconds, 6),
        "started": window.started,
        "engine": window.engine,
        "source": "" if window.source == "ours" else window.source,
    }
    return {key: value for key, value in told.items() if value != ""}


def _version(pools: dict[str, SweptPool]) -> str:
    """The version that the gateway compares engines with; of several the list, which equals none of them."""
    versions: dict[str, list[str]] = {}
    for name, pool in pools.items():
        if pool.version:
            versions.setdefault(pool.version, []).append(name)
    if len(versions) < 2:
        return "".join(versions)
    return ", ".join(f"{version} ({', '.join(names)})" for version, names in versions.items())


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def _laid_out(value: Any, indent: str = "") -> str:
    """Return JSON with each list or object of plain values on one line, such as a point or a window."""
    inner = indent + "  "
    if isinstance(value, dict) and not _flat(value.values()):
        entries = [f"{inner}{json.dumps(key)}: {_laid_out(entry, inner)}" for key, entry in value.items()]
        return "{\n" + ",\n".join(entries) + f"\n{indent}}}"
    if isinstance(value, list) and not _flat(value):
        return "[\n" + ",\n".join(f"{inner}{_laid_out(entry, inner)}" for entry in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False)


def _flat(values: Iterable[Any]) -> bool:
    return not any(isinstance(value, dict | list) for value in values)
