"""`python -m tests.fuzz.examples`: the parsers' property tests, with many examples."""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
from collections import Counter

import pytest

PARSERS = (
    "tests/wire",
    "tests/config/test_checks.py",
    "tests/config/test_located_yaml.py",
    "tests/config/test_shown_values.py",
    "tests/config/test_api_keys.py",
    "tests/fuzz/test_target.py",
    "tests/api/test_endpoints.py",
)


class _Counting:
    """A plugin of pytest that counts the examples of each file's tests."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        statistics = getattr(item, "hypothesis_statistics", "") if call.when == "call" else ""
        self.ran[item.location[0]] += sum(map(int, re.findall(r"(\d+) passing", statistics)))


def main() -> int:
    """Run them; return an exit status other than 0 where a test fails or too few examples ran."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.examples", description=__doc__)
    parser.add_argument("--each", type=int, default=3500, help="examples of each property")
    parser.add_argument("--least", type=int, default=100_000, help="fewer in all are a failure")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    os.environ |= {"HYPOTHESIS_PROFILE": "long", "HYPOTHESIS_EXAMPLES": str(options.each)}
    counting = _Counting()
    quiet = ("-p", "no:cacheprovider", "--no-cov", "--no-header", "--show-capture=no")
    failed = pytest.main(
        [*quiet, f"--hypothesis-seed={options.seed}", "-m", "hypothesis", *PARSERS], plugins=[counting]
    )
    for file, count in sorted(counting.ran.items()):
        print(f"{count:9,} {file}")
    print(f"{counting.ran.total():9,} examples in all")
    return int(failed) or int(counting.ran.total() < options.least)


if __name__ == "__main__":
    sys.exit(main())
