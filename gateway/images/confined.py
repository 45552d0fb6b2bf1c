"""Processes that read hostile files for the gateway: how they are started, and what they may not do."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

# The gateway's own work goes first where both share a core.
_NICENESS = 10
# Where Python and its libraries are found; of the gateway's variables no other, since some hold keys.
_PASSED_ON = ("LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH")
_SETTINGS = {
    "OPENBLAS_NUM_THREADS": "1",  # numpy's own threads would not help, and each takes memory
    # Huge pages: a page of 1700 x 2200 pixels costs 7,000 faults without, 20 ms of the 110 that a PNG takes.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


def start(module: str, end: socket.socket, room: int) -> subprocess.Popen[bytes]:
    """Start a module as a program; it is asked, and tells, over one end of a pair of sockets.

    Args:
        module: its name; see `outlive_signals` and `confine`.
        end: which is its standard input and output.
        room: the bytes of memory that it may take, as its argument.

    Raises:
        OSError: it cannot be started.
    """
    # Not by the event loop: uvloop forks, which stops a gateway that holds a gigabyte for 30 ms and more.
    return subprocess.Popen(  # noqa: S603 - nothing of it comes from outside
        [sys.executable, "-m", module, str(room)],
        stdin=end.fileno(),
        stdout=end.fileno(),
        env={name: os.environ[name] for name in _PASSED_ON if name in os.environ} | _SETTINGS,
        start_new_session=True,  # Ctrl-C is for the gateway, which lets its requests end first
    )


def outlive_signals() -> None:
    """Go on at a stop, which reaches all of a service's processes: the gateway drains, and ends this one."""
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.SIG_IGN)


def confine(room: int) -> None:
    """Take the process away what it does not need to read files that others sent.

    Args:
        room: bytes of memory that may be taken beyond what it has by now.
    """
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core holds documents
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # what libraries say may quote them
    with suppress(OSError, ValueError):  # not Linux
        # Where the machine's memory runs out, this process is to end and not the gateway.
        Path("/proc/self/oom_score_adj").write_text("1000")
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + room
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
