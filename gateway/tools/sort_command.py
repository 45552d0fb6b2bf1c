"""`ocr-gateway sort`: the route of images, as the gateway would choose it."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

from gateway.config import load
from gateway.errors import GatewayError
from gateway.images.worker import guess_layout, layout_model
from gateway.model import SortFacts
from gateway.policy.sort import evidence
from gateway.state.fleet import sort_rules
from gateway.wire.image import headers

if TYPE_CHECKING:
    import argparse

_ROW = "{route:<10} {reason:<9} {confidence:<5} {milliseconds:>7} ms  {image}"


def run(options: argparse.Namespace) -> int:
    """Print route, reason, confidence and time of each image; return the exit status.

    1: an image cannot be read; the others are sorted.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    config = load(options.config, keys=False)
    rules, model = sort_rules(config), layout_model()
    failed = False
    for path in options.images:
        started = time.perf_counter()
        try:
            data = path.read_bytes()
            headers.inspect(data, max_pixels=config.limits.image_pixels)
            decision = evidence.sort(SortFacts(prompt=options.prompt, has_image=True), rules)
            if decision is None:
                decision = evidence.sort_by_layout(guess_layout(data, model), rules)
        except (GatewayError, OSError) as error:
            failed = True
            print(f"{path}: {error}", file=sys.stderr)
            continue
        row = {
            "image": str(path),
            "route": decision.route,
            "reason": str(decision.reason),
            "confidence": round(decision.confidence, 3),
            "milliseconds": round((time.perf_counter() - started) * 1000, 1),
        }
        print(json.dumps(row) if options.json else _ROW.format(**row))
    return int(failed)
