"""Fixtures of the tests with real vLLM servers: `make test-vllm`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.vllm import tiny_model
from tests.vllm.engines import Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

_made: list[Engine] = []


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's folder."""
    folder = tmp_path_factory.mktemp("checkpoint")
    tiny_model.write(folder)
    return folder


@pytest.fixture(scope="session")
def engine(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Engine]:
    """Makes engines, `engine(depth, *flags)`; they are not started."""

    def make(depth: int, *flags: str) -> Engine:
        log = tmp_path_factory.mktemp("engine") / "vllm.log"
        _made.append(Engine(checkpoint, log, depth, *flags))
        return _made[-1]

    return make


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the engines wrote where a test fails."""
    report = yield
    if report.failed:
        for engine in _made:
            if engine.log.exists():
                report.sections.append((f"vLLM, depth {engine.depth}, {engine.log}", engine.tail()))
    return report
