"""`python -m tests.fuzz.long`: 20,000 fuzzed requests, or those of files again."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.campaign import Tally, replay, send_documented, send_mutations
from tests.fuzz.target import target

# Shares of all requests; those derived from the document are slow to generate.
_DOCUMENT, _JSON, _BODY = 0.05, 0.45, 0.3
# Requests that warm caches and allocators up before memory is measured.
_WARM_UP = 1000
# The most growth after that in a process without a leak: memory that the allocator keeps.
MOST_GROWTH_MB = 25.0


def main() -> int:
    """Send them; return exit status 1 where anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.long", description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument(
        "--replay", type=Path, nargs="+", metavar="FILE", help="send these again, nothing else"
    )
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder, target(Path(folder)) as fuzzed:
        tally, started = Tally(), time.monotonic()
        if options.replay:
            files = ((str(path), path.read_bytes()) for path in options.replay)
            asyncio.run(replay(fuzzed, files, tally))
        else:
            send_mutations(fuzzed, options.seed, {"json": _WARM_UP // 2, "body": _WARM_UP // 2}, tally)
            before = fuzzed.rss_mb()
            left = options.requests - tally.sent
            send_documented(fuzzed, options.seed, int(left * _DOCUMENT), tally)
            counts = {"json": int(left * _JSON), "body": int(left * _BODY)}
            # Another seed than the warm-up's, so that no request is sent twice.
            send_mutations(fuzzed, options.seed + 1, counts, tally)
            send_mutations(fuzzed, options.seed + 1, {"wire": options.requests - tally.sent}, tally)
            after = fuzzed.rss_mb()
            print(f"resident memory: {before:.1f} MB after {_WARM_UP:,} requests, {after:.1f} MB at the end")
            if after - before > MOST_GROWTH_MB:
                tally.problems.append(f"memory grew by {after - before:.1f} MB, more than {MOST_GROWTH_MB:g}")
        fuzzed.check_at_rest()
        tally.problems += [f"a fault of the gateway's own: {fault}" for fault in fuzzed.own_faults()]
    print(f"{tally.sent:,} requests in {time.monotonic() - started:.0f} s")
    for status, count in sorted(tally.statuses.items()):
        print(f"  {status or 'closed':>6} {count:7,}")
    print(f"slowest answer: {tally.slowest[0]:.2f} s ({tally.slowest[1]})")
    print("\n".join(tally.problems) or "nothing was wrong")
    return bool(tally.problems)


if __name__ == "__main__":
    sys.exit(main())
