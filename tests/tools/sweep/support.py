"""Simulated engines for tests of what drives them, in this process; and their requests."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from typing import TYPE_CHECKING

from gateway.engines.simulated.simulated_server import SimulatedEngine
from gateway.engines.simulated.step_model import Fit
from gateway.model import Engine
from gateway.tools.sweep.request_bodies import Image, RequestBodies, prompt_of
from tests.support import png, served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

# Fast enough for short tests, slow enough that this machine keeps up.
SCALE = 20.0


def app(depth: int, scale: float = SCALE) -> object:
    return SimulatedEngine(Fit.builtin("h100-9b"), depth=depth, time_scale=scale).app()


@contextlib.asynccontextmanager
async def simulated(depth: int = 0, scale: float = SCALE) -> AsyncIterator[Engine]:
    """One engine, in this event loop."""
    async with served(app(depth, scale)) as url:
        yield Engine(f"e{depth}", url, f"depth{depth}", depth)


@contextlib.contextmanager
def engines(depths: Sequence[int], scale: float = SCALE) -> Iterator[list[str]]:
    """Engines in a thread of their own, for commands that have an event loop of theirs; yields their URLs."""
    urls: list[str] = []
    up, done = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with contextlib.AsyncExitStack() as stack:
            urls.extend([await stack.enter_async_context(served(app(depth, scale))) for depth in depths])
            up.set()
            await done.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert up.wait(30)
    try:
        yield urls
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
        loop.close()


def bodies(route: str = "text", *, stream: bool = True) -> RequestBodies:
    prompt = prompt_of(route, "glm-ocr", {})
    image = Image(png("x"), "image/png")
    return RequestBodies("glm-ocr", prompt, [image], max_tokens=4096, stream=stream, rng=random.Random(0))
