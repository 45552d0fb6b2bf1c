"""What both rehearsals have in common: the overlay, its load, the command's options and words."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from deploy.rehearsal.pods import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploy.rehearsal.clients import Tally

OVERLAY = ROOT / "deploy/kubernetes/overlays/production"
GATEWAY, CONFIG_MAP, FILE = "ocr-gateway", "ocr-gateway-routes", "routes.yaml"
CLIENTS, TOKENS = 64, 60
# From a pod's termination to the last balancer or DNS server that knows: some seconds in a busy cluster.
PROPAGATION_S = 3.0
_SHOWN = 20


def parser(what: str, description: str | None) -> argparse.ArgumentParser:
    """Return the options that every rehearsal has."""
    found = argparse.ArgumentParser(prog=f"python -m deploy.rehearsal {what}", description=description)
    found.add_argument("--clients", type=int, default=CLIENTS, help=f"requests at once; default: {CLIENTS}")
    found.add_argument("--pace", type=float, default=1.0, help="0.2: all times a fifth; default: 1")
    return found


def say(line: str) -> None:
    """Print a line of progress at once, with the time."""
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def conclude(tally: Tally, faults: Sequence[str]) -> int:
    """Say what came of it; return the exit status."""
    for failure in tally.failures[:_SHOWN]:
        say(f"failed at {failure.at_s:.2f} s: client {failure.client}: {failure.reason}")
    say(
        f"{tally.answered} requests answered ({tally.streamed} streamed), {len(tally.failures)} failed; "
        f"longest time without an answer {tally.longest_gap_s:.2f} s (simulated engines)"
    )
    for fault in faults:
        say(fault)
    return int(bool(faults))
