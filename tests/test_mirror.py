from pathlib import Path

from tests.mirror import missing


def test_both_directions_are_told(tmp_path: Path) -> None:
    for name in (
        "gateway/__init__.py",
        "gateway/a/one.py",
        "gateway/two.py",
        "tests/a/test_one.py",
        "tests/test_3.py",
        "tests/bench/test_4.py",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert missing(tmp_path) == [
        "gateway/two.py has no tests/test_two.py",
        "tests/test_3.py has no source file",
    ]
