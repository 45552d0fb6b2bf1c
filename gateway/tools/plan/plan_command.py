"""`ocr-gateway plan`: which fleet to run, from profiles and a load."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gateway.errors import ConfigError
from gateway.policy.choose.composition import advise
from gateway.policy.choose.fleet_model import FleetModel
from gateway.tools.option_types import whole
from gateway.tools.plan import engine_kinds, prometheus_history
from gateway.tools.plan.load_history import binned, read_csv
from gateway.tools.plan.recommendation import FleetReport

if TYPE_CHECKING:
    from gateway.policy.choose.composition import Advice
    from gateway.policy.choose.fleet_model import LoadHistogram
    from gateway.tools.plan.engine_kinds import Measured
    from gateway.tools.plan.load_history import History

_MOST_ENGINES = 256
# vLLM bounds max_num_seqs nowhere, but nobody measured an engine with more.
_MOST_LOAD = 4096
_URLS = ("http://", "https://")


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


def run(options: argparse.Namespace) -> int:
    """Print the recommendation; return the exit status.

    Raises:
        ConfigError: profiles or load cannot be used.
    """
    measured = engine_kinds.read(options.profiles)
    history = _history(options)
    load = binned(history, measured.routes)
    if sys.stderr.isatty():
        print("valuing fleets: some seconds", file=sys.stderr)
    advice = planned(measured, load, options.engines, options.max_load, dict(options.weight))
    report = FleetReport(measured)
    if options.json:
        print(json.dumps(report.as_json(advice, load, history.source)))
    else:
        print(report.text(advice, load, history.source))
    return 0


def planned(
    measured: Measured,
    load: LoadHistogram,
    engines: int,
    max_load: int,
    weights: dict[str, float] | None = None,
) -> Advice:
    """Return the recommendation; the same for the same arguments.

    Raises:
        ConfigError: a weight of an unknown route, or no fleet of these engines can serve every route.
    """
    weights = weights or {}
    if unknown := [route for route in weights if route not in measured.routes]:
        raise ConfigError(
            [f"--weight: there is no profile of {', '.join(unknown)}; there are {', '.join(measured.routes)}"]
        )
    model = FleetModel(measured.kinds, max_load, [weights.get(route, 1.0) for route in measured.routes])
    try:
        return advise(model, load, engines, np.random.default_rng(0))
    except ValueError as error:
        raise ConfigError([f"{error}: some routes have no curve of some pools"]) from error


def _history(options: argparse.Namespace) -> History:
    if not options.load.startswith(_URLS):
        return read_csv(Path(options.load))
    return asyncio.run(
        prometheus_history.history(
            options.load, model=options.model, since_s=options.since, step_s=options.step, now=time.time()
        )
    )


def _duration(text: str) -> float:
    try:
        return prometheus_history.seconds(text)
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
