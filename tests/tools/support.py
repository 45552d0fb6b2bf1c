"""What tests of several tools need."""

import io
from pathlib import Path

from bench.serving import ROOT

CONFIG = str(ROOT / "routes.yaml")
KEY = "a-secret-that-no-line-shows"


class Terminal(io.StringIO):
    """A stream that a person looks at."""

    def isatty(self) -> bool:
        return True


def changed(tmp_path: Path, old: str, new: str) -> Path:
    path = tmp_path / "routes.yaml"
    path.write_text((ROOT / "routes.yaml").read_text().replace(old, new))
    return path


def keyed(tmp_path: Path, keys: str) -> Path:
    (tmp_path / "keys").write_text(keys)
    return changed(tmp_path, "\nsorting:", "\nauth: {keys_file: keys}\nsorting:")
