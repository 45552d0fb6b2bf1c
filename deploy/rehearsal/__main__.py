"""`python -m deploy.rehearsal gateway|engines`: rolling updates under load, without a cluster.

The engines are simulated; the gateways, the signals, the connections and the times are real.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

REHEARSALS = {"gateway": "gateways", "engines": "engines"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Rehearse; return 0 where nothing was lost."""
    parser = argparse.ArgumentParser(prog="python -m deploy.rehearsal", description=__doc__)
    parser.add_argument(
        "what", choices=REHEARSALS, help="whose pods are replaced; then --help for its options"
    )
    options, rest = parser.parse_known_args(arguments)
    module = importlib.import_module(f"deploy.rehearsal.{REHEARSALS[options.what]}")
    return int(module.main(rest))


if __name__ == "__main__":
    sys.exit(main())
