"""Published measurements of a 9B model on one H100, beside what the shipped fit h100-9b gives.

The measurements are those of the Reducto ML team, "When does accepted speculative decoding translate into
higher throughput and lower latency?". How the fit was made: bench/results/fit.md.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from gateway.engines.simulated.step_model import Fit, throughput

if TYPE_CHECKING:
    from collections.abc import Iterable

CONCURRENCY = (1, 10, 24, 32, 40, 64, 72, 80, 100, 128, 180, 256)
ROUTES = ("text", "key-value", "table")

# Tokens per second and mean latency (s) of 32 requests, by route and depth; tokens per pass, by depth.
PUBLISHED = (
    ("table", 1, 2486, 9.1),
    ("table", 16, 607, 35.3),
    ("key-value", 1, 1541, 3.8),
    ("key-value", 16, 414, 12.8),
)
PUBLISHED_LENGTHS = ((1, "about 2.0"), (2, "about 2.9"), (4, "3.2-4.0"), (8, "3.1-4.4"), (16, "3.1-4.4"))
_PROFILE = {
    ("drafting", 128): 62,
    ("verification", 128): 427,
    ("drafting", 256): 88,
    ("verification", 256): 1272,
}


class Figure(NamedTuple):
    """A published figure and what the model gives."""

    name: str
    published: float
    model: float


class Curves(NamedTuple):
    """Simulated tokens per second by route and concurrency, without MTP and at depth 3."""

    plain: dict[str, dict[int, float]]
    deep: dict[str, dict[int, float]]

    def gain(self, route: str, concurrency: int) -> float:
        """Depth 3 over no MTP, less one."""
        return self.deep[route][concurrency] / self.plain[route][concurrency] - 1


def curves(fit: Fit) -> Curves:
    """Compute what the model gives at each concurrency."""
    plain, deep = (
        {r: {n: throughput(fit, depth, {r: n})[r] for n in CONCURRENCY} for r in ROUTES} for depth in (0, 3)
    )
    return Curves(plain, deep)


def figures(fit: Fit) -> list[Figure]:
    """List the published figures beside the model's."""
    found = []
    for route, depth, tokens_per_s, latency_s in PUBLISHED:
        rate = throughput(fit, depth, {route: 32})[route]
        latency = 32 * fit.routes[route].output_tokens / rate
        found.append(Figure(f"{route}, depth {depth}, 32 requests: tokens/s", tokens_per_s, rate))
        found.append(Figure(f"{route}, depth {depth}, 32 requests: mean latency, s", latency_s, latency))
    steps = profiled_steps(fit)
    for (what, requests), published in _PROFILE.items():
        name = f"depth 3, {requests} requests: {what} in {steps:.2f} steps, ms"
        found.append(Figure(name, published, steps * _profiled_ms(fit, what, requests)))
    return found


def profiled_steps(fit: Fit) -> float:
    """Of how many steps the published profiler scopes are the sum, read so that they agree best.

    It is not said. Were they single steps, 128 requests would verify 384 draft tokens in 427 ms, while the
    published throughput at depth 16 leaves a step of 32 requests and 512 draft tokens about 200 ms in all.
    """
    ratios = [math.log(ms / _profiled_ms(fit, what, requests)) for (what, requests), ms in _PROFILE.items()]
    return math.exp(sum(ratios) / len(ratios))


def _profiled_ms(fit: Fit, what: str, requests: int) -> float:
    cost = fit.step.draft_s if what == "drafting" else fit.step.target_s
    return 1000 * cost(requests, 3)


def report(fit: Fit) -> str:
    """Write the published figures beside the simulated ones, as Markdown tables."""
    lines = ["| figure | published | simulated | ratio |", "|---|---|---|---|"]
    for depth, published in PUBLISHED_LENGTHS:
        lengths = sorted(fit.routes[route].acceptance_length(depth) for route in ROUTES)
        lines.append(f"| tokens a pass, depth {depth} | {published} | {lengths[0]:.2f}-{lengths[-1]:.2f} | |")
    for figure in figures(fit):
        ratio = figure.model / figure.published
        lines.append(f"| {figure.name} | {figure.published:,} | {figure.model:,.4g} | {ratio:.2f} |")
    both = curves(fit)
    lines += ["", "| concurrency | " + " | ".join(map(str, CONCURRENCY)) + " |", "|---" * 13 + "|"]
    for route in ROUTES:
        lines.append(
            f"| {route}, no MTP, tokens/s | {_row(f'{both.plain[route][n]:,.0f}' for n in CONCURRENCY)} |"
        )
        lines.append(
            f"| {route}, depth 3 over no MTP | {_row(f'{both.gain(route, n):+.1%}' for n in CONCURRENCY)} |"
        )
    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return " | ".join(cells)
