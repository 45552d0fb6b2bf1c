"""Fixtures of the tests that build the images: `make test-image`."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from bench.serving import ROOT
from tests.image.builder import TARGETS, Builder, Image, lacking

if TYPE_CHECKING:
    from collections.abc import Iterator

_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_sizes: list[str] = []


@pytest.fixture(scope="session")
def revision() -> str:
    """The commit that the images are labelled with."""
    told = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True)
    return told.stdout.strip()


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory, revision: str) -> Iterator[dict[str, Image]]:
    """Both targets, built and mounted, in a network that holds nothing else."""
    if reason := lacking():
        if os.environ.get("OCR_GATEWAY_TEST_IMAGE"):
            pytest.fail(f"OCR_GATEWAY_TEST_IMAGE is set, but {reason}")
        pytest.skip(reason)
    build = Builder(tmp_path_factory.mktemp("buildah"))
    build.make_base()
    names = {target: build.build(target, revision) for target in TARGETS}
    build.prune()
    with ExitStack() as stack:
        found = {target: stack.enter_context(build.mounted(name, target)) for target, name in names.items()}
        _sizes.extend(map(_size, found.values()))
        _leave_the_network()
        yield found


def _leave_the_network() -> None:
    """Move this thread, and all that it starts from here on, into a network with a loopback alone.

    The image's own command listens on port 8000, which is always free there; what needs the internet fails.
    """
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "no network of its own")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack("16sH14x", b"lo", 0)
        (flags,) = struct.unpack_from("H", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, asked), 16)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def _size(image: Image) -> str:
    own = sum(path.lstat().st_size for path in (image.root / "opt").rglob("*"))
    return f"image {image.target}: {image.size}, of which above its base {own / 1e6:.0f} MB"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the images' sizes."""
    for line in _sizes:
        terminalreporter.write_line(line)
