"""`python -m bench.overhead.install [NAME...]`: the other gateways, in the versions that were measured.

Those in Python get virtual environments of their own; nginx and haproxy are Debian's packages, unpacked only.
All lie in one folder (OVERHEAD_HOME, or the user's cache), which can be deleted.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import TYPE_CHECKING

from bench.overhead.peers import HOME, PEERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.overhead.peers import Peer


def main(arguments: Sequence[str] | None = None) -> None:
    """Install those that are named, or all, unless they are there."""
    names = list(sys.argv[1:] if arguments is None else arguments) or list(PEERS)
    if unknown := [name for name in names if name not in PEERS]:
        sys.exit(f"unknown: {', '.join(unknown)}; known are {', '.join(PEERS)}")
    for peer in (PEERS[name] for name in names):
        if not peer.missing():
            continue
        try:
            install(peer)
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            print(f"{peer.name}: {error}", flush=True)
    left = {name: lacks for name in names if (lacks := PEERS[name].missing())}
    print("\n".join(f"{name} is not there: {lacks}" for name, lacks in left.items()) or f"all in {HOME}")


def install(peer: Peer, home: Path = HOME) -> None:
    """Install one.

    Raises:
        subprocess.CalledProcessError: a package cannot be downloaded or built.
        FileNotFoundError: this is not Debian.
    """
    if peer.requirements:
        folder = home / "venv" / peer.venv
        print(f"{peer.name}: {', '.join(peer.requirements)}", flush=True)
        if not (folder / "bin/python").exists():
            venv.create(folder, with_pip=True)
        pip = [str(folder / "bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
        subprocess.run([*pip, *peer.requirements], check=True)
    if peer.debian:
        _unpack(peer.debian, home / "deb")


def _unpack(packages: Iterable[str], to: Path) -> None:
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "download", *packages], check=True, cwd=folder)
        for package in sorted(Path(folder).glob("*.deb")):
            subprocess.run(["dpkg", "-x", package, to], check=True)


if __name__ == "__main__":
    main()
