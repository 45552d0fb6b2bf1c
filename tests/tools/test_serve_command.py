import json
import logging
from pathlib import Path
from typing import Any

import pytest

from gateway import cli
from tests.tools.support import CONFIG, KEY, changed, keyed


def test_check_says_what_a_valid_file_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--config", CONFIG]) == 0
    assert "valid - model glm-ocr, routes text, key-value, table, 1 engine in cpu" in capsys.readouterr().out


def test_check_prints_every_error_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = changed(tmp_path, "default: text", "defualt: text")
    assert cli.main(["check", "--config", str(path)]) == 1
    assert f"{path}:16: sorting.defualt: unknown key - did you mean 'default'?" in capsys.readouterr().err


def test_check_notes_a_profile_of_another_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = changed(tmp_path, "table: {}", "table: {profile: table.json}")
    profile = {"route": "table", "pools": {"cpu": [[1, 30]]}, "meta": {"model": "another"}}
    (tmp_path / "table.json").write_text(json.dumps(profile))
    assert cli.main(["check", "--config", str(path)]) == 0
    assert "routes.table.profile: measured on model 'another'" in capsys.readouterr().out


def test_check_notes_a_route_that_nothing_is_sorted_into(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(tmp_path, "table: {}", "tabel: {}")
    assert cli.main(["check", "--config", str(path)]) == 0
    told = f"note: {path}: routes.tabel: only requests that name it reach it"
    assert told in (out := capsys.readouterr().out)
    assert "did you mean 'table'?" in out


def test_check_shows_no_variable_and_notes_what_only_looks_like_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "routes.yaml"
    pool = "{engines: [http://e], api_key: $ENGINE_KEY}"
    path.write_text(f"model: ${{MODEL}}\npools: {{p: {pool}}}\nroutes: {{text: {{}}}}\n")
    monkeypatch.setenv("MODEL", "planted")
    assert cli.main(["check", "--config", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"note: {path}: pools.p.api_key (line 2): is taken as it stands: "
        "a variable is ${NAME}, with braces; $$ is a dollar",
        f"{path}: valid - model of a variable, routes text, 1 engine in p, no API keys",
    ]


def test_check_counts_the_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--config", CONFIG]) == 0
    assert capsys.readouterr().out.endswith("in cpu, no API keys\n")
    path = keyed(tmp_path, f"team-a {KEY}\nteam-a {KEY}-new\n")
    assert cli.main(["check", "--config", str(path)]) == 0
    assert capsys.readouterr().out.endswith("in cpu, 2 API keys of 1 name\n")


def test_check_refuses_wrong_keys_and_shows_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = keyed(tmp_path, f"team-a {KEY}\n{KEY}-new\n")
    for command in ("check", "serve"):
        assert cli.main([command, "--config", str(path)]) == 1
        told = capsys.readouterr().err
        assert f"{tmp_path}/keys:2: a line is" in told
        assert KEY not in told


def test_who_does_not_serve_needs_no_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = changed(tmp_path, "\nsorting:", "\nauth: {keys_file: none}\nsorting:")
    assert cli.main(["engine-args", "--config", str(path)]) == 0
    assert cli.main(["check", "--config", str(path)]) == 1
    assert "auth.keys_file" in capsys.readouterr().err


def test_serve_hands_a_valid_configuration_to_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []
    monkeypatch.setattr("gateway.telemetry.logs.configure", lambda *_: None)
    monkeypatch.setattr("gateway.server.listen.serve", lambda *arguments: served.append(arguments))
    assert cli.main(["serve", "--config", CONFIG, "--port", "8123"]) == 0
    ((config, path, host, port),) = served
    assert (config.model, path, host, port) == ("glm-ocr", Path(CONFIG), "127.0.0.1", 8123)


def test_serve_with_several_workers_has_them_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served: list[Any] = []
    monkeypatch.setattr("gateway.telemetry.logs.configure", lambda *_: None)
    monkeypatch.setattr(
        "gateway.server.worker_parent.serve", lambda *arguments: served.append(arguments) or 3
    )
    path = changed(tmp_path, "\nsorting:", "\nserver: {admin_port: 9090, replicas: 4}\nsorting:")
    options = ["--config", str(path), "--workers", "4"]
    assert cli.main(["serve", *options, "--port", "8123", "--log-format", "json"]) == 3
    ((config, *rest),) = served
    assert (config.workers, *rest) == (4, path, "127.0.0.1", 8123, ("json", "info"))
    assert cli.main(["check", *options]) == 0
    assert cli.main(["check", "--config", CONFIG, "--workers", "4"]) == 1
    assert f"{CONFIG}:1: server.admin_port: is required with 4 workers" in capsys.readouterr().err


@pytest.mark.parametrize("workers", ["0", "65", "-1", "two"])
def test_workers_are_some(workers: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["serve", "--workers", workers])
    assert "workers are 1 to 64" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "level", "told"),
    [
        ("127.0.0.1", "WARNING", "whoever on this machine reaches 127.0.0.1:8000 may use it"),
        ("localhost", "WARNING", "whoever on this machine"),
        ("::1", "WARNING", "whoever on this machine"),
        ("0.0.0.0", "ERROR", "0.0.0.0:8000 is open to the network"),
        ("", "ERROR", "open to the network"),
        ("gateway.example", "ERROR", "open to the network"),
    ],
)
def test_serve_says_loudly_that_it_is_open(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, host: str, level: str, told: str
) -> None:
    monkeypatch.setattr("gateway.server.listen.serve", lambda *_: None)
    monkeypatch.setattr("gateway.telemetry.logs.configure", lambda *_: None)
    assert cli.main(["serve", "--config", CONFIG, "--host", host]) == 0
    (record,) = caplog.records
    assert told in record.getMessage()
    assert record.levelname == level


def test_serve_with_keys_says_how_many(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr("gateway.server.listen.serve", lambda *_: None)
    monkeypatch.setattr("gateway.telemetry.logs.configure", lambda *_: None)
    path = keyed(tmp_path, f"team-a {KEY}\nteam-b {KEY}-new\n")
    with caplog.at_level(logging.INFO):
        assert cli.main(["serve", "--config", str(path), "--host", "0.0.0.0"]) == 0
    assert [record.getMessage() for record in caplog.records] == ["2 API keys of 2 names"]


def test_serve_says_what_the_embedded_engine_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert cli.main(["serve", "--config", CONFIG]) == 1
    assert "ocr-gateway[embedded]" in capsys.readouterr().err
