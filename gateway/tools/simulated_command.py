"""`ocr-gateway simulated-engine`: a vLLM of a fit's speed, without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.engines.simulated import simulated_server, step_model
from gateway.errors import ConfigError

if TYPE_CHECKING:
    import argparse


def run(options: argparse.Namespace) -> int:
    """Serve until a signal ends it; return the exit status.

    Raises:
        ConfigError: the fit or the schedule cannot be used.
    """
    if options.model_file in step_model.builtin_fits():
        fit = step_model.Fit.builtin(options.model_file)
    else:
        fit = step_model.Fit.load(Path(options.model_file))
    try:
        step_model.Depths(options.depth, options.schedule)
    except ValueError as error:
        raise ConfigError([f"simulated-engine: {error}"]) from error
    where = f"http://{options.host}:{options.port}"
    print(f"a simulated engine, fit {fit.name}, serves on {where}", file=sys.stderr)
    simulated_server.main(
        fit,
        host=options.host,
        port=options.port,
        depth=options.depth,
        schedule=options.schedule,
        model=options.model,
        time_scale=options.time_scale,
        seed=options.seed,
        per_request=options.per_request_spec_decode_metrics == "summary",
        shutdown_timeout=options.shutdown_timeout,
    )
    return 0
