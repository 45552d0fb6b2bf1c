"""Goals for our gateway's cost beside others, and whether they are reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.overhead.peers import DIRECT, OURS
from bench.overhead.results import markdown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.overhead.results import Results

# Another gateway, the share of its CPU time that ours may take, cases.
_CPU = (
    ("fastapi-httpx", 0.2, ("200 kB x 32", "200 kB x 256")),
    ("litellm", 0.05, ("200 kB x 32", "200 kB x 256")),
    ("vllm-router", 1.4, ("200 kB x 32", "200 kB x 256")),
    ("vllm-router", 1.0, ("1.5 MB x 32", "1.5 MB x 256")),
)
_PYTHON = ("fastapi-httpx", "litellm")
# These pass bytes on and do nothing else: the least that a gateway in Python costs.
_FORWARDERS = ("fastapi-aiohttp", "asgi-aiohttp")
_ADDED_P99_MS, _FIRST_EVENT_MS, _EVENT_P99_MS = 5.0, 2.0, 50.0
_PACED, _FEW_STREAMS, _STREAMS, _HELD = (
    "200 kB paced x 32",
    "200 kB stream x 32",
    "200 kB stream x 256",
    "1.5 MB held x 256",
)
_BODIES, _MORE_MB = 1.5, 150
_MIB = 2**20


def table(figures: Results) -> str:
    """Return a line for each goal that was measured: the figure, and whether the goal is reached."""
    rows = [["goal", "found", "reached"]]
    rows += [
        row
        for found in (_cpu(figures), _python(figures), _delays(figures), _memory(figures))
        for row in found
    ]
    return markdown(rows)


def _row(goal: str, found: str, reached: bool) -> list[str]:
    return [goal, found, "yes" if reached else "**no**"]


def _cpu(figures: Results) -> list[list[str]]:
    rows = []
    for rival, most, names in _CPU:
        for case in names:
            if share := _share(figures, rival, case):
                goal = f"CPU a request, {case}: at most {most:g} of `{rival}`'s"
                rows.append(_row(goal, f"{share:.2g}", share <= most))
    return rows


def _python(figures: Results) -> list[list[str]]:
    rows = []
    if rivals := {name: shares for name in _PYTHON if (shares := _shares(figures, name))}:
        found = "; ".join(f"`{name}`: {_range(shares)}" for name, shares in rivals.items())
        less = all(share < 1 for shares in rivals.values() for share in shares.values())
        rows.append(_row("CPU a request: less than every rival in Python, in every case", found, less))
    for name in _FORWARDERS:
        if shares := _shares(figures, name):
            goal = f"CPU a request beside `{name}`, which passes bytes on and does no more"
            fewer = sum(share < 1 for share in shares.values())
            rows.append([goal, f"{_range(shares)}; less in {fewer} of {len(shares)}", "-"])
    return rows


def _range(shares: Mapping[str, float]) -> str:
    ends = [min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)]
    return " to ".join(f"{shares[case]:.2f} x ({case})" for case in ends)


def _shares(figures: Results, rival: str) -> dict[str, float]:
    return {
        case: share
        for case in figures.cases
        if case not in (_PACED, _HELD) and (share := _share(figures, rival, case))
    }


def _share(figures: Results, rival: str, case: str) -> float | None:
    mine, its = figures.good(OURS, case), figures.good(rival, case)
    return float(mine["cpu_s_per_1000"] / its["cpu_s_per_1000"]) if mine and its else None


def _delays(figures: Results) -> list[list[str]]:
    rows = []
    if added := _added(figures, _PACED, "outside_ms", "p99"):
        goal = f"added p99, {_PACED} (the core is not full): under {_ADDED_P99_MS:g} ms"
        rows.append(_row(goal, f"{added:.1f} ms", added < _ADDED_P99_MS))
    if added := _added(figures, _FEW_STREAMS, "first_event_ms", "p50"):
        goal = f"added time to the first event, {_FEW_STREAMS}: under {_FIRST_EVENT_MS:g} ms (median)"
        rows.append(_row(goal, f"{added:.2f} ms", added < _FIRST_EVENT_MS))
    if cell := figures.good(OURS, _STREAMS):
        late = cell["event_delay_ms"]["p99"]
        goal = f"{_STREAMS}: no event under way for more than {_EVENT_P99_MS:g} ms at p99"
        rows.append(_row(goal, f"{late:.1f} ms", late <= _EVENT_P99_MS))
    return rows


def _added(figures: Results, case: str, name: str, percentile: str) -> float | None:
    mine: Mapping[str, Any] | None = figures.good(OURS, case)
    base = figures.good(DIRECT, case)
    return float(mine[name][percentile] - base[name][percentile]) if mine and base else None


def _memory(figures: Results) -> list[list[str]]:
    cell = figures.good(OURS, _HELD)
    if not cell:
        return []
    most = _BODIES * figures.bodies_mib(_HELD) + _MORE_MB * 1e6 / _MIB
    goal = f"peak memory, {_HELD}: at most {_BODIES:g} x the bodies + {_MORE_MB} MB = {most:.0f} MiB"
    return [_row(goal, f"{cell['rss_mib']:.0f} MiB", cell["rss_mib"] <= most)]
