"""`python -m fuzz`: fuzz the parsers for a while; inputs that break one are kept in `fuzz/crashes`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
# Enough for an input to reach every branch of a parser.
_MAX_BYTES = 4096
# An input that takes longer is a finding, too.
_SLOW_S = 5


def main() -> None:
    """Run the fuzzer, which ends the process: with status 0 where nothing broke."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="0: a random one, which is printed")
    parser.add_argument("--keep", type=Path, help="folder for inputs that reach new code")
    options = parser.parse_args()
    try:
        import atheris
    except ImportError:
        sys.exit("atheris is missing: pip install --group fuzz (Linux)")
    with atheris.instrument_imports(include=["gateway"]):
        from fuzz.target import run_input
    crashes = HERE / "crashes"
    crashes.mkdir(exist_ok=True)
    found = options.keep or Path(tempfile.mkdtemp(prefix="fuzz-"))
    found.mkdir(exist_ok=True)
    arguments = [
        sys.argv[0],
        f"-max_total_time={options.seconds}",
        f"-seed={options.seed}",
        f"-max_len={_MAX_BYTES}",
        f"-timeout={_SLOW_S}",
        f"-artifact_prefix={crashes}/",
        "-print_final_stats=1",
        str(found),
        str(HERE / "corpus"),
    ]
    atheris.Setup(arguments, run_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
