"""Measurements: as a file, as medians of their rounds, as lines of text."""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any

from bench.overhead import bodies
from bench.overhead.cases import CASES
from bench.overhead.peers import DIRECT
from bench.serving import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

RESULTS = ROOT / "bench/results/overhead.json"

# From this share of their core on, engine and clients limited the requests per second.
HARNESS_LIMIT = 0.93
# Above this share of other statuses and broken answers a cell's figures mean nothing.
FAILED_SHARE = 0.01

_PERCENTILES = ("p50", "p95", "p99", "max")


class Results:
    """What was measured, with the medians of the rounds by gateway and case."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self.about: Mapping[str, Any] = found["measured"]
        self.peers: Sequence[Mapping[str, Any]] = found["peers"]
        self.skipped: Mapping[str, str] = found["skipped"]
        self.medians = medians(found["runs"])
        measured = {name for _, name in self.medians}
        self.cases = [name for name in CASES if name in measured]
        self.names = [peer["name"] for peer in self.peers]

    def good(self, peer: str, case: str) -> Mapping[str, Any] | None:
        """Return a cell whose answers were nearly all good; None for others."""
        cell = self.medians.get((peer, case))
        return cell if cell and cell["failed_share"] <= FAILED_SHARE and cell["samples"] else None

    def bodies_mib(self, case: str) -> float:
        """Return how large all the bodies of a case are together."""
        sizes = [cell["body_bytes"] for (_, name), cell in self.medians.items() if name == case]
        each = sizes[0] if sizes else bodies.SIZES[CASES[case].size]
        return float(each * CASES[case].connections / 2**20)


def failed(run: Mapping[str, Any]) -> int:
    """Count the answers that were not good."""
    others = sum(count for status, count in run["statuses"].items() if status != "200")
    return int(others + run["broken"] + run["refused"])


def failures(run: Mapping[str, Any]) -> str:
    """Return what failed, as text; empty where nothing did."""
    kinds = {status: count for status, count in run["statuses"].items() if status != "200"}
    kinds |= {kind: run[kind] for kind in ("broken", "refused") if run[kind]}
    return ", ".join(f"{count} x {kind}" for kind, count in kinds.items())


def harness_was_the_limit(run: Mapping[str, Any]) -> bool:
    """Whether engine and clients used all of their core."""
    share = run["share"]
    return bool(share["harness"] + share["harness_foreign"] >= HARNESS_LIMIT)


def line(run: Mapping[str, Any]) -> str:
    """Return a measurement as a line of text."""
    share = run["share"]
    words = [f"{run['peer']:<17}{run['case']:<22}{run['requests_s']:>9.1f}/s"]
    if run["cpu_s_per_1000"] is not None:
        words.append(f"cpu {run['cpu_s_per_1000']:8.3f} ms")
    for name, short in (("outside_ms", "outside"), ("first_event_ms", "first"), ("event_delay_ms", "event")):
        if found := run[name]:
            words.append(f"{short} {found['p50']:.2f}/{found['p99']:.2f}")
    words.append(f"rss {run['rss_mib']:.0f}")
    words.append(f"core {share['gateway']:.2f}+{share['gateway_foreign']:.2f}")
    words.append(f"harness {share['harness']:.2f}+{share['harness_foreign']:.2f}")
    if trouble := failures(run):
        words.append(f"FAILED {trouble}")
    return "  ".join(words)


def medians(runs: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the medians of the rounds, by gateway and case.

    Returns:
        for each: the figures of a run, each the median of the rounds; and
            rounds: how many;
            spread: (largest - smallest) / median of CPU time a request, or of requests per second where
                there is no gateway;
            samples: requests that were answered, in all rounds; events: events;
            failed: as `failures` returns it, of all rounds; failed_share: of all answers;
            cut_short: in some round not every client had an answer in time: percentiles are lower bounds;
            harness_limit: in most rounds engine and clients were the limit;
            foreign: what other processes used of the gateway's core.
    """
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for run in runs:
        groups.setdefault((run["peer"], run["case"]), []).append(run)
    return {key: _median(group) for key, group in groups.items()}


def _median(group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in (
        "requests_s",
        "cpu_s_per_1000",
        "cpu_s_per_1000_events",
        "rss_mib",
        "resting_mib",
        "body_bytes",
    ):
        values = [run[name] for run in group if run[name] is not None]
        found[name] = statistics.median(values) if values else None
    for name in ("latency_ms", "outside_ms", "first_event_ms", "event_delay_ms"):
        runs = [run[name] for run in group if run[name]]
        medians_of = {key: statistics.median(run[key] for run in runs) for key in _PERCENTILES if runs}
        found[name] = medians_of or None
    varied = "requests_s" if group[0]["peer"] == DIRECT else "cpu_s_per_1000"
    values = [run[varied] for run in group if run[varied]]
    answers = sum(run["answered"] + run["broken"] + run["refused"] for run in group)
    return found | {
        "rounds": len(group),
        "spread": (max(values) - min(values)) / statistics.median(values) if values else 0.0,
        "samples": sum(run["answered"] for run in group),
        "events": sum(run["events"] for run in group),
        "failed": failures(_sum(group)),
        "failed_share": sum(map(failed, group)) / answers if answers else 1.0,
        "cut_short": any(run["answered"] < CASES[run["case"]].connections for run in group),
        "harness_limit": sum(map(harness_was_the_limit, group)) * 2 > len(group),
        "foreign": statistics.median(run["share"]["gateway_foreign"] for run in group),
    }


def _sum(group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    statuses: dict[str, int] = {}
    for run in group:
        for status, count in run["statuses"].items():
            statuses[status] = statuses.get(status, 0) + count
    return {
        "statuses": statuses,
        "broken": sum(run["broken"] for run in group),
        "refused": sum(run["refused"] for run in group),
    }


def overview(found: Mapping[tuple[str, str], Mapping[str, Any]]) -> str:
    """Return a table of CPU milliseconds a request, by gateway and case."""
    peers, names = (list(dict.fromkeys(key[place] for key in found)) for place in (0, 1))
    rows = [["CPU ms a request", *names]]
    for peer in peers:
        cells = [found.get((peer, name), {}).get("cpu_s_per_1000") for name in names]
        rows.append([peer, *("-" if cell is None else f"{cell:.3g}" for cell in cells)])
    return markdown(rows)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a table; the first row is its head."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def number(value: float | None) -> str:
    """Return a number with three significant digits."""
    if value is None:
        return "-"
    digits = next((digits for digits, least in enumerate((100, 10, 1)) if abs(value) >= least), 3)
    return f"{value:,.{digits}f}"


def write(path: Path, found: Mapping[str, Any], *, keep: bool = False) -> None:
    """Write results, a line for each measurement.

    Args:
        path: the file.
        found: measured, peers, skipped and runs.
        keep: keep what the file has of other gateways and cases.
    """
    whole = dict(found)
    if keep and path.exists():
        old = read(path)
        mine = {(run["peer"], run["case"]) for run in found["runs"]}
        names = {peer["name"] for peer in found["peers"]}
        whole["runs"] = [run for run in old["runs"] if (run["peer"], run["case"]) not in mine] + found["runs"]
        whole["peers"] = [peer for peer in old["peers"] if peer["name"] not in names] + found["peers"]
        whole["skipped"] = {
            name: why
            for name, why in {**old["skipped"], **found["skipped"]}.items()
            if name not in {peer["name"] for peer in whole["peers"]}
        }
    parts = [f" {json.dumps(key)}: {_lines(value)}" for key, value in whole.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def _lines(value: object) -> str:
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"  {json.dumps(entry)}" for entry in value) + "\n ]"
    return json.dumps(value)


def read(path: Path = RESULTS) -> dict[str, Any]:
    """Read results."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found
