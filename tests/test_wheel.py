"""The wheel as it is built: nothing of the package is missing, and by itself it can be run."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING
from zipfile import ZipFile

import pytest

from bench.serving import ROOT

if TYPE_CHECKING:
    from pathlib import Path

# Each line loads one kind of file that is no module.
LOADS = """
import gateway
from gateway.api import pages
from gateway.api.endpoints import _document
from gateway.engines.simulated.step_model import Fit, builtin_fits
from gateway.images.worker import layout_model
from gateway.tools.sweep import report
print(gateway.__file__)
assert _document()["paths"]
assert b"</html>" in pages.load().body
assert [Fit.builtin(name).name for name in builtin_fits()] == ["h100-9b", "slow-verify"]
assert layout_model()
assert all((report._FOLDER / name).read_text() for name in ("report.css", "report.html.j2"))
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's folder, as an installer makes it."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


def run(unpacked: Path, *arguments: str) -> str:
    """Run Python where there is nothing but the unpacked wheel of the gateway."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=unpacked.parent,
        env={**os.environ, "PYTHONPATH": str(unpacked)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_file_of_the_package_is_inside(unpacked: Path) -> None:
    files = [path.relative_to(ROOT) for path in (ROOT / "gateway").rglob("*") if path.is_file()]
    files = [path for path in files if "__pycache__" not in path.parts]
    assert {".py", ".yaml", ".html", ".npz", ".json", ".css", ".j2"} <= {path.suffix for path in files}
    assert [path for path in files if not (unpacked / path).exists()] == []


def test_by_itself_it_checks_a_configuration(unpacked: Path) -> None:
    run(unpacked, "-m", "gateway.cli", "check", "--config", str(ROOT / "routes.yaml"))


def test_by_itself_it_finds_its_data(unpacked: Path) -> None:
    assert run(unpacked, "-c", LOADS).strip() == str(unpacked / "gateway/__init__.py")
