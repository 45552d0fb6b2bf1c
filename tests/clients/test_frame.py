import json
import sys
from pathlib import Path

import pytest

from tests.clients import frame, install
from tests.clients.frame import Client, snippet
from tests.clients.install import Environment

DRIVE = """
import json, os, sys, time
print("began", flush=True)
if sys.argv[1] == "stays":
    time.sleep(600)
if sys.argv[1] == "fails":
    sys.exit("it was refused")
print(json.dumps([sys.argv[1:], os.environ.get("OPENAI_API_KEY"), os.environ.get("MORE")]))
"""


@pytest.fixture
def client(tmp_path: Path) -> Client:
    """A client whose environment is this one."""
    folder = tmp_path / "some-client"
    folder.mkdir()
    (folder / "requirements.txt").touch()
    (folder / "drive.py").write_text(DRIVE)
    python = tmp_path / "cache" / "some-client" / "bin"
    python.mkdir(parents=True)
    (python / "python").symlink_to(sys.executable)
    return Client(folder, Environment(folder, tmp_path / "cache"), tmp_path)


def test_a_result_is_the_last_line(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-somebodys")
    assert client.run("reads", 7, env={"MORE": "1"}) == [["reads", "7"], None, "1"]


def test_a_failure_tells_what_the_client_said(client: Client) -> None:
    with pytest.raises(AssertionError, match="it was refused"):
        client.run("fails")
    assert "it was refused" in client.start("fails").failed()


def test_what_still_runs_is_ended(client: Client) -> None:
    driven = client.start("stays")
    assert driven.said() == "began"
    client.end()
    assert driven.process.returncode == -9


def test_a_client_that_is_not_installed_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCR_GATEWAY_CLIENTS", str(tmp_path))
    with pytest.raises(LookupError, match=r"tests\.clients\.install openai"):
        frame.client_of(install.HERE / "openai", tmp_path)


@pytest.mark.parametrize("name", install.known())
def test_each_client_is_documented_and_pinned(name: str) -> None:
    code, shown = snippet(name)
    assert code
    assert shown
    folder = install.HERE / name
    if (package := folder / "package.json").exists():
        pins = json.loads(package.read_text())["dependencies"].values()
        assert all(pin[0].isdigit() for pin in pins)
    else:
        lines = (folder / "requirements.txt").read_text().splitlines()
        assert all("==" in line for line in lines if line and line[0] not in "#-")


def test_the_log_is_read_and_faults_are_healed(tmp_path: Path) -> None:
    with frame.simulating(tmp_path) as served:
        ask = {"model": frame.MODEL, "messages": [{"role": "user", "content": "Table Recognition:"}]}
        url = f"{served.v1}/chat/completions"
        with served.failing("unavailable"):
            assert served._http.post(url, json=ask).status_code == 503
            served.seen(code=503)
        assert [line["code"] for line in served.settled()] == [503]
        frame.wait(lambda: served._http.post(url, json=ask).status_code == 200, "an answer")
        lines = served.settled()
        assert lines[-1]["route"] == "table"
        assert lines[-1]["code"] == 200
        assert served.settled() == []
