"""`python -m tests.clients.install [NAME...]`: the clients that are tested, each in its own environment.

A client is a folder beside this file, with a requirements.txt for pip or a package.json for npm. The
environments lie in OCR_GATEWAY_CLIENTS, or in the cache of the user, and can be deleted; one is made anew
when what it is made of has changed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).resolve().parent
_STATE = "ocr-gateway-state"


class NotInstalled(Exception):
    """A client cannot be had here; the message says what failed."""


@dataclass(frozen=True)
class Environment:
    """Where a client is installed.

    Attributes:
        client: its folder here.
        home: where all environments lie.
    """

    client: Path
    home: Path

    @property
    def folder(self) -> Path:
        """Where this one lies."""
        return self.home / self.client.name

    @property
    def node(self) -> bool:
        """Whether it is JavaScript."""
        return self._file.name == "package.json"

    @property
    def python(self) -> Path:
        """Its Python."""
        return self.folder / "bin" / "python"

    @property
    def complete(self) -> bool:
        """Whether there is nothing to install."""
        state = self.folder / _STATE
        return state.exists() and state.read_text() == self._digest

    @property
    def _file(self) -> Path:
        package = self.client / "package.json"
        return package if package.exists() else self.client / "requirements.txt"

    @property
    def _digest(self) -> str:
        return hashlib.sha256(self._file.read_bytes()).hexdigest()

    def install(self) -> None:
        """Install it, unless it is there.

        Raises:
            NotInstalled: a command failed.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        with (self.home / f"{self.client.name}.installing").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)  # whoever comes second waits, and finds it done
            if self.complete:
                return
            shutil.rmtree(self.folder, ignore_errors=True)
            if self.node:
                self.folder.mkdir()
                shutil.copy(self._file, self.folder)
                _run("npm", "install", "--no-audit", "--no-fund", "--loglevel=error", cwd=self.folder)
            else:
                _run(sys.executable, "-m", "venv", str(self.folder))
                pip = [str(self.python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
                _run(*pip, "install", "-r", str(self._file))
            (self.folder / _STATE).write_text(self._digest)

    def versions(self) -> str:
        """Return the client's own pins: those above the line that parts them from what they need."""
        if self.node:
            listed = _run("npm", "ls", "--depth=0", "--parseable", "--long", cwd=self.folder)
            return ", ".join(line.rsplit(":", 1)[-1] for line in listed.splitlines()[1:])
        top = self._file.read_text().partition("\n#")[0]
        return ", ".join(line for line in top.splitlines() if line and not line.startswith("#"))

    def megabytes(self) -> float:
        """How much of the disk it takes."""
        return sum(path.lstat().st_size for path in self.folder.rglob("*")) / 1e6


def known() -> list[str]:
    """Return the names of all clients."""
    return sorted(path.parent.name for path in HERE.glob("*/live_*.py"))


def environment(client: Path | str) -> Environment:
    """Return a client's environment, by its folder or name."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = Path(os.environ.get("OCR_GATEWAY_CLIENTS") or cache / "ocr-gateway-clients")
    return Environment(HERE / client, home.expanduser().absolute())


def _run(*command: str, cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(
            command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
    except FileNotFoundError as error:
        raise NotInstalled(f"{command[0]} is not here") from error
    if done.returncode:
        said = [line for line in done.stdout.splitlines() if not line.startswith("WARNING")]
        raise NotInstalled(f"{' '.join(command[:6])} failed:\n" + "\n".join(said[-15:]))
    return done.stdout


def main(arguments: Sequence[str]) -> int:
    """Install those that are named, or all; tell what is there, and what is not."""
    names = list(arguments) or known()
    if unknown := sorted(set(names) - set(known())):
        print(f"unknown: {', '.join(unknown)}; known are {', '.join(known())}")
        return 2
    failed = 0
    for name in names:
        began, one = time.monotonic(), environment(name)
        try:
            one.install()
        except NotInstalled as error:
            failed = 1
            print(f"{name} is not installed: {error}", flush=True)
        else:
            took = time.monotonic() - began
            print(f"{name}: {one.versions()}; {one.megabytes():,.0f} MB, {took:.0f} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
