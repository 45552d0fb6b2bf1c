from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.server.background import background
from tests.support import until

if TYPE_CHECKING:
    import pytest


async def test_a_background_task_that_fails_is_not_swallowed(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise RuntimeError("the poller broke")

    async with background(fail()):
        await until(lambda: "the poller broke" in caplog.text)
