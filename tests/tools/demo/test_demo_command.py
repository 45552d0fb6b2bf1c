import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
from pathlib import Path

import pytest

from bench.serving import free_port
from gateway.tools.demo import demo_command
from gateway.tools.demo.processes import ServiceFailed, is_free

LONG_S = 120


def demo(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "gateway.cli", "demo", *arguments],
        env={**os.environ, "PATH": "/nonexistent"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def children(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts processes as Linux tells them")
def test_it_tells_what_goes_on_and_leaves_nothing_behind() -> None:
    port = free_port()
    with demo(f"--port={port}") as process:
        assert process.stdout
        assert process.stderr
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if re.match(r"simulated +\d:\d\d", line):
                break
        started = children(process.pid)
        assert len(started) == 5
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read().splitlines()
        assert process.wait(LONG_S) == 0
        assert process.stderr.read() == ""
    assert rest[-1] == "simulated: ended"
    assert all(line.startswith("simulated") for line in [*lines, *rest])
    assert f"http://127.0.0.1:{port}/" in "".join(lines)
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)
    assert is_free(port)


def test_it_ends_after_its_minutes() -> None:
    with demo("--port=0", "--minutes=0.01", "--prometheus=never") as process:
        said, _ = process.communicate(timeout=LONG_S)
        assert process.returncode == 0
    assert said.splitlines()[-1] == "simulated: ended"


def test_a_reader_that_leaves_ends_it() -> None:
    with demo("--port=0") as process:
        assert process.stdout
        assert process.stderr
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(LONG_S) == 0
        assert process.stderr.read() == ""


def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with demo(f"--port={port}") as process:
            _, said = process.communicate(timeout=LONG_S)
            assert process.returncode == 1
    assert said.startswith(f"simulated: port {port} is taken: choose another one, such as --port ")


def test_a_gateway_that_does_not_answer_is_told() -> None:
    with pytest.raises(ServiceFailed, match="metrics cannot be read") as failed:
        demo_command.reading("http://127.0.0.1:9")
    assert isinstance(failed.value.__cause__, urllib.error.URLError)
