"""The memory a process may use, as machines and containers tell it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gateway.server import machine
from gateway.server.machine import memory_bytes

if TYPE_CHECKING:
    from pathlib import Path

INSTALLED = 64 * 2**30
UNLIMITED_V1 = "9223372036854771712"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, INSTALLED),
        ({"proc/self/cgroup": "0::/\n"}, INSTALLED),
        # A container of version 2 sees itself as the root.
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "536870912\n"}, 2**29),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, INSTALLED),
        # A service of systemd's: the least limit on the way up holds.
        (
            {
                "proc/self/cgroup": "0::/system.slice/gateway.service\n",
                "sys/fs/cgroup/system.slice/gateway.service/memory.max": "max\n",
                "sys/fs/cgroup/system.slice/memory.max": "1073741824\n",
            },
            2**30,
        ),
        # Version 1, in a container that is told its path on the host.
        (
            {
                "proc/self/cgroup": "11:cpu,cpuacct:/docker/a\n4:memory:/docker/a\n1:name=systemd:/d\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "268435456\n",
                "sys/fs/cgroup/memory.max": "1\n",
            },
            2**28,
        ),
        # Both at once; version 1 writes "no limit" as a number.
        (
            {
                "proc/self/cgroup": "4:memory:/a\n0::/\n",
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": UNLIMITED_V1,
            },
            INSTALLED,
        ),
        ({"proc/self/cgroup": "nonsense\n:\n0::/../..\n", "sys/fs/cgroup/memory.max": "lots"}, INSTALLED),
    ],
)
def test_the_least_limit_holds(files: dict[str, str], expected: int, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory_bytes(tmp_path, INSTALLED) == expected


def test_this_machine_has_some() -> None:
    assert 2**27 < memory_bytes() < 2**50


def test_where_nothing_tells_something_is_assumed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unknown(_: str) -> int:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "sysconf", unknown)
    assert memory_bytes(tmp_path) == machine._ASSUMED_BYTES


def test_freed_memory_is_kept_for_the_next_body_and_given_back_on_demand() -> None:
    code = (
        "from gateway.server.machine import keep_memory, return_memory\n"
        "from pathlib import Path\n"
        "rss = lambda: int(Path('/proc/self/statm').read_text().split()[1]) * 4096 // 2**20\n"
        "assert keep_memory()\n"
        "bodies = [bytes(1_500_000) for _ in range(100)]\n"
        "small = [bytes(100) for _ in range(1000)]\n"  # above them in the heap
        "full = rss()\n"
        "del bodies\n"
        "kept = rss()\n"
        "return_memory()\n"
        "print(full, kept, rss())\n"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    full, kept, left = map(int, told.split())
    assert kept > full - 20
    assert left < full - 100


def test_without_glibc_memory_is_as_the_system_deals_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_libc", object)
    assert not machine.keep_memory()
    machine.return_memory()
