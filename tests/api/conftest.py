from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio

from tests.api.listening import listening

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.api.listening import Listening


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Listening]:
    async with listening() as gateway:
        yield gateway


@pytest_asyncio.fixture(loop_scope="module")
async def it(shared: Listening) -> AsyncIterator[Listening]:
    """The gateway of this module as it was at first."""
    shared.engine.behave = None
    shared.engine.aborted = 0
    shared.engine.bodies.clear()
    shared.engine.headers.clear()
    shared.connections.refused.clear()
    shared.connections._logged.clear()
    shared.connections._logged_at = 0
    yield shared
    for one in list(shared.connections.connections):
        one.abort()  # type: ignore[union-attr]
    await shared.gone()
    await shared.configure("")
