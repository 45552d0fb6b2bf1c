from __future__ import annotations

import asyncio
import io
import random
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gateway.tools.sweep import run
from gateway.tools.sweep.measure import CellPhase, CellProgress
from gateway.tools.sweep.run import Run
from gateway.tools.sweep.sweep_terminal import SweepDisplay
from gateway.tools.sweep.sweep_values import SweepCell, Window
from gateway.upstream.client import EngineClient
from tests.tools.sweep.test_agenda import GRID, PLAN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gateway.model import Engine
    from gateway.tools.sweep.agenda import SweepPlan
    from gateway.tools.sweep.sweep_terminal import SweepState


def window(cell: SweepCell, engine: str = "e", *reasons: str) -> Window:
    return Window(cell=cell, engine=engine, started="", seconds=120, rate=100, stderr=1, invalid=reasons)


class Told(SweepDisplay):
    """Remembers what a run says."""

    def __init__(self) -> None:
        super().__init__(io.StringIO())
        self.notes: list[str] = []
        self.states: list[SweepState] = []

    def update(self, state: SweepState) -> None:
        self.states.append(state)

    def finished(self, window: Window, state: SweepState) -> None:
        self.states.append(state)

    def note(self, text: str) -> None:
        self.notes.append(text)


class Fake:
    """Stands in for measuring: `reasons` says why a cell on an engine is lost, if it is."""

    def __init__(self, reasons: Callable[[Engine, SweepCell], Iterable[str]] = lambda *_: ()) -> None:
        self.reasons = reasons
        self.kept: list[Window] = []
        self.at_once = 0
        self.most = Counter[str]()
        self._busy = Counter[str]()

    async def measure(
        self, _: Any, engine: Engine, cell: SweepCell, bodies: Any, timing: Any, rng: Any, tell: Any
    ) -> Window:
        assert (bodies, timing) == (cell.route, PLAN.timing)
        self._busy[engine.name] += 1
        self.at_once = max(self.at_once, self._busy.total())
        self.most |= self._busy
        tell(CellProgress(CellPhase.WINDOW, 1, 100, cell.load))
        for _turn in range(3):
            await asyncio.sleep(0)
        self._busy[engine.name] -= 1
        return window(cell, engine.name, *self.reasons(engine, cell))


@pytest.fixture
def well(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of the engines whose /health says that they are."""
    names = {engine.name for engine in PLAN.engines}

    async def healthy(_: EngineClient, engine: Engine, within_s: float) -> bool:
        return engine.name in names

    monkeypatch.setattr(EngineClient, "healthy", healthy)
    return names


async def done(
    monkeypatch: pytest.MonkeyPatch, fake: Fake, plan: SweepPlan = PLAN, before: Iterable[Window] = ()
) -> tuple[Run, Told]:
    monkeypatch.setattr(run, "measure", fake.measure)
    told = Told()
    bodies: Any = {route: route for route in PLAN.options.pools}
    async with EngineClient() as client:
        going = Run(plan, before, client, bodies, fake.kept.append, told, random.Random(0))
        await going.run()
    return going, told


async def test_every_cell_is_measured_once_on_an_engine_of_its_pool(
    monkeypatch: pytest.MonkeyPatch, well: set[str]
) -> None:
    fake = Fake()
    going, told = await done(monkeypatch, fake)
    assert sorted(found.cell for found in fake.kept) == sorted(GRID)
    pools = {engine.name: engine.pool for engine in PLAN.engines}
    assert all(pools[found.engine] == found.cell.pool for found in fake.kept)
    assert fake.at_once == 3
    assert set(fake.most.values()) == {1}
    assert going.windows == fake.kept
    assert (going.due, going.lost, going.gone, told.notes) == ([], [], {}, [])
    last = told.states[-1]
    assert (last.done, last.due, last.invalid, last.left_s) == (len(GRID), 0, 0, 0)
    assert max(state.left_s for state in told.states) > 400


async def test_what_an_earlier_run_measured_is_not_measured_again_unless_it_was_lost(
    monkeypatch: pytest.MonkeyPatch, well: set[str]
) -> None:
    fake = Fake()
    lost = [window(GRID[0], "e", "1 request failed")] * 2
    going, _ = await done(monkeypatch, fake, before=[window(cell) for cell in GRID[2:]] + lost)
    assert sorted(found.cell for found in fake.kept) == sorted(GRID[:2])
    assert len(going.windows) == len(GRID)


async def test_a_lost_window_is_tried_once_more(monkeypatch: pytest.MonkeyPatch, well: set[str]) -> None:
    tries = Counter[SweepCell]()

    def reasons(engine: Engine, cell: SweepCell) -> list[str]:
        tries[cell] += 1
        return ["1 request failed"] if cell == GRID[3] or (cell == GRID[0] and tries[cell] == 1) else []

    going, told = await done(monkeypatch, Fake(reasons))
    assert going.lost == [GRID[3]]
    assert {cell: count for cell, count in tries.items() if count > 1} == {GRID[0]: 2, GRID[3]: 2}
    assert told.states[-1].invalid == 3


async def test_an_engine_that_dies_leaves_its_cells_to_the_others_of_its_pool(
    monkeypatch: pytest.MonkeyPatch, well: set[str]
) -> None:
    well.remove("p1")
    fake = Fake(lambda engine, _: ["the engine died"] if engine.name == "p1" else [])
    going, told = await done(monkeypatch, fake)
    assert going.gone == {"p1": "its /health does not answer 200"}
    assert going.lost == []
    assert {found.cell for found in fake.kept if found.valid} == set(GRID)
    assert told.notes == ["engine p1 gets no more cells: its /health does not answer 200"]
    assert told.states[-1].rows[0].gone == "its /health does not answer 200"


async def test_a_pool_without_an_engine_left_does_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch, well: set[str]
) -> None:
    fake = Fake(lambda engine, _: ["somebody else's requests"] if engine.name == "m1" else [])
    going, told = await done(monkeypatch, fake)
    assert going.gone == {"m1": "3 windows in a row were lost: somebody else's requests"}
    assert {found.cell for found in fake.kept if found.valid} == {c for c in GRID if c.pool == "plain"}
    assert {cell.pool for cell in going.due} == {"mtp3"}
    assert f"pool mtp3 has no engine left; {len(going.due)} of its cells are not measured" in told.notes


async def test_an_engine_that_comes_back_goes_on(monkeypatch: pytest.MonkeyPatch, well: set[str]) -> None:
    asked = 0
    tries = Counter[str]()

    async def healthy(_: EngineClient, engine: Engine, within_s: float) -> bool:
        nonlocal asked
        asked += 1
        return asked > 2

    def reasons(engine: Engine, cell: SweepCell) -> list[str]:
        tries[engine.name] += 1
        return ["the engine died"] if engine.name == "m1" and tries["m1"] == 1 else []

    monkeypatch.setattr(EngineClient, "healthy", healthy)
    plan = replace(PLAN, engines=PLAN.engines[2:], patience_s=60)
    monkeypatch.setattr(run, "_ASK_AGAIN_S", 0)
    going, told = await done(monkeypatch, Fake(reasons), plan=plan)
    assert told.notes == ["engine m1 is not well; it has 60 s to come back"]
    assert (asked, going.gone, going.lost, going.due) == (3, {}, [], [])


async def test_new_cells_come_from_what_was_measured(monkeypatch: pytest.MonkeyPatch, well: set[str]) -> None:
    """Engines that had nothing left to do take part in the repeats that the last window asked for."""
    wanted = [SweepCell("text", "plain", 64, 1), SweepCell("text", "mtp3", 10, 1)]

    def due(plan: SweepPlan, windows: Iterable[Window], route: str) -> list[SweepCell]:
        measured = {window.cell for window in windows}
        left = [cell for cell in [*GRID, *wanted] if cell.route == route and cell not in measured]
        return [cell for cell in left if not cell.repeat] or left

    monkeypatch.setattr(run, "due", due)
    _, told = await done(monkeypatch, fake := Fake())
    assert sorted(found.cell for found in fake.kept) == sorted([*GRID, *wanted])
    assert any(row.cell is None for state in told.states for row in state.rows)
