import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.app import layout_model
from gateway.errors import BadImage
from gateway.vision import Vision, look
from tests.support import encoded, picture, png

BROKEN = encoded(picture("words on a page", (300, 300)), "JPEG")[:-900]


async def test_images_are_looked_at_in_threads() -> None:
    with ThreadPoolExecutor(1) as workers:
        vision = Vision(layout_model(), workers)
        page = png("some text")
        assert await vision.guess(page) == look(page, vision.model)
        await vision.verify(page)
        with pytest.raises(BadImage):
            await vision.verify(BROKEN)
        with pytest.raises(BadImage):
            await vision.guess(BROKEN)


async def test_the_event_loop_goes_on_meanwhile() -> None:
    with ThreadPoolExecutor(1) as workers:
        vision = Vision(layout_model(), workers)
        task = asyncio.create_task(vision.guess(encoded(picture("large", (3000, 4000)), "PNG")))
        turns = 0
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 100
