import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from gateway.app import layout_model
from gateway.errors import BadImage
from gateway.vision import Vision, look
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


async def test_only_doubtful_images_are_decoded_to_be_checked(vision: Vision) -> None:
    whole = png("some text")
    middle = len(whole) // 2
    broken = whole[:middle] + bytes(20) + whole[middle + 20 :]
    assert (await vision.inspect(whole, max_pixels=PIXELS, mended=True)).width == 200
    assert (await vision.inspect(broken, max_pixels=PIXELS, mended=False)).complete
    with pytest.raises(BadImage):
        await vision.inspect(broken, max_pixels=PIXELS, mended=True)
    with pytest.raises(BadImage):
        await vision.inspect(BROKEN, max_pixels=PIXELS, mended=False)


async def test_large_images_are_inspected_beside_the_event_loop(
    vision: Vision, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def inspect(*_: object, **__: object) -> None:
        threads.append(threading.get_ident())
        raise BadImage("seen")

    monkeypatch.setattr("gateway.vision.images.inspect", inspect)
    noise = np.random.default_rng(1).integers(0, 256, (400, 400, 3), dtype=np.uint8)
    for data in (png("small"), encoded(Image.fromarray(noise), "PNG")):
        with pytest.raises(BadImage, match="seen"):
            await vision.inspect(data, max_pixels=PIXELS, mended=False)
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
        assert not (await vision.inspect(BROKEN, max_pixels=PIXELS, mended=False)).complete
        go_on.set()
