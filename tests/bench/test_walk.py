from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from bench.walk import Recorder

# Not the real one, whose coverage is measured.
PACKAGE = "/elsewhere/gateway/"


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.walk.PACKAGE", PACKAGE)


def module(name: str, code: str, **names: Any) -> dict[str, Any]:
    """The names that a file of the package would define."""
    exec(compile(code, PACKAGE + name, "exec"), names)
    return names


async def test_calls_between_files_are_moves_and_returns_resumptions_and_engines_are_none() -> None:
    leaf = module("leaf.py", "def g(): return 1")["g"]
    engine = module("engines/e.py", "def e(call): return call()")["e"]
    code = (
        "async def f():\n    g(); g(); await sleep(0); await sleep(0); return own()\ndef own(): return e(g)"
    )
    top = module("top.py", code, g=leaf, e=engine, sleep=asyncio.sleep)["f"]
    base = module("base.py", "async def run(f): return await f()")["run"]
    recorder = Recorder()
    before = sys.getprofile()
    sys.setprofile(recorder)
    try:
        recorder.begin()
        recorder._background = {asyncio.create_task(asyncio.sleep(0))}
        assert await asyncio.create_task(base(top)) == 1
        recorder.on = False
        await asyncio.create_task(base(top))
    finally:
        sys.setprofile(before)
    assert recorder.moves == {("base.py", "top.py"): 1, ("top.py", "leaf.py"): 3}


async def test_tasks_that_ran_before_are_not_counted() -> None:
    leaf = module("leaf.py", "def g(): return 1")["g"]
    top = module("top.py", "async def f(): return g()", g=leaf)["f"]
    recorder = Recorder()
    before = sys.getprofile()
    sys.setprofile(recorder)
    try:
        recorder.begin()
        await top()
        await top()
    finally:
        sys.setprofile(before)
    assert recorder.moves == {}
