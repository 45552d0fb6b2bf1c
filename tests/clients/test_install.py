import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.clients import install
from tests.clients.install import Environment, NotInstalled


class Commands:
    """Stands for pip and npm: keeps what was run, and makes a Python where one is asked for."""

    def __init__(self) -> None:
        self.run: list[tuple[str, ...]] = []
        self.fails = False

    def __call__(self, command: Sequence[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.run.append(tuple(command))
        if "venv" in command:
            (Path(command[-1]) / "bin").mkdir(parents=True)
        return subprocess.CompletedProcess(command, int(self.fails), "No matching distribution")


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    found = Commands()
    monkeypatch.setattr(subprocess, "run", found)
    return found


@pytest.fixture
def one(tmp_path: Path) -> Environment:
    client = tmp_path / "some-client"
    client.mkdir()
    (client / "requirements.txt").write_text("some-client==1.0\n# what it needs\nother==2.0\n")
    return Environment(client, tmp_path / "cache")


def test_what_is_there_is_not_installed_again(one: Environment, commands: Commands) -> None:
    one.install()
    assert one.complete
    assert commands.run[-1][-2:] == ("-r", str(one.client / "requirements.txt"))
    assert one.versions() == "some-client==1.0"
    commands.run.clear()
    one.install()
    assert commands.run == []


def test_other_pins_make_it_anew(one: Environment, commands: Commands) -> None:
    one.install()
    left = one.folder / "left"
    left.touch()
    (one.client / "requirements.txt").write_text("some-client==1.1\n")
    one.install()
    assert not left.exists()
    assert one.complete


def test_javascript_comes_from_npm(one: Environment, commands: Commands) -> None:
    (one.client / "package.json").write_text("{}")
    one.install()
    assert commands.run[-1][:2] == ("npm", "install")
    assert (one.folder / "package.json").exists()


def test_what_broke_off_is_not_taken_for_installed(one: Environment, commands: Commands) -> None:
    commands.fails = True
    with pytest.raises(NotInstalled, match="No matching distribution"):
        one.install()
    assert not one.complete


def test_the_others_are_installed_all_the_same(
    tmp_path: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OCR_GATEWAY_CLIENTS", str(tmp_path))

    def refuse(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if "npm" in command:
            raise FileNotFoundError
        return commands(command, **options)

    monkeypatch.setattr(subprocess, "run", refuse)
    assert install.main(["node", "openai"]) == 1
    told = capsys.readouterr().out
    assert "node is not installed: npm is not here" in told
    assert "openai: openai==" in told
    assert install.environment("openai").complete


def test_an_unknown_client_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert install.main(["netscape"]) == 2
    assert "unknown: netscape; known are" in capsys.readouterr().out
