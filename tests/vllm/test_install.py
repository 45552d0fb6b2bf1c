import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.vllm import install
from tests.vllm.install import NotInstalled


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache on a machine that will do."""
    monkeypatch.delenv("OCR_GATEWAY_VLLM_VENV", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(install, "_check_machine", lambda: None)
    return tmp_path


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The commands that would have been run; they all do well, and make a Python where one is asked for."""
    run: list[tuple[str, ...]] = []

    def pretend(command: tuple[str, ...], **_: Any) -> subprocess.CompletedProcess[str]:
        run.append(tuple(command))
        if "venv" in command:
            made(Path(command[-1]))
        return subprocess.CompletedProcess(command, 0, "")

    monkeypatch.setattr(subprocess, "run", pretend)
    return run


def made(venv: Path) -> None:
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").touch()


def failing(text: str) -> Callable[..., Any]:
    return lambda command, **_: subprocess.CompletedProcess(command, 1, text)


def test_everything_locked_is_installed_once(place: Path, commands: list[tuple[str, ...]]) -> None:
    install.install()
    assert install.venv().is_relative_to(place)
    asked = [word for command in commands for word in command if "==" in word]
    assert sorted(asked) == sorted(install.requirements())
    assert commands[0][:3] == (sys.executable, "-m", "venv")
    commands.clear()
    install.install()
    assert commands == []


def test_what_broke_off_goes_on(
    commands: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made(install.venv())
    (install.venv() / "ocr-gateway-state").write_text("installing")
    assert not install.is_complete()
    install.install()
    assert not any("venv" in command for command in commands)
    assert install.is_complete()
    assert "2.5 GB on disk" in capsys.readouterr().out


def test_a_failure_names_the_step_and_what_was_said(
    commands: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made(install.venv())
    (install.venv() / "ocr-gateway-state").write_text("installing")
    monkeypatch.setattr(subprocess, "run", failing("ERROR: No matching distribution"))
    with pytest.raises(NotInstalled, match=r"(?s)torch==.*No matching distribution.*CPU wheels"):
        install.install()
    assert not install.is_complete()


def test_somebody_elses_environment_is_left_alone(
    place: Path, commands: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCR_GATEWAY_VLLM_VENV", str(place / "theirs"))
    assert not install.is_complete()
    made(place / "theirs")
    install.install()
    assert commands == []
    assert install.interpreter() == place / "theirs" / "bin" / "python"


def test_a_full_disk_is_told_of_beforehand(
    place: Path, commands: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("OCR_GATEWAY_VLLM_VENV", str(place / "new"))
    monkeypatch.setattr(install, "NEEDED_BYTES", 10**18)
    with pytest.raises(NotInstalled):
        install.install()
    assert not (place / "new").exists()
