"""`ocr-gateway plan`: which fleet to run, from profiles and a load."""

from __future__ import annotations

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
from gateway.tools.plan import engine_kinds, prometheus_history
from gateway.tools.plan.load_history import binned, read_csv
from gateway.tools.plan.recommendation import FleetReport

if TYPE_CHECKING:
    import argparse

    from gateway.policy.choose.composition import Advice
    from gateway.policy.choose.fleet_model import LoadHistogram
    from gateway.tools.plan.engine_kinds import Measured
    from gateway.tools.plan.load_history import History

_URLS = ("http://", "https://")


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
