"""What both rehearsals have in common: the overlay, its load, the command's options and words."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from deploy.rehearsal.pods import ROOT, free_port, mount

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from deploy.rehearsal.clients import Tally

OVERLAY = ROOT / "deploy/kubernetes/overlays/production"
GATEWAY, CONFIG_MAP, FILE = "ocr-gateway", "ocr-gateway-routes", "routes.yaml"
CLIENTS, TOKENS = 64, 60
# From a pod's termination to the last balancer or DNS server that knows: some seconds in a busy cluster.
PROPAGATION_S = 3.0
# What clients show; nobody else's.
KEY = "a-key-of-this-rehearsal-alone"
_SHOWN = 20


def placed(routes: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a gateway's configuration with what is elsewhere in a cluster: its keys, its admin port."""
    mount(folder / "keys", {"keys": f"rehearsal {KEY}\n"})
    auth = {**routes["auth"], "keys_file": str(folder / "keys" / "keys")}
    return {**routes, "auth": auth, "server": {**routes["server"], "admin_port": free_port()}}


def admin_url(routes: Mapping[str, Any]) -> str:
    """Return where the metrics of a gateway with this configuration are."""
    return f"http://127.0.0.1:{routes['server']['admin_port']}"


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
