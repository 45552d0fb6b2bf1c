import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from gateway.app import layout_model
from gateway.errors import BadImage
from gateway.vision import THREADS, Vision, look
from gateway.wire.images import as_data_url
from tests.support import encoded, picture, png

BROKEN = encoded(picture("words on a page", (300, 300)), "JPEG")[:-900]
PIXELS = 10**8


@pytest.fixture
def vision() -> Iterator[Vision]:
    with ThreadPoolExecutor(1) as workers:
        yield Vision(layout_model(), workers)


async def test_images_are_looked_at_in_threads(vision: Vision) -> None:
    page = png("some text")
    assert await vision.guess(page) == look(page, vision.model)
    with pytest.raises(BadImage):
        await vision.guess(BROKEN)


async def test_an_image_in_doubt_is_decoded(vision: Vision) -> None:
    whole = png("some text")
    middle = len(whole) // 2
    broken = whole[:middle] + bytes(20) + whole[middle + 20 :]
    url, info = await vision.read(as_data_url, broken, max_pixels=PIXELS)
    assert (url.data, info.width, info.complete) == (broken, 200, True)
    until = asyncio.get_running_loop().time() + 60
    await vision.decode(whole, until, weight=1)
    for data in (broken, BROKEN):
        with pytest.raises(BadImage):
            await vision.decode(data, until, weight=1)


async def test_what_would_fill_the_memory_is_not_decoded(
    vision: Vision, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.vision.thumbnail", None)
    weight = 2**40
    await vision.decode(BROKEN, asyncio.get_running_loop().time() + 60, weight=weight)
    assert await vision.guess(BROKEN, weight=weight) is None


async def test_large_images_are_inspected_beside_the_event_loop(
    vision: Vision, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def inspect(*_: object, **__: object) -> None:
        threads.append(threading.get_ident())
        raise BadImage("seen")

    monkeypatch.setattr("gateway.vision.images.inspect", inspect)
    noise = np.random.default_rng(1).integers(0, 256, (1000, 1000, 3), dtype=np.uint8)
    for data in (png("small"), encoded(Image.fromarray(noise), "PNG")):
        with pytest.raises(BadImage, match="seen"):
            await vision.read(as_data_url, data, max_pixels=PIXELS)
    assert threads[0] == threading.get_ident() != threads[1]


async def test_the_event_loop_goes_on_meanwhile(vision: Vision) -> None:
    task = asyncio.create_task(vision.guess(encoded(picture("large", (3000, 4000)), "PNG")))
    turns = 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 100


async def test_busy_threads_do_not_hold_a_request_for_long() -> None:
    go_on = threading.Event()
    with ThreadPoolExecutor(1) as workers:
        workers.submit(go_on.wait)
        vision = Vision(layout_model(), workers, patience_s=0.01)
        assert await vision.guess(png("text")) is None
        await vision.decode(BROKEN, asyncio.get_running_loop().time(), weight=1)
        go_on.set()


async def test_who_gives_up_leaves_nothing_in_the_threads_queue_and_work_keeps_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on, begun = threading.Event(), threading.Semaphore(0)
    seen: list[bytes] = []

    def slow(data: bytes, _: int) -> None:
        seen.append(data)
        begun.release()
        go_on.wait()

    monkeypatch.setattr("gateway.vision.thumbnail", slow)
    now = asyncio.get_running_loop().time
    with ThreadPoolExecutor(8) as workers:
        vision = Vision(layout_model(), workers)
        busy = [asyncio.create_task(vision.decode(b"%d" % n, now() + 60, weight=1)) for n in range(THREADS)]
        await asyncio.to_thread(lambda: [begun.acquire() for _ in range(THREADS)])
        busy[0].cancel()
        await asyncio.gather(busy[0], return_exceptions=True)
        # Its thread still works: nobody else begins, although there are threads.
        await asyncio.gather(*(vision.decode(b"late", now(), weight=1) for _ in range(500)))
        assert len(seen) == THREADS
        go_on.set()
        await busy[1]
        await vision.decode(b"next", now() + 60, weight=1)
    assert seen[THREADS:] == [b"next"]
