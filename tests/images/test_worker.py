import io
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from gateway.images.worker import REQUEST_HEAD, Inspection, guess_layout, layout_model, serve
from tests.support import data_url, encoded, in_every_format, picture, png

MIB = 2**20
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="told by /proc")


def asked(*images: tuple[bool, bytes]) -> bytes:
    return b"".join(REQUEST_HEAD.pack(guess, len(data)) + data for guess, data in images)


def told(*images: tuple[bool, bytes]) -> list[Inspection]:
    out = io.BytesIO()
    serve(io.BytesIO(asked(*images)), out, layout_model())
    return [msgspec.json.decode(line, type=Inspection) for line in out.getvalue().splitlines()]


def url(image: bytes) -> bytes:
    return data_url(image).encode()


@contextmanager
def program(room: int = 64 * MIB) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "gateway.images.worker", str(room)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def exchange(process: subprocess.Popen[bytes], *images: tuple[bool, bytes]) -> Inspection:
    assert process.stdin
    assert process.stdout
    process.stdin.write(asked(*images))
    process.stdin.flush()
    return msgspec.json.decode(process.stdout.readline(), type=Inspection)


def test_images_are_answered_one_by_one() -> None:
    page = png("some text")
    broken = encoded(picture("words on a page", (300, 300)), "JPEG")[:-900]
    found = guess_layout(page, layout_model())
    said = told((True, url(page)), (False, page), (False, broken), (True, url(broken)))
    assert said[:2] == [Inspection(found.route, found.confidence), Inspection()]
    for inspection in said[2:]:
        assert "truncated or corrupt" in inspection.refused
        assert inspection.code == "invalid_image"


def test_want_of_memory_is_no_fault_of_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    def thumbnail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("gateway.images.worker.thumbnail", thumbnail)
    for guess, data in ((True, url(png())), (False, png())):
        assert told((guess, data)) == [Inspection(failed="needs more memory than it may have")]


def test_the_program_ends_with_what_it_is_asked_by_and_not_before() -> None:
    with program() as process:
        assert exchange(process, (True, url(png("some text")))).route
        for stop in (signal.SIGTERM, signal.SIGINT):
            process.send_signal(stop)
        assert exchange(process, (False, png("some text"))) == Inspection()
        assert process.stdin
        process.stdin.close()
        assert process.wait(30) == 0


@LINUX
def test_the_program_gives_way_to_the_gateway_and_leaves_nothing_behind() -> None:
    with program() as process:
        exchange(process, (False, png()))
        assert resource.prlimit(process.pid, resource.RLIMIT_CORE) == (0, 0)
        least = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(19, least + 10)
        status = Path(f"/proc/{process.pid}")
        assert (status / "oom_score_adj").read_text() == "1000\n"
        assert (status / "fd/2").readlink() == Path(os.devnull)


@LINUX
def test_the_program_takes_no_more_memory_than_it_may() -> None:
    large = encoded(picture("large", (5000, 5000)), "PNG")
    with program(room=32 * MIB) as process:
        for guess, data in ((True, url(large)), (False, large)):
            assert exchange(process, (guess, data)).failed
            assert exchange(process, (True, url(png("some text")))).route


@LINUX
def test_the_memory_it_may_take_is_enough_for_every_format() -> None:
    page = picture("large", (850, 1100))
    with program() as process:
        for data in in_every_format(page):
            assert exchange(process, (True, url(data))) == told((True, url(data)))[0]
