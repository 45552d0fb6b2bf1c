from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gateway import child

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system kills them on Linux only")

PARENT = """
import subprocess, sys
from gateway import child
program = "import time; from gateway import child; child.end_with_parent(); print(flush=True); time.sleep(99)"
inner = subprocess.Popen(child.interpreter("-c", program), stdout=subprocess.PIPE)
inner.stdout.readline()
print(inner.pid, flush=True)
inner.wait()
"""


def is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_a_process_is_killed_with_the_one_that_started_it() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        inner = int(parent.stdout.readline())
        assert is_running(inner)
        parent.kill()
    end = time.monotonic() + 30
    while is_running(inner) and time.monotonic() < end:
        time.sleep(0.01)
    assert not is_running(inner)


def test_the_system_ends_what_uses_too_much_cpu() -> None:
    program = "from gateway import child; child.limit_cpu(0.5)\nwhile True: pass"
    ended = subprocess.run(child.interpreter("-c", program), check=False, timeout=60)
    assert ended.returncode == -signal.SIGXCPU
    raised = "from gateway import child\nfor _ in range(9): child.limit_cpu(5)\nprint(1)"
    assert subprocess.run(child.interpreter("-c", raised), check=True, capture_output=True).stdout == b"1\n"


def test_files_in_the_working_directory_are_no_modules(tmp_path: Path) -> None:
    for name in ("json", "msgspec", "gateway", "PIL"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(7)")
    program = "import json, msgspec, gateway.child, PIL"
    subprocess.run(child.interpreter("-c", program), cwd=tmp_path, check=True)
    assert subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=False).returncode == 7


def test_no_key_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "hush")
    assert "hush" not in child.environment().values()
    assert child.environment()["PATH"] == os.environ["PATH"]
