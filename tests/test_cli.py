import json
import logging
from pathlib import Path
from typing import Any

import pytest

from bench.serving import ROOT, SHARED
from gateway import __version__, cli
from tests.support import encoded, picture

CONFIG = str(ROOT / "routes.yaml")
LINES = "\n".join(["the quick brown fox jumps over the lazy dog and runs away"] * 12)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.png"
    path.write_bytes(encoded(picture(LINES, (620, 330)), "PNG"))
    return path


def changed(tmp_path: Path, old: str, new: str) -> Path:
    path = tmp_path / "routes.yaml"
    path.write_text((ROOT / "routes.yaml").read_text().replace(old, new))
    return path


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


def test_sort_prints_route_reason_confidence_and_time(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sort", "--config", CONFIG, str(page)]) == 0
    route, reason, confidence, milliseconds, unit, image = capsys.readouterr().out.split()
    assert (route, reason, unit, image) == ("text", "image", "ms", str(page))
    assert 0 < float(confidence) <= 1
    assert float(milliseconds) > 0


def test_sort_takes_the_prompt_into_account(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sort", "--config", CONFIG, "--json", "--prompt", "Table Recognition:", str(page)]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["route"], row["reason"], row["confidence"]) == ("table", "prompt", 1.0)


def test_sort_reports_what_it_cannot_read_and_goes_on(
    page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "no.png").write_bytes(b"no picture")
    images = [str(tmp_path / "none.png"), str(tmp_path / "no.png"), str(page)]
    assert cli.main(["sort", "--config", CONFIG, *images]) == 1
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 1
    assert cli.main(["sort", "--config", CONFIG, "--prompt", "OCR:", images[0]]) == 1
    assert "none.png" in told.err
    assert "not a readable" in told.err


KEY = "a-secret-that-no-line-shows"


def keyed(tmp_path: Path, keys: str) -> Path:
    (tmp_path / "keys").write_text(keys)
    return changed(tmp_path, "\nsorting:", "\nauth: {keys_file: keys}\nsorting:")


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


def test_engine_args_prints_every_pools_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(tmp_path, "  cpu:", "  gpu:\n    engines: ['http://one:8000']\n  cpu:")
    assert cli.main(["engine-args", "--config", str(path)]) == 0
    both = capsys.readouterr().out
    assert both.count("vllm serve glm-ocr") == 1
    assert cli.main(["engine-args", "--config", str(path), "--pool", "gpu"]) == 0
    gpu = capsys.readouterr().out
    assert both.startswith(gpu.rstrip("\n"))
    assert "# Pool cpu, depth 0: embedded" in both.removeprefix(gpu)
    assert cli.main(["engine-args", "--config", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["cpu"] == []
    assert told["gpu"][:3] == ["glm-ocr", "--served-model-name", "glm-ocr"]


def test_engine_args_of_an_unknown_pool_names_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["engine-args", "--config", CONFIG, "--pool", "mtp3"]) == 1
    assert "unknown pool 'mtp3'; there are: cpu" in capsys.readouterr().err


def test_engine_args_prints_a_pools_patch_and_says_of_which_it_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(tmp_path, "  cpu:", "  gpu:\n    engines: ['http://one:8000']\n  cpu:")
    told = ["engine-args", "--config", str(path), "--kustomize"]
    assert cli.main([*told, "--pool", "gpu"]) == 0
    assert f"wrote this from {path.name}" in capsys.readouterr().out
    assert cli.main(told) == 1
    assert "--kustomize is for one pool: --pool gpu or cpu" in capsys.readouterr().err
    assert cli.main([*told, "--pool", "cpu"]) == 1
    assert "pool cpu has no engine to start" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_ports_are_ports(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["serve", "--port", port])
    assert "a port is a number from 0 to 65535" in capsys.readouterr().err


@pytest.mark.skipif(not SHARED.exists(), reason="the shared test images are not here")
def test_sort_refuses_a_bomb_by_its_header(capsys: pytest.CaptureFixture[str]) -> None:
    bomb = str(SHARED / "images/nasty/18_bomb_20000x20000.png")
    assert cli.main(["sort", "--config", CONFIG, bomb]) == 1
    assert "20000 x 20000 pixels" in capsys.readouterr().err


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
    monkeypatch.setattr("gateway.server.workers.serve", lambda *arguments: served.append(arguments) or 3)
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


def test_the_embedded_engine_runs_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "gateway.engines.embedded.embedded_server.main", lambda **options: served.append(options)
    )
    assert cli.main(["embedded-engine", "--port", "8124"]) == 0
    assert served == [{"host": "127.0.0.1", "port": 8124, "model": "glm-ocr"}]


def test_a_simulated_engine_runs_by_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served: list[Any] = []
    monkeypatch.setattr(
        "gateway.engines.simulated.simulated_server.main",
        lambda fit, **options: served.append((fit.name, options)),
    )
    fit = str(ROOT / "gateway/engines/simulated/fits/h100-9b.json")
    assert cli.main(["simulated-engine", "--model-file", fit]) == 0
    schedule = ["--depth", "3", "--schedule", "[[1, 16, 3], [17, 512, 0]]", "--time-scale", "10"]
    assert cli.main(["simulated-engine", "--model-file", "slow-verify", *schedule]) == 0
    (first, options), (second, scheduled) = served
    assert (first, options["depth"], options["schedule"], options["per_request"]) == (
        "h100-9b",
        0,
        None,
        True,
    )
    assert (second, scheduled["depth"], scheduled["time_scale"]) == ("slow-verify", 3, 10.0)
    assert scheduled["schedule"] == [[1, 16, 3], [17, 512, 0]]
    assert "simulated engine, fit slow-verify" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model-file", "none.json"], "none.json"),
        (["--depth", "99"], "0 to 16"),
        (["--depth", "1", "--schedule", "[[2, 3, 1]]"], "starts at 1"),
        (["--depth", "1", "--schedule", "[]"], "starts at 1"),
        (["--depth", "1", "--schedule", "7"], "list"),
    ],
)
def test_a_simulated_engine_refuses_what_it_cannot_run(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["simulated-engine", *options]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--time-scale", "0"], ["--schedule", "{"], ["--time-scale", "inf"]])
def test_wrong_options_of_a_simulated_engine_are_usage_errors(options: list[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["simulated-engine", *options])


def test_a_sweep_without_its_extra_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert cli.main(["sweep", "--out", "out"]) == 1
    assert capsys.readouterr().err == "sweep needs matplotlib and rich: pip install 'ocr-gateway[sweep]'\n"


def test_a_sweep_gets_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[Any] = []
    monkeypatch.setattr("gateway.tools.sweep.sweep_command.run", lambda options: swept.append(options) or 3)
    assert cli.main(["sweep", "--out", "out", "--engine", "3=http://gpu:8000", "--concurrency", "1,64"]) == 3
    assert swept[0].engine == [(3, "http://gpu:8000")]
    assert swept[0].concurrency == (1, 64)


def test_ctrl_c_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gateway.tools.sweep.sweep_command.run", interrupted)
    assert cli.main(["sweep", "--out", "out"]) == 130


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"ocr-gateway {__version__}\n"


def test_the_demonstration_gets_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr("gateway.tools.demo.demo_command.run", lambda options: shown.append(options) or 3)
    assert cli.main(["demo"]) == 3
    assert cli.main(["demo", "--port=8123", "--minutes=2", "--prometheus=never"]) == 3
    first, second = shown
    assert (first.port, first.minutes, first.prometheus) == (8000, float("inf"), "auto")
    assert (second.port, second.minutes, second.prometheus) == (8123, 2.0, "never")


def test_documents_to_read_get_their_options(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    monkeypatch.setattr("gateway.tools.ocr.ocr_command.run", lambda options: read.append(options) or 3)
    assert cli.main(["ocr", "a.pdf", "scans", "--out", "out", "--pages", "0-2", "--recursive"]) == 3
    assert read[0].paths == [Path("a.pdf"), Path("scans")]
    assert (read[0].out, read[0].pages, read[0].recursive) == (Path("out"), (0, 1, 2), True)
