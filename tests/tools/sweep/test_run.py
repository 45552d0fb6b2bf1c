from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gateway.model import Engine
from gateway.tools.sweep import agenda, run
from gateway.tools.sweep.measure import Phase, Progress, Timing
from gateway.tools.sweep.run import Run, Work, due, guess_s, left_s, ordered
from gateway.tools.sweep.sweep_values import Cell, Pool, Setting, Shape, Window
from gateway.upstream.client import EngineClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gateway.tools.sweep.sweep_progress import Board

ENGINES = (
    Engine("p1", "http://127.0.0.1:9", "plain", 0),
    Engine("p2", "http://127.0.0.1:9", "plain", 0),
    Engine("m1", "http://127.0.0.1:9", "mtp3", 3),
)
SETTING = Setting(
    model="glm-ocr",
    pools={"plain": Pool(0, engines=2), "mtp3": Pool(3, max_load=32)},
    routes={name: Shape("", 1, True, 4096) for name in ("text", "table")},
    loads=(1, 10, 64),
    window_s=120,
    started="",
    tool="",
)
BOTH = ("plain", "mtp3")
WORK = Work(
    setting=SETTING,
    options=agenda.Options(repeats_max=1, pools={"text": BOTH, "table": BOTH}),
    engines=ENGINES,
    timing=Timing(window_s=120, max_warmup_s=300),
    patience_s=0,
)
GRID = [
    Cell(route, pool, load)
    for route in ("text", "table")
    for load in (1, 10, 64)
    for pool in BOTH
    if load <= SETTING.pools[pool].max_load
]


def window(cell: Cell, engine: str = "e", *reasons: str) -> Window:
    return Window(cell=cell, engine=engine, started="", seconds=120, rate=100, stderr=1, invalid=reasons)


class Told:
    """What a run says, instead of a screen."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.boards: list[Board] = []

    def __enter__(self) -> Told:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, board: Board) -> None:
        self.boards.append(board)

    def finished(self, window: Window, board: Board) -> None:
        self.boards.append(board)

    def note(self, text: str) -> None:
        self.notes.append(text)


class Fake:
    """Stands in for measuring: `reasons` says why a cell on an engine is lost, if it is."""

    def __init__(self, reasons: Callable[[Engine, Cell], Iterable[str]] = lambda *_: ()) -> None:
        self.reasons = reasons
        self.kept: list[Window] = []
        self.at_once = 0
        self.most = Counter[str]()
        self._busy = Counter[str]()

    async def measure(
        self, _: Any, engine: Engine, cell: Cell, bodies: Any, timing: Timing, rng: Any, tell: Any
    ) -> Window:
        assert (bodies, timing) == (cell.route, WORK.timing)
        self._busy[engine.name] += 1
        self.at_once = max(self.at_once, self._busy.total())
        self.most |= self._busy
        tell(Progress(Phase.WINDOW, 1, 100, cell.load))
        for _turn in range(3):
            await asyncio.sleep(0)
        self._busy[engine.name] -= 1
        return window(cell, engine.name, *self.reasons(engine, cell))


@pytest.fixture
def well(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of the engines whose /health says that they are."""
    names = {engine.name for engine in ENGINES}

    async def healthy(_: EngineClient, engine: Engine, within_s: float) -> bool:
        return engine.name in names

    monkeypatch.setattr(EngineClient, "healthy", healthy)
    return names


async def done(
    monkeypatch: pytest.MonkeyPatch, fake: Fake, work: Work = WORK, before: Iterable[Window] = ()
) -> tuple[Run, Told]:
    monkeypatch.setattr(run, "measure", fake.measure)
    told = Told()
    bodies: Any = {route: route for route in SETTING.routes}
    async with EngineClient() as client:
        going = Run(work, before, client, bodies, fake.kept.append, told, random.Random(0))
        await going.run()
    return going, told


def test_what_is_due_is_the_grid_up_to_each_pools_max_load() -> None:
    assert [*due(WORK, (), "text"), *due(WORK, (), "table")] == GRID


def test_repeats_wait_until_all_is_measured_once() -> None:
    repeat, first, opened = (
        Cell("text", "plain", 1, 1),
        Cell("table", "plain", 1),
        Cell("text", "plain", 9, 0, 2),
    )
    assert ordered([repeat, opened, first]) == [first, opened, repeat]


def test_a_pool_that_a_route_may_not_use_is_left_out() -> None:
    work = replace(WORK, options=agenda.Options(pools={"table": ("mtp3",)}, rates=(2.5,)))

    assert due(work, (), "table") == [
        Cell("table", "mtp3", 1),
        Cell("table", "mtp3", 10),
        Cell("table", "mtp3", 32, per_s=2.5),
    ]


def test_a_pool_without_engines_waits_for_a_later_run() -> None:
    """With one GPU the pools are measured one after the other, into the same folder."""
    work = replace(WORK, engines=ENGINES[2:])
    earlier = [window(cell) for cell in GRID if cell.pool == "plain"]

    assert due(work, earlier, "text") == [Cell("text", "mtp3", 1), Cell("text", "mtp3", 10)]


def test_time_left_is_that_of_the_slowest_pool() -> None:
    engines, seconds = {"plain": 2, "mtp3": 1, "idle": 1}, {"plain": 100.0, "mtp3": 120.0, "idle": 1.0}
    assert left_s(GRID, engines, seconds) == 480  # four cells on one engine; six on two take 300 s
    assert left_s([], engines, seconds) == 0


def test_an_unmeasured_cell_is_guessed_by_its_window_and_the_engines_clock() -> None:
    assert guess_s(WORK, "plain") == 120 + 60 + 30
    assert guess_s(replace(WORK, scales={"p1": 10, "p2": 10}), "plain") == 21
    assert guess_s(replace(WORK, timing=Timing(120, 20)), "gone") == 120 + 20 + 30


async def test_every_cell_is_measured_once_on_an_engine_of_its_pool(
    monkeypatch: pytest.MonkeyPatch, well: set[str]
) -> None:
    fake = Fake()

    going, told = await done(monkeypatch, fake)

    assert sorted(found.cell for found in fake.kept) == sorted(GRID)
    pools = {engine.name: engine.pool for engine in ENGINES}
    assert all(pools[found.engine] == found.cell.pool for found in fake.kept)
    assert fake.at_once == 3
    assert set(fake.most.values()) == {1}
    assert going.windows == fake.kept
    assert (going.due, going.lost, going.gone, told.notes) == ([], [], {}, [])
    last = told.boards[-1]
    assert (last.done, last.due, last.invalid, last.left_s) == (len(GRID), 0, 0, 0)
    assert max(board.left_s for board in told.boards) > 400


async def test_what_an_earlier_run_measured_is_not_measured_again_unless_it_was_lost(
    monkeypatch: pytest.MonkeyPatch, well: set[str]
) -> None:
    fake = Fake()
    lost = [window(GRID[0], "e", "1 request failed")] * 2

    going, _ = await done(monkeypatch, fake, before=[window(cell) for cell in GRID[2:]] + lost)

    assert sorted(found.cell for found in fake.kept) == sorted(GRID[:2])
    assert len(going.windows) == len(GRID)


async def test_a_lost_window_is_tried_once_more(monkeypatch: pytest.MonkeyPatch, well: set[str]) -> None:
    tries = Counter[Cell]()

    def reasons(engine: Engine, cell: Cell) -> list[str]:
        tries[cell] += 1
        return ["1 request failed"] if cell == GRID[3] or (cell == GRID[0] and tries[cell] == 1) else []

    going, told = await done(monkeypatch, Fake(reasons))

    assert going.lost == [GRID[3]]
    assert {cell: count for cell, count in tries.items() if count > 1} == {GRID[0]: 2, GRID[3]: 2}
    assert told.boards[-1].invalid == 3


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
    assert told.boards[-1].rows[0].gone == "its /health does not answer 200"


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

    def reasons(engine: Engine, cell: Cell) -> list[str]:
        tries[engine.name] += 1
        return ["the engine died"] if engine.name == "m1" and tries["m1"] == 1 else []

    monkeypatch.setattr(EngineClient, "healthy", healthy)
    work = replace(WORK, engines=ENGINES[2:], patience_s=60)
    monkeypatch.setattr(run, "_ASK_AGAIN_S", 0)

    going, told = await done(monkeypatch, Fake(reasons), work=work)

    assert told.notes == ["engine m1 is not well; it has 60 s to come back"]
    assert (asked, going.gone, going.lost, going.due) == (3, {}, [], [])


async def test_new_cells_come_from_what_was_measured(monkeypatch: pytest.MonkeyPatch, well: set[str]) -> None:
    """Engines that had nothing left to do take part in the repeats that the last window asked for."""
    wanted = [Cell("text", "plain", 64, 1), Cell("text", "mtp3", 10, 1)]

    def next_cells(setting: Setting, windows: Iterable[Window], options: agenda.Options) -> list[Cell]:
        measured = {window.cell for window in windows}
        left = [c for c in [*GRID, *wanted] if c.route in setting.routes and c not in measured]
        return [cell for cell in left if not cell.repeat] or left

    monkeypatch.setattr(agenda, "next_cells", next_cells)

    _, told = await done(monkeypatch, fake := Fake())

    assert sorted(found.cell for found in fake.kept) == sorted([*GRID, *wanted])
    assert any(row.cell is None for board in told.boards for row in board.rows)
