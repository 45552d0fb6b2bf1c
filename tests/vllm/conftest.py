"""Fixtures of the tests with real vLLM servers: `make test-vllm`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.vllm import tiny_model
from tests.vllm.engines import Engine, Pasted, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from pathlib import Path

_made: list[Server] = []


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
        made = Engine(checkpoint, tmp_path_factory.mktemp("engine") / "vllm.log", depth, *flags)
        _made.append(made)
        return made

    return make


@pytest.fixture(scope="session")
def pasted(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Pasted]:
    """Makes servers of command lines, `pasted(text, url, environment)`; they are not started."""

    def make(text: str, url: str, environment: Mapping[str, str]) -> Pasted:
        made = Pasted(text, url, tmp_path_factory.mktemp("engine") / "vllm.log", environment)
        _made.append(made)
        return made

    return make


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the engines wrote where a test fails."""
    report = yield
    if report.failed:
        for engine in _made:
            if engine.log.exists():
                report.sections.append((f"vLLM, {engine.name}, {engine.log}", engine.tail()))
    return report
