"""Builds the Dockerfile with buildah, on a base that debootstrap makes: no registry of images is asked.

The base and what has been built are kept in the user's cache, outside the repository.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.serving import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

BASE = "localhost/ocr-gateway-base:bookworm"
TARGETS = ("gateway", "embedded")
_PROGRAMS = ("buildah", "debootstrap", "unshare", "nsenter", "setpriv")
_SETTING = re.compile(r"^\S+\.(cert|index-url)='(.*)'$", re.MULTILINE)


@dataclass(frozen=True)
class Image:
    """A built image, its root mounted: changes there stay out of it."""

    target: str
    root: Path
    config: dict[str, Any]
    size: str

    @property
    def env(self) -> dict[str, str]:
        """The image's own environment variables, which a container gets and no others."""
        return dict(entry.split("=", 1) for entry in self.config["Env"])


def lacking() -> str | None:
    """Say what keeps images from being built here; None where nothing does."""
    if os.geteuid():
        return "images are built and mounted by root alone"
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    return f"{', '.join(missing)} not installed" if missing else None


class Builder:
    """buildah with a storage of its own."""

    def __init__(self, scratch: Path) -> None:
        """Use `scratch` for what a restart of the machine must not find again, and for settings of pip."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._storage = ["--root", str(cache / "ocr-gateway/image"), "--runroot", str(scratch / "run")]
        self._scratch = scratch

    def __call__(self, *arguments: str, shown: bool = False) -> str:
        """Run one command; return what it printed, or let it be seen."""
        command = ["buildah", *self._storage, *arguments]
        return str(
            subprocess.run(
                command, cwd=ROOT, check=True, stdout=None if shown else subprocess.PIPE, text=True
            ).stdout
        )

    def make_base(self) -> None:
        """Make Debian with Python, as small as it goes, unless it has been made: 2 to 5 minutes."""
        if self("images", "--quiet", "--filter", f"reference={BASE}"):
            return
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # memory may be too small for it
            subprocess.run(
                ["debootstrap", "--variant=minbase", "--include=python3,python3-venv", "bookworm", folder],
                check=True,
            )
            for path in ("var/cache/apt", "var/lib/apt/lists", "dev"):
                shutil.rmtree(Path(folder, path))
                Path(folder, path).mkdir()
            container = self("from", "scratch").strip()
            self("add", "--quiet", container, folder, "/")
            self("commit", "--quiet", "--rm", container, BASE)

    def build(self, target: str, revision: str) -> str:
        """Build a target; return its name. The default one is built without being named."""
        name = f"localhost/ocr-gateway:{target}"
        command = ["bud", "--isolation=chroot", "--network=host", "--format=docker", f"--tag={name}"]
        command += [f"--build-arg=BASE={BASE}", f"--build-arg=REVISION={revision}", *self._pip()]
        if target != "gateway":
            command.append(f"--target={target}")
        self(*command, ".", shown=True)
        return name

    def _pip(self) -> list[str]:
        """The settings with which this machine's pip reaches its index, as secrets of the build."""
        told = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True
        ).stdout
        settings = dict(sorted(_SETTING.findall(told)))
        secrets = []
        if cert := settings.get("cert"):
            secrets.append(f"--secret=id=ca.crt,src={cert}")
            settings["cert"] = "/run/secrets/ca.crt"
        lines = [f"{name} = {value}" for name, value in settings.items()]
        path = self._scratch / "pip.conf"
        path.write_text("\n".join(["[global]", *lines, ""]))
        return [*secrets, f"--secret=id=pip.conf,src={path}"]

    @contextmanager
    def mounted(self, name: str, target: str) -> Iterator[Image]:
        """Mount an image's root."""
        told = json.loads(self("inspect", "--type", "image", name))
        (row,) = json.loads(self("images", "--json", "--filter", f"reference={name}"))
        container = self("from", name).strip()
        try:
            root = Path(self("mount", container).strip())
            yield Image(target, root, told["Docker"]["config"], row["size"])
        finally:
            self("rm", container)

    def prune(self) -> None:
        """Delete what has lost its name to a newer build."""
        self("rmi", "--prune")
