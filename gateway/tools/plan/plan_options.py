"""The options of `ocr-gateway plan`."""

from __future__ import annotations

import argparse
from pathlib import Path

from gateway.tools.option_types import whole

_MOST_ENGINES = 256
# vLLM bounds max_num_seqs nowhere, but nobody measured an engine with more.
_MOST_LOAD = 4096


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--profiles", type=Path, required=True, metavar="DIR", help="ROUTE.json files, as a sweep writes them"
    )
    parser.add_argument(
        "--load",
        required=True,
        metavar="FILE|URL",
        help="requests in the system by route: a CSV file, or the base URL of a Prometheus that has the "
        "gateway's history",
    )
    parser.add_argument(
        "--engines",
        type=whole(1, _MOST_ENGINES),
        required=True,
        metavar="N",
        help="how many there will be",
    )
    parser.add_argument(
        "--max-load",
        type=whole(1, _MOST_LOAD),
        default=256,
        metavar="N",
        help="the most requests one engine may have; default: 256",
    )
    parser.add_argument("--model", metavar="NAME", help="whose history, where Prometheus has several")
    parser.add_argument(
        "--since", type=_duration, default="7d", metavar="TIME", help="how far to look back; default: 7d"
    )
    parser.add_argument(
        "--step", type=_duration, default="60s", metavar="TIME", help="how often to look; default: 60s"
    )
    parser.add_argument(
        "--weight",
        type=_weight,
        action="append",
        default=[],
        metavar="ROUTE=X",
        help="what a token of a route is worth beside others'; default: 1",
    )
    parser.add_argument("--json", action="store_true", help="everything as one JSON object")


def _duration(text: str) -> float:
    from gateway.tools.plan.prometheus_history import seconds  # heavy: only where it is asked for

    try:
        return seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _weight(text: str) -> tuple[str, float]:
    route, _, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if not (route and 0 < value < float("inf")):
        raise argparse.ArgumentTypeError(f"ROUTE=X with X above 0, such as text=2, not {text!r}")
    return route, value
