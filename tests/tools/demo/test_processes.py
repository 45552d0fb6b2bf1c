import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from gateway.tools.demo import processes
from gateway.tools.demo.processes import Processes, Service, ServiceFailed

SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_services_run_until_they_are_ended(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    (tmp_path / "health").touch()
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    running = Processes(tmp_path)
    try:
        running.start(
            [Service("pages", command, f"http://127.0.0.1:{port}/health"), Service("other", SLEEPS)]
        )
        assert running.names == ["pages", "other"]
        running.require_alive()
        assert not processes.is_free(port)
    finally:
        running.end()
    assert processes.is_free(port)
    assert running.names == []


def test_one_that_ends_is_told_with_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such fit')"]
    running = Processes(tmp_path)
    with pytest.raises(ServiceFailed, match=r"engine ended with exit status 1\n +no such fit"):
        running.start([Service("engine", command, "http://127.0.0.1:9/")])
    running.end()


def test_one_that_is_never_ready_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_START_S", 0.0)
    running = Processes(tmp_path)
    try:
        with pytest.raises(ServiceFailed, match="sleeper was not ready within 0 s"):
            running.start([Service("sleeper", SLEEPS, "http://127.0.0.1:9/")])
    finally:
        running.end()


def test_one_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_END_S", 0.1)
    stubborn = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); open('deaf', 'w').close(); time.sleep(600)"
    )
    running = Processes(tmp_path)
    running.start([Service("stubborn", [sys.executable, "-c", stubborn])])
    end = time.monotonic() + 60
    while not (tmp_path / "deaf").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    running.end()
    assert running.names == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_interrupts_and_the_second_does_not(number: signal.Signals) -> None:
    code = """
import os, sys
from gateway.tools.demo.processes import interrupted_by_signals
interrupted_by_signals()
try:
    os.kill(os.getpid(), int(sys.argv[1]))
except KeyboardInterrupt:
    os.kill(os.getpid(), int(sys.argv[1]))
    print("ended in order")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(int(number))], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "ended in order\n"


def test_a_free_port_is_neither_taken_nor_avoided() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert not processes.is_free(port)
        found = processes.free_port(port)
        assert found > port
        assert processes.is_free(found)
        assert processes.free_port(port, [found]) > found
    with pytest.raises(ServiceFailed, match="from 65536 on"):
        processes.free_port(65536)


def test_prometheus_takes_part_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert processes.prometheus(tmp_path, 9999, {}) is None
    (tmp_path / "prometheus").write_text("#!/bin/sh\n")
    (tmp_path / "prometheus").chmod(0o755)
    service = processes.prometheus(tmp_path, 9999, {"scrape_configs": []})
    assert service
    assert service.command[0] == str(tmp_path / "prometheus")
    assert "--web.listen-address=127.0.0.1:9999" in service.command
    (config,) = (part.partition("=")[2] for part in service.command if part.startswith("--config.file="))
    assert yaml.safe_load(Path(config).read_text()) == {"scrape_configs": []}
