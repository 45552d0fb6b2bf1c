"""`python -m deploy.rehearsal gateway|engines`: rolling updates under load, without a cluster.

The engines are simulated; the gateways, the signals, the connections and the times are real.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

REHEARSALS = {"gateway": "gateways", "engines": "engines"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Rehearse; return 0 where nothing was lost."""
    parser = argparse.ArgumentParser(prog="python -m deploy.rehearsal", description=__doc__)
    parser.add_argument("what", choices=REHEARSALS, help="whose pods are replaced")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="its own: --help after it tells them")
    options = parser.parse_args(arguments)
    module = importlib.import_module(f"deploy.rehearsal.{REHEARSALS[options.what]}")
    # All that runs is ended on the way out, which only Ctrl-C takes by itself.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        return int(module.main(options.options))
    except KeyboardInterrupt:
        print("broken off")
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
