from pathlib import Path
from typing import Any

import pytest

from gateway import __version__, cli


def test_the_embedded_engine_runs_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "gateway.engines.embedded.embedded_server.main", lambda **options: served.append(options)
    )
    assert cli.main(["embedded-engine", "--port", "8124"]) == 0
    assert served == [{"host": "127.0.0.1", "port": 8124, "model": "glm-ocr"}]


def test_a_sweep_without_its_extra_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert cli.main(["sweep", "--out", "out"]) == 1
    assert (
        capsys.readouterr().err
        == "sweep needs jinja2, matplotlib and rich: pip install 'ocr-gateway[sweep]'\n"
    )


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
