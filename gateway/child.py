"""Processes that the gateway starts: how their interpreter is called, and how they end with the gateway."""

from __future__ import annotations

import ctypes
import math
import os
import resource
import signal
import sys

# Where Python and its libraries are found, and what settles text, time and threads. No other variable of the
# gateway's: some hold keys.
_PASSED_ON = (
    *("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH", "TMPDIR", "TZ"),
    *("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
)
_PR_SET_PDEATHSIG = 1


def interpreter(*arguments: str) -> list[str]:
    """Return a command line for this Python that takes no module from the working directory.

    That may be a folder into which others write: a mounted configuration, say.
    """
    return [sys.executable, "-P", *arguments]


def environment() -> dict[str, str]:
    """Return what a process needs of the gateway's environment that neither reads it nor holds keys."""
    return {name: os.environ[name] for name in _PASSED_ON if name in os.environ}


def end_with_parent() -> None:
    """Have this process killed when the thread that started it ends, whatever it does then (Linux).

    What started it must live as long as the gateway: its event loop's thread does.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def limit_cpu(seconds: float) -> None:
    """Have the system kill this process once it has used so many seconds of CPU more than by now."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = math.ceil(usage.ru_utime + usage.ru_stime + seconds)
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
