"""No page looks like anything here, so that each goes to the default route."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(autouse=True)
def unsorted(monkeypatch: pytest.MonkeyPatch) -> None:
    """No page looks like anything, so that each goes to the default route."""

    async def guess(*_: Any, **__: Any) -> None:
        return None

    monkeypatch.setattr("gateway.images.inspector.ImageInspector.guess", guess)
