from __future__ import annotations

import pytest

from gateway.engines.embedded.reader import Reader


@pytest.fixture(scope="session")
def reader() -> Reader:
    """The real models, loaded once."""
    return Reader()
