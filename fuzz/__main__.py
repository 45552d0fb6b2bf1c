"""`python -m fuzz`: fuzz the parsers for a while; what breaks one is kept in `fuzz/crashes`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
# More than any input needs to reach a parser's last branch.
_MAX_BYTES = 4096
# An input that takes longer is a finding, too.
_SLOW_S = 5


def main() -> None:
    """Run it; does not return: the fuzzer ends the process, with status 0 where nothing broke."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="0: another one each time; it is printed")
    parser.add_argument("--keep", type=Path, help="where inputs go that reach something new")
    options = parser.parse_args()
    try:
        import atheris
    except ImportError:
        sys.exit("atheris is missing: pip install --group fuzz (Linux)")
    with atheris.instrument_imports(include=["gateway"]):
        from fuzz.target import one
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
    atheris.Setup(arguments, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
