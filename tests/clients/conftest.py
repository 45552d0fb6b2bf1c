"""Fixtures of the tests with other people's clients: `make test-clients`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.serving import ROOT
from tests.clients.frame import Client, Watched, client_of, simulating, watched

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    """The client in whose folder the test stands."""
    found = client_of(request.path.parent, tmp_path)
    yield found
    found.end()


@pytest.fixture(scope="session")
def _reading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with watched(ROOT / "routes.yaml", tmp_path_factory.mktemp("reading") / "gateway.log") as found:
        yield found


@pytest.fixture(scope="session")
def _simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with simulating(tmp_path_factory.mktemp("simulated")) as found:
        yield found


@pytest.fixture
def reading(_reading: Watched) -> Iterator[Watched]:
    """A gateway with the engine that really reads, as it is shipped."""
    _reading.settled()
    yield _reading
    _reading.settled()


@pytest.fixture
def simulated(_simulated: Watched) -> Iterator[Watched]:
    """A gateway with two simulated engines, one of them deep; what they suffered is over afterwards."""
    _simulated.settled()
    yield _simulated
    _simulated.heal()
    _simulated.settled()
