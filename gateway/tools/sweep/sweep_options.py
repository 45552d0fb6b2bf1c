"""The options of `ocr-gateway sweep`."""

from __future__ import annotations

import argparse
from pathlib import Path

from gateway.tools.option_types import whole

# As in the published experiment.
LOADS = (1, 10, 24, 32, 40, 64, 80, 128, 256)
WINDOW_S = 120.0
MAX_WARMUP_S = 300.0
MAX_TOKENS = 4096
REPEATS_MAX = 8
# What lies beyond is a slip of the pen.
_MOST = 1_000_000
_MOST_PER_S = 10_000
_SECONDS = (1, 24 * 3600)
_count = whole(1, _MOST)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    what = parser.add_argument_group("what is measured")
    what.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="routes.yaml, whose pools are measured; default: routes.yaml, unless there is --engine",
    )
    what.add_argument(
        "--engine",
        type=_engine,
        action="append",
        default=[],
        metavar="DEPTH=URL",
        help="instead of --config: an engine and its num_speculative_tokens; repeat it for each engine",
    )
    what.add_argument(
        "--model", default="glm-ocr", metavar="NAME", help="with --engine: what they serve; default: glm-ocr"
    )
    what.add_argument("--routes", type=_names, metavar="R,...", help="default: all")
    what.add_argument("--pools", type=_names, metavar="P,...", help="default: all")
    what.add_argument(
        "--concurrency",
        type=_loads,
        default=LOADS,
        metavar="N,...",
        help=f"requests at a time on one engine; default: {','.join(map(str, LOADS))}",
    )
    what.add_argument(
        "--rate",
        type=_rates,
        default=(),
        metavar="R,...",
        help="requests a second on one engine, sent at random moments: an open loop, beside the grid",
    )
    what.add_argument(
        "--quick", action="store_true", help="look for crossovers by bisection instead of the whole grid"
    )
    what.add_argument(
        "--repeats-max",
        type=_count,
        default=REPEATS_MAX,
        metavar="N",
        help=f"the most windows of one cell, where a crossover is uncertain; default: {REPEATS_MAX}",
    )

    how = parser.add_argument_group("how")
    how.add_argument(
        "--window",
        type=_seconds,
        default=WINDOW_S,
        metavar="S",
        help=f"seconds measured of each cell; default: {WINDOW_S:.0f}",
    )
    how.add_argument(
        "--max-warmup",
        type=_seconds,
        default=MAX_WARMUP_S,
        metavar="S",
        help=f"the longest to wait for a steady throughput; default: {MAX_WARMUP_S:.0f}",
    )
    how.add_argument(
        "--images",
        type=Path,
        metavar="DIR",
        help="your own images, a folder a route; default: documents drawn for a first try",
    )
    how.add_argument(
        "--prompt",
        type=_prompt,
        action="append",
        default=[],
        metavar="ROUTE=TEXT",
        help="what a route's requests say; default: what the model's clients say",
    )
    how.add_argument(
        "--max-tokens",
        type=_count,
        default=MAX_TOKENS,
        metavar="N",
        help=f"the longest answer; default: {MAX_TOKENS}",
    )
    how.add_argument(
        "--no-stream", action="store_true", help="ask for whole answers; they tell no first token"
    )
    how.add_argument("--gpu", default="", metavar="NAME", help="what the engines run on, for the record")
    how.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")

    result = parser.add_argument_group("what becomes of it")
    result.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="for windows and report; a sweep that is there already goes on",
    )
    result.add_argument(
        "--dry-run",
        action="store_true",
        help="check the engines, say what would be done and how long it takes",
    )
    instead = result.add_mutually_exclusive_group()
    instead.add_argument(
        "--report-only", action="store_true", help="measure nothing: report what --out holds"
    )
    instead.add_argument(
        "--from-vllm-bench",
        nargs="+",
        default=[],
        metavar="[ROUTE:POOL=]FILE",
        help="measure nothing: read files of `vllm bench serve`; its --metadata may tell route and pool",
    )
    into = result.add_mutually_exclusive_group()
    into.add_argument(
        "--write", action="store_true", help="put schedules and profiles into --config, its comments kept"
    )
    into.add_argument("--diff", action="store_true", help="print what --write would change")


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise argparse.ArgumentTypeError(f"names none: {text!r}")
    return names


def _loads(text: str) -> tuple[int, ...]:
    return tuple(sorted({_count(number) for number in _names(text)}))


def _rates(text: str) -> tuple[float, ...]:
    return tuple(sorted({_between(number, 0, _MOST_PER_S) for number in _names(text)}))


def _seconds(text: str) -> float:
    return _between(text, *_SECONDS)


def _between(text: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (least <= value <= most and value > 0):
        bound = f"of at least {least:g}" if least else "above 0"
        raise argparse.ArgumentTypeError(f"must be a number {bound}, and up to {most:,g}, not {text!r}")
    return value


def _engine(text: str) -> tuple[int, str]:
    depth, mark, url = text.partition("=")
    if not (mark and depth.isdecimal() and len(depth) < 4):
        raise argparse.ArgumentTypeError(f"must be DEPTH=URL, such as 3=http://gpu-1:8000, not {text!r}")
    return int(depth), url


def _prompt(text: str) -> tuple[str, str]:
    route, mark, prompt = text.partition("=")
    if not (mark and route and prompt):
        raise argparse.ArgumentTypeError(f"must be ROUTE=TEXT, not {text!r}")
    return route, prompt
