import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gateway.errors import BadImage
from gateway.images.inspector import WORKERS, ImageInspector
from gateway.images.worker import guess_layout, layout_model
from gateway.wire.image.headers import as_data_url
from tests.support import data_url, encoded, picture, png, until

PAGE = png("some text")
URL = data_url(PAGE).encode()
BROKEN = encoded(picture("words on a page", (300, 300)), "JPEG")[:-900]
PIXELS = 10**8


@pytest_asyncio.fixture
async def inspector() -> AsyncIterator[ImageInspector]:
    async with ImageInspector() as inspector:
        yield inspector


def later(seconds: float = 60) -> float:
    return asyncio.get_running_loop().time() + seconds


async def stopped(inspector: ImageInspector) -> list[int]:
    """Have as many processes as there may be, and all of them stopped in whatever they do."""
    await asyncio.gather(*(inspector.guess(URL) for _ in range(WORKERS)))
    pids = inspector._workers.pids
    assert len(pids) == WORKERS
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    return pids


async def test_images_are_looked_at_by_processes(inspector: ImageInspector) -> None:
    assert await inspector.guess(URL) == guess_layout(PAGE, layout_model())
    with pytest.raises(BadImage):
        await inspector.guess(data_url(BROKEN).encode())


async def test_an_image_in_doubt_is_decoded(inspector: ImageInspector) -> None:
    middle = len(PAGE) // 2
    broken = PAGE[:middle] + bytes(20) + PAGE[middle + 20 :]
    url, info = await inspector.read(as_data_url, broken, max_pixels=PIXELS)
    assert (url.data, info.width, info.complete) == (broken, 200, True)
    await inspector.decode(PAGE, later(), weight=1)
    for data in (broken, BROKEN):
        with pytest.raises(BadImage):
            await inspector.decode(data, later(), weight=1)


async def test_what_would_fill_the_memory_is_not_decoded(inspector: ImageInspector) -> None:
    weight = 2**40
    await inspector.decode(BROKEN, later(), weight=weight)
    assert await inspector.guess(data_url(BROKEN).encode(), weight=weight) is None
    assert inspector._workers.pids == []


async def test_large_images_are_inspected_beside_the_event_loop(
    inspector: ImageInspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def inspect(*_: object, **__: object) -> None:
        threads.append(threading.get_ident())
        raise BadImage("seen")

    monkeypatch.setattr("gateway.images.inspector.headers.inspect", inspect)
    with pytest.raises(BadImage, match="seen"):
        await inspector.read(as_data_url, PAGE + bytes(8_000_000), max_pixels=PIXELS)
    assert threads != [threading.get_ident()]


async def test_the_event_loop_goes_on_meanwhile(inspector: ImageInspector) -> None:
    large = data_url(encoded(picture("large", (3000, 4000)), "PNG")).encode()
    task = asyncio.create_task(inspector.guess(large))
    turns = 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 100
    assert task.result()


async def test_1600_looks_at_once_wait_no_longer_than_their_patience(inspector: ImageInspector) -> None:
    pids = await stopped(inspector)
    inspector.patience_s = 0.05
    assert await asyncio.gather(*(inspector.guess(URL) for _ in range(1600))) == [None] * 1600
    await asyncio.gather(*(inspector.decode(BROKEN, later(0), weight=1) for _ in range(1600)))
    assert inspector._workers.pids == pids  # nor has anybody been let in beside those that still work
    inspector.patience_s = 60
    last = asyncio.create_task(inspector.guess(URL))
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    assert await last


async def test_who_gives_up_leaves_nothing_in_the_queue_and_work_keeps_its_turn(
    inspector: ImageInspector,
) -> None:
    pids = await stopped(inspector)
    busy = [asyncio.create_task(inspector.guess(URL)) for _ in range(WORKERS)]
    for task in busy:
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.gather(*busy, return_exceptions=True)
    late = asyncio.create_task(inspector.guess(URL))
    await until(lambda: inspector._decoding.waiting)
    assert not late.done()
    os.kill(pids[0], signal.SIGCONT)  # one of those that nobody waits for ends
    assert await late
    assert inspector._workers.pids == pids


async def test_the_stop_breaks_off_what_is_looked_at() -> None:
    async with ImageInspector() as inspector:
        await stopped(inspector)
        looks = [asyncio.create_task(inspector.guess(URL)) for _ in range(10)]
        await asyncio.sleep(0)
    assert await asyncio.gather(*looks) == [None] * 10
