"""Processes that read hostile files for the gateway: how they are started, and what they may not do."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gateway import child

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter

# The gateway's own work goes first where both share a core.
_NICENESS = 10
_SETTINGS = {
    "OPENBLAS_NUM_THREADS": "1",  # numpy's own threads would not help, and each takes memory
    # Huge pages: a page of 1700 x 2200 pixels costs 7,000 faults without, 20 ms of the 110 that a PNG takes.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


class ConfinedProcess(NamedTuple):
    """A process, what it answers, and where requests to it are written."""

    process: subprocess.Popen[bytes]
    responses: StreamReader
    requests: StreamWriter


async def start(module: str, room: int) -> ConfinedProcess:
    """Start a module as a program whose standard input and output is a socket.

    Args:
        module: its name; it calls `outlive_signals` and `confine` itself.
        room: the bytes of memory that it may take, which it gets as its argument.

    Raises:
        OSError: it cannot be started.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        responses, requests = await asyncio.open_unix_connection(sock=ours)
        try:
            # Not by the event loop: uvloop forks, which stops a gateway that holds a gigabyte for 30 ms.
            process = subprocess.Popen(  # noqa: S603, ASYNC220 - nothing of it comes from outside; it takes 1 ms
                child.interpreter("-m", module, str(room)),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                env=child.environment() | _SETTINGS,
                start_new_session=True,  # Ctrl-C is for the gateway, which first lets its requests end
            )
        except OSError:
            requests.close()
            raise
    return ConfinedProcess(process, responses, requests)


def outlive_signals() -> None:
    """Ignore the signals that stop a service: all its processes get them, but the gateway ends this one."""
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.SIG_IGN)


def confine(room: int) -> None:
    """Take from this process what reading other people's files does not need.

    Args:
        room: bytes of memory that it may take beyond what it has now.
    """
    child.end_with_parent()
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would hold documents
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # libraries' messages may quote them
    with suppress(OSError, ValueError):  # not Linux
        # Where the machine's memory runs out, this process is killed and not the gateway.
        Path("/proc/self/oom_score_adj").write_text("1000")
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + room
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
