"""`python -m tests.mirror`: each source file has its test file, and each test file its source."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Tests of the whole, which no single source file owns.
WHOLE = {"test_documents.py", "test_mirror.py", "test_wheel.py"}
# Folders that test what is not in gateway/.
OTHERS = {"bench", "browser", "clients", "deploy", "faults", "fuzz", "vllm"}


def missing(root: Path) -> list[str]:
    """Name every source file without a test, and every test without a source."""
    sources = {
        path.relative_to(root / "gateway")
        for path in (root / "gateway").rglob("*.py")
        if not path.name.startswith("__")
    }
    tests = {
        path.relative_to(root / "tests")
        for path in (root / "tests").rglob("test_*.py")
        if path.relative_to(root / "tests").as_posix() not in WHOLE
        and path.relative_to(root / "tests").parts[0] not in OTHERS
    }
    wanted = {source.with_name(f"test_{source.name}"): source for source in sources}
    return sorted(
        [f"gateway/{wanted[test]} has no tests/{test}" for test in wanted.keys() - tests]
        + [f"tests/{test} has no source file" for test in tests - wanted.keys()]
    )


if __name__ == "__main__":
    problems = missing(ROOT)
    print("\n".join(problems) or "every source file has its test file")
    sys.exit(bool(problems))
