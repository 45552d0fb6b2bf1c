"""`make stack`: simulated engines, the gateway, load, Prometheus and Grafana, without containers.

Prometheus and Grafana take part where they are installed. Ctrl-C ends everything and leaves nothing behind.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from deploy.stack import load, services
from deploy.stack.services import GRAFANA, url
from gateway.tools.demo.processes import GATEWAY, PROMETHEUS, ServiceFailed, interrupted_by_signals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INSTALL_PROMETHEUS = (
    "Prometheus is not installed: apt install prometheus (then systemctl disable --now prometheus, which "
    "frees its port), brew install prometheus, or https://prometheus.io/download/"
)
INSTALL_GRAFANA = (
    "Grafana is not installed: https://grafana.com/docs/grafana/latest/setup-grafana/installation/, or "
    "import deploy/grafana/dashboards/ocr-gateway.json into one that you have"
)
EXAMPLE = "ocr_gateway:acceptance_length:rate5m"


def say(line: str) -> None:
    """Print a line at once."""
    print(f"stack (simulated engines): {line}", flush=True)


def tell(ports: Mapping[str, int], started: Sequence[str]) -> None:
    """Print where everything is, and what is missing."""
    gateway = url(ports, GATEWAY)
    say(f"gateway     {gateway}  (/status, /metrics)")
    if PROMETHEUS in started:
        say(f"Prometheus  {url(ports, PROMETHEUS)}")
    else:
        say(INSTALL_PROMETHEUS)
    if GRAFANA in started:
        say(f"Grafana     {url(ports, GRAFANA)}/d/ocr-gateway")
    elif PROMETHEUS in started:
        say(INSTALL_GRAFANA)
        say(f"until then {url(ports, PROMETHEUS)} has the figures, such as {EXAMPLE}")


def parser() -> argparse.ArgumentParser:
    """Return the command's options."""
    found = argparse.ArgumentParser(prog="make stack", description=__doc__, parents=[load.options()])
    found.add_argument("--shift", type=_shift, default=0, metavar="N", help="add N to every port")
    found.add_argument("--no-load", action="store_true", help="no clients: the load is yours")
    return found


def _shift(text: str) -> int:
    highest = 65535 - max(services.PORTS.values())
    if not text.isdigit() or int(text) > highest:
        raise argparse.ArgumentTypeError(f"a shift is a number from 0 to {highest}, not {text!r}")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until interrupted; return the exit status."""
    options = parser().parse_args(arguments)
    ports = services.shifted(options.shift)
    clients = None if options.no_load else load.command_line(options)
    interrupted_by_signals()
    try:
        with services.running(ports, load=clients, say=say) as stack:
            tell(ports, stack.names)
            say("Ctrl-C ends it")
            while True:
                stack.require_alive()
                time.sleep(1)
    except KeyboardInterrupt:
        say("ended")
    except ServiceFailed as error:
        for line in str(error).splitlines():
            say(line)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
