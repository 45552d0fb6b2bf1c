"""The engine and the clients in C: in Python they would be busier than what is measured."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
BUILT = CACHE / "ocr-gateway-overhead"


class NoCompilerError(RuntimeError):
    """There is no C compiler."""


@functools.cache
def program(name: str, folder: Path = BUILT) -> Path:
    """Return the program `stub` or `load`; compile it unless the cache has it, compiled from this source.

    Raises:
        NoCompilerError: neither cc nor gcc is there.
        subprocess.CalledProcessError: it does not compile.
    """
    source = HERE / f"{name}.c"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    built = folder / f"{name}-{digest}"
    if built.exists():
        return built
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise NoCompilerError(
            f"no C compiler for {source.name}: install gcc and libc6-dev (apt-get), or put cc into PATH"
        )
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{built.name}.{os.getpid()}"
    subprocess.run([compiler, "-O2", "-Wall", "-Wextra", "-o", part, source], check=True)
    part.rename(built)  # two that compile at once leave one whole program
    return built
