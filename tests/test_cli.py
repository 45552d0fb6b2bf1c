import contextlib
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.serving import free_port
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


def test_a_reload_asked_for_before_all_is_loaded_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command is ready to be told within some 50 ms: what takes longer is loaded after that."""
    loads = "import sys, gateway.cli; print('uvicorn' in sys.modules or 'pydantic' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", loads], check=True, capture_output=True)
    assert loaded.stdout == b"False\n"
    before = signal.getsignal(signal.SIGHUP)
    found: list[Any] = []
    monkeypatch.setattr(
        "gateway.tools.serve_command.serve", lambda _: found.append(signal.getsignal(signal.SIGHUP)) or 0
    )
    try:
        assert cli.main(["serve"]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    assert found == [signal.SIG_IGN]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", "<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_it_serves_and_stops_whichever_standard_streams_are_closed(closed: str, tmp_path: Path) -> None:
    config, port = tmp_path / "routes.yaml", free_port()
    config.write_text(
        "model: m\npools: {p: {engines: [http://127.0.0.1:1]}}\nroutes: {text: {}}\nserver: {linger_s: 0}\n"
    )
    command = f"exec {sys.executable} -m gateway.cli serve --config {config} --port {port} {closed}"
    with subprocess.Popen(["sh", "-c", command], stdin=subprocess.DEVNULL) as process:
        while process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                    break
        process.terminate()
        assert process.wait(60) in (0, -signal.SIGTERM)
