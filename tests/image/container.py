"""Runs a built image as a strict container engine would, without one.

Namespaces of its own, so that its server is process 1; a read-only root; /tmp in memory; the image's user,
without any capability and without a way to get one; the image's environment and nothing of ours.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from bench.serving import Served

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.image.builder import Image

URL = "http://127.0.0.1:8000"
_START_S = 60
# In a mount namespace of its own, so that all of it ends with the process.
_ENTER = """
root=$1 routes=$2; shift 2
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777,size=512m,nosuid,nodev tmpfs "$root/tmp"
if [ -n "$routes" ]; then mount --bind "$routes" "$root/etc/ocr-gateway"; fi
exec chroot "$root" "$@"
"""


class Container:
    """A running one."""

    def __init__(self, image: Image, process: subprocess.Popen[bytes]) -> None:
        self.image = image
        self.process = process
        self.served = Served(URL, process)

    @property
    def pid(self) -> int:
        """Process 1 of the container, as it is numbered outside, once it is locked in.

        Raises:
            RuntimeError: there is none.
        """
        end = time.monotonic() + _START_S
        while self.process.poll() is None and time.monotonic() < end:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            if children and _status(int(children[0])).get("NoNewPrivs") == "1":
                return int(children[0])
            time.sleep(0.02)
        raise RuntimeError("the container does not run")

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run one more command inside, as the image's user."""
        enter = ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--root"]
        return subprocess.run(
            [*enter, *_drop(self.image), *command], capture_output=True, text=True, check=False
        )

    def healthy(self) -> bool:
        """What the image's HEALTHCHECK says."""
        kind, *command = self.image.config["Healthcheck"]["Test"]
        assert kind == "CMD"
        return self.execute(*command).returncode == 0

    def status(self) -> dict[str, str]:
        """The kernel's word on process 1."""
        return _status(self.pid)

    def terminate(self) -> None:
        """Send SIGTERM to process 1 alone, as every container engine does."""
        os.kill(self.pid, signal.SIGTERM)


@contextmanager
def running(image: Image, routes: Path | None = None, command: Sequence[str] = ()) -> Iterator[Container]:
    """Run an image's entry point until the block is left.

    Args:
        image: what to run.
        routes: the folder with routes.yaml, mounted where the image looks for it.
        command: in place of the image's own.
    """
    arguments = [*image.config["Entrypoint"], *(command or image.config["Cmd"])]
    process = subprocess.Popen(_enter(image, routes, arguments))
    container = Container(image, process)
    try:
        yield container
    finally:
        with suppress(RuntimeError):
            os.kill(container.pid, signal.SIGKILL)  # all the others end with process 1
        process.wait()


def once(image: Image, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in place of an image's entry point, until it ends."""
    return subprocess.run(_enter(image, None, command), capture_output=True, text=True, check=False)


def _enter(image: Image, routes: Path | None, command: Sequence[str]) -> list[str]:
    namespaces = ["unshare", "--mount", "--pid", "--fork", "sh", "-euc", _ENTER, "sh"]
    return [*namespaces, str(image.root), str(routes or ""), *_drop(image), *command]


def _drop(image: Image) -> list[str]:
    user, group = image.config["User"].split(":")
    drop = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--no-new-privs"]
    drop += ["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]
    variables = [f"{name}={value}" for name, value in image.env.items()]
    return [*drop, "env", "-i", "-C", image.config["WorkingDir"], *variables]


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}  # it has ended
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
