"""Windows that another benchmark measured: result files of `vllm bench serve`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from gateway.errors import ConfigError
from gateway.tools.sweep.sweep_values import Spread, SweepCell, Window
from gateway.wire.vllm import bench_results

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from gateway.wire.vllm.bench_results import Benchmark, Latency

_GIVEN = re.compile(r"(?:(?P<route>[a-z0-9._-]+):(?P<pool>[a-z0-9._-]+)=)?(?P<file>.+)", re.DOTALL)
# A run ends with ever fewer requests at a time: about half a request of each of its clients is lost.
_FEW = 10


def windows(
    given: Sequence[str],
    routes: Collection[str] = (),
    pools: Collection[str] = (),
    taken: Iterable[Window] = (),
) -> list[Window]:
    """Read result files of `vllm bench serve`.

    Args:
        given: `FILE`, whose metadata then name route and pool, or `ROUTE:POOL=FILE`.
        routes: those that may be named; empty = any.
        pools: likewise.
        taken: windows that there are already: repeats go on after them, and a run among them is passed over.

    Raises:
        ConfigError: with every file that cannot be used, and why.
    """
    runs: set[str] = set()
    repeats: dict[SweepCell, int] = {}
    problems: list[str] = []
    found: list[Window] = []
    for window in taken:
        kind = replace(window.cell, repeat=0)
        repeats[kind] = max(repeats.get(kind, 0), window.cell.repeat + 1)
        runs.add(_fingerprint(window))
    for text in given:
        try:
            read = list(_read(text, routes, pools))
        except (OSError, ValueError) as error:
            problems.append(f"{text}: {getattr(error, 'strerror', None) or error}")
            continue
        for window in read:
            if (run := _fingerprint(window)) in runs:
                continue
            runs.add(run)
            repeat = repeats.get(window.cell, 0)
            repeats[window.cell] = repeat + 1
            found.append(replace(window, cell=replace(window.cell, repeat=repeat)))
    if problems:
        raise ConfigError(problems)
    return found


def _fingerprint(window: Window) -> str:
    """What a run is recognized by, whatever its file is called."""
    bare = replace(window, cell=replace(window.cell, repeat=0), source="")
    # As it comes back from the disk, where 10 drafts have become 10.0.
    return repr(msgspec.json.decode(msgspec.json.encode(bare), type=Window))


def _read(given: str, routes: Collection[str], pools: Collection[str]) -> Iterator[Window]:
    match = _GIVEN.fullmatch(given)
    if match is None:
        raise ValueError("must be FILE or ROUTE:POOL=FILE")
    file = match["file"]
    for run in bench_results.read(Path(file).read_bytes()):
        route = _named("route", match["route"] or run.route, routes)
        pool = _named("pool", match["pool"] or run.pool, pools)
        yield _window(run, SweepCell(route, pool, run.load, per_s=run.per_s), file)


def _named(kind: str, name: str, allowed: Collection[str]) -> str:
    if not name:
        raise ValueError(
            f"which {kind} it belongs to is not told: give it as ROUTE:POOL=FILE, "
            f"or run vllm bench serve with --metadata route=... pool=..."
        )
    if allowed and name not in allowed:
        raise ValueError(f"unknown {kind} {name!r}; there are: {', '.join(allowed)}")
    return name


def _window(run: Benchmark, cell: SweepCell, file: str) -> Window:
    invalid = [f"{run.failed} of {run.failed + run.requests} requests failed"] if run.failed else []
    if not run.requests or not run.rate:
        invalid.append("no request was answered")
    elif run.requests < run.load and not run.per_s:
        invalid.append(f"{run.requests} requests never made a load of {run.load}")
    flags = []
    if not invalid and not run.per_s and run.requests < _FEW * run.load:
        flags.append(
            f"only {run.requests} requests at a load of {run.load}: "
            "the end of the run, with ever fewer at a time, makes its rate too low"
        )
    return Window(
        cell=cell,
        engine=run.engine,
        started=run.started,
        seconds=run.seconds,
        requests=run.requests,
        errors={"failed": run.failed} if run.failed else {},
        rate=run.rate,
        answered_rate=run.rate,
        requests_per_s=run.requests_per_s,
        prompt_rate=run.prompt_rate,
        first_token_s=_spread(run.first_token_s),
        token_s=_spread(run.token_s),
        request_s=_spread(run.request_s),
        speculation=run.speculation,
        invalid=tuple(invalid),
        flags=tuple(flags),
        source=file,
    )


def _spread(latency: Latency | None) -> Spread | None:
    return Spread(latency.mean, latency.p50, latency.p95, latency.p99) if latency else None
