"""CPU time and memory of processes and cores, from /proc (Linux)."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_MIB = 1024


def tree(pid: int) -> list[int]:
    """Return a process and all below it."""
    found = [pid]
    for one in found:
        for children in (_PROC / str(one) / "task").glob("*/children"):
            try:
                found += map(int, children.read_text().split())
            except OSError:
                continue
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return user and system time of processes until now; those that have ended count nothing."""
    total = 0.0
    for pid in pids:
        with suppress(OSError):
            # A process's own clock (clock_getcpuclockid): /proc has hundredths of a second only.
            total += time.clock_gettime(~pid << 3 | 2)
    return total


def core_seconds(core: int) -> float:
    """Return how long a core has been busy, with what the hypervisor took from it."""
    for line in (_PROC / "stat").read_text().splitlines():
        name, *ticks = line.split()
        if name == f"cpu{core}":
            user, nice, system, _idle, _iowait, *rest = map(int, ticks[:8])
            return (user + nice + system + sum(rest)) / _TICKS
    raise LookupError(f"no core {core}")


def reset_peak(pids: Iterable[int]) -> None:
    """Reset the processes' peaks of resident memory."""
    for pid in pids:
        try:
            (_PROC / str(pid) / "clear_refs").write_text("5")
        except OSError:
            continue


def peak_mib(pids: Iterable[int]) -> float:
    """Return the sum of the processes' peaks of resident memory (VmHWM)."""
    return sum(_status_kib(pid, "VmHWM:") for pid in pids) / _MIB


def resident_mib(pids: Iterable[int]) -> float:
    """Return the processes' resident memory now, in all."""
    return sum(_status_kib(pid, "VmRSS:") for pid in pids) / _MIB


def _status_kib(pid: int, name: str) -> int:
    try:
        lines = (_PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)


def first_to_die(pid: int) -> None:
    """Have the kernel end this process and its children before any other where memory runs out."""
    (_PROC / str(pid) / "oom_score_adj").write_text("1000")


def processor() -> str:
    """Name the processor."""
    for line in (_PROC / "cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown processor"


@dataclass(frozen=True, slots=True)
class Moment:
    """CPU time used until one moment, in seconds.

    Attributes:
        at: the moment, on the monotonic clock.
        gateway: CPU time of the gateway's processes.
        engine: CPU time of the engine.
        cores: how long the gateway's core and the other had been busy.
    """

    at: float
    gateway: float
    engine: float
    cores: tuple[float, float]

    @classmethod
    def now(cls, gateway: Sequence[int], engine: int, cores: tuple[int, int]) -> Moment:
        """Read it."""
        busy = core_seconds(cores[0]), core_seconds(cores[1])
        return cls(time.monotonic(), cpu_seconds(gateway), cpu_seconds([engine]), busy)


def shares(before: Moment, after: Moment, client_cpu_s: float) -> dict[str, float]:
    """Return who used which share of each core between two moments.

    Returns:
        gateway, harness: what the gateway, and engine and clients together, used of their cores;
        gateway_foreign, harness_foreign: what other processes used there.
    """
    seconds = after.at - before.at
    gateway = after.gateway - before.gateway
    harness = after.engine - before.engine + client_cpu_s
    busy = [end - start for start, end in zip(before.cores, after.cores, strict=True)]
    return {
        "gateway": gateway / seconds,
        "harness": harness / seconds,
        "gateway_foreign": max(0.0, busy[0] - gateway) / seconds,
        "harness_foreign": max(0.0, busy[1] - harness) / seconds,
    }
