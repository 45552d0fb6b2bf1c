"""All engines at once, a cell each, until nothing is left to measure."""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from gateway.tools.sweep import agenda
from gateway.tools.sweep.measure import measure
from gateway.tools.sweep.sweep_progress import Board, Row, clock
from gateway.upstream.client import EngineClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from random import Random

    from gateway.model import Engine
    from gateway.tools.sweep.measure import Progress, Timing
    from gateway.tools.sweep.request_bodies import Bodies
    from gateway.tools.sweep.sweep_progress import Show
    from gateway.tools.sweep.sweep_values import Cell, Setting, Window

# Lost windows in a row after which an engine gets no more cells: it would spoil all that are left.
_LOST = 3
_WARM_GUESS = 0.5
_DRAIN_GUESS = 0.25
_HEALTH_S = 10.0
_ASK_AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Work:
    """What a sweep is to measure, and on what.

    Attributes:
        setting: of all windows, earlier runs' too.
        options: what is asked for; its `pools` names the routes to measure, each with the pools it may use.
        engines: those at hand; cells of pools without any are left out.
        timing: of one cell.
        scales: how many times as fast as ours an engine's clock runs, by name; 1 where it is not told.
        patience_s: how long an engine that is not well may take to come back; a restart takes minutes.
    """

    setting: Setting
    options: agenda.Options
    engines: Sequence[Engine]
    timing: Timing
    scales: Mapping[str, float] = field(default_factory=dict)
    patience_s: float = 600.0


def due(work: Work, windows: Iterable[Window], route: str) -> list[Cell]:
    """Return a route's cells that are still to be measured, by what is known now.

    Args:
        work: asks for them.
        windows: valid ones, and the lost ones of this run.
        route: one of `work.options.pools`.
    """
    own = [window for window in windows if window.cell.route == route]
    allowed = work.options.pools[route]
    # Earlier runs' pools tell where a crossover is, be their engines gone by now.
    names = {*allowed, *(window.cell.pool for window in own)}
    setting = msgspec.structs.replace(work.setting, routes={route: work.setting.routes[route]})
    cells = agenda.next_cells(setting, own, replace(work.options, pools={route: tuple(names)}))
    at_hand = {engine.pool for engine in work.engines}
    return [cell for cell in cells if cell.pool in at_hand and cell.pool in allowed]


def ordered(cells: Iterable[Cell]) -> list[Cell]:
    """Return cells of all routes as they are wanted: the grid, open loops, then repeats."""
    return sorted(cells, key=lambda cell: (cell.repeat > 0, cell.per_s > 0))


def guess_s(work: Work, pool: str) -> float:
    """Return about how long a cell of a pool takes, in our seconds, before one has been measured."""
    timing = work.timing
    warm_s = min(timing.max_warmup_s, _WARM_GUESS * timing.window_s)
    scale = min(
        (work.scales.get(engine.name, 1.0) for engine in work.engines if engine.pool == pool), default=1
    )
    return (warm_s + timing.window_s * (1 + _DRAIN_GUESS)) / scale


def left_s(cells: Iterable[Cell], engines: Mapping[str, int], cell_s: Mapping[str, float]) -> float:
    """Return how long cells take: pools are at work side by side, their engines share their cells.

    Args:
        cells: to be measured.
        engines: by pool, how many there are.
        cell_s: by pool, how long one takes.
    """
    counts: dict[str, int] = {}
    for cell in cells:
        counts[cell.pool] = counts.get(cell.pool, 0) + 1
    return max(
        (-(-counts[pool] // n) * cell_s[pool] for pool, n in engines.items() if pool in counts), default=0.0
    )


class Run:
    """One run of a sweep.

    Attributes:
        windows: earlier runs' valid ones, and all of this one.
        gone: engines that get no more cells, with the reason.
    """

    def __init__(
        self,
        work: Work,
        before: Iterable[Window],
        client: EngineClient,
        bodies: Mapping[str, Bodies],
        add: Callable[[Window], None],
        show: Show,
        rng: Random,
    ) -> None:
        """Prepare; nothing is sent.

        Args:
            work: what to do.
            before: earlier runs' windows; cells of their lost ones are measured again.
            client: asks after engines that had trouble.
            bodies: requests by route.
            add: keeps a window; called as soon as it is done.
            show: hears what goes on.
            rng: for the moments of open loops.
        """
        self._work = work
        self._client = client
        self._bodies = bodies
        self._add = add
        self._show = show
        self._rng = rng
        self._clock = asyncio.get_running_loop().time
        self._rows = {engine.name: Row(engine.name, engine.pool) for engine in work.engines}
        self._took: dict[str, list[float]] = {}
        self._under_way: set[Cell] = set()
        self._news = asyncio.Condition()
        self._ends_at = 0.0
        self.windows = [window for window in before if window.valid]
        self._due = {route: due(work, self.windows, route) for route in work.options.pools}
        self.gone: dict[str, str] = {}

    @property
    def due(self) -> list[Cell]:
        """Cells not measured yet, as far as they are known, the most wanted first."""
        return ordered(cell for cells in self._due.values() for cell in cells)

    @property
    def lost(self) -> list[Cell]:
        """Cells of this run without a valid window."""
        valid = {window.cell for window in self.windows if window.valid}
        return sorted({window.cell for window in self.windows} - valid)

    async def run(self) -> None:
        """Measure until nothing is left that an engine could do; windows under way are given up on cancel."""
        self._estimate()
        async with asyncio.TaskGroup() as tasks:
            for engine in self._work.engines:
                tasks.create_task(self._serve(engine))

    async def _serve(self, engine: Engine) -> None:
        lost = 0
        while (cell := await self._next(engine)) is not None:
            began = self._clock()
            window = await self._measure(engine, cell)
            self._add(window)
            if window.valid:
                self._took.setdefault(engine.pool, []).append(self._clock() - began)
            await self._finish(engine, window)
            lost = 0 if window.valid else lost + 1
            reason = f"{lost} windows in a row were lost: {window.invalid[-1]}" if lost >= _LOST else ""
            if lost and not reason and not await self._well(engine):
                reason = "its /health does not answer 200"
            if reason:
                await self._give_up(engine, reason)
                break

    async def _measure(self, engine: Engine, cell: Cell) -> Window:
        # A connection left idle since the last cell might be closed under this one's first request.
        async with EngineClient() as client:
            return await measure(
                client,
                engine,
                cell,
                self._bodies[cell.route],
                self._work.timing,
                self._rng,
                partial(self._tell, engine, cell),
            )

    async def _next(self, engine: Engine) -> Cell | None:
        """Take the engine's next cell; wait for one as long as others' windows may yet ask for it."""
        async with self._news:
            while True:
                for cell in self.due:
                    if cell.pool == engine.pool and cell not in self._under_way:
                        self._under_way.add(cell)
                        self._tell(engine, cell, None)
                        return cell
                alive = self._alive()
                if not self._under_way and not any(cell.pool in alive for cell in self.due):
                    return None
                self._tell(engine, None, None)
                await self._news.wait()

    async def _finish(self, engine: Engine, window: Window) -> None:
        async with self._news:
            self.windows.append(window)
            # It may take a while, in which other engines are measured.
            route = window.cell.route
            self._due[route] = await asyncio.to_thread(due, self._work, tuple(self.windows), route)
            self._under_way.discard(window.cell)
            self._rows[engine.name] = Row(engine.name, engine.pool)
            self._estimate()
            self._show.finished(window, self._board())
            self._news.notify_all()

    async def _well(self, engine: Engine) -> bool:
        patience_s = self._work.patience_s
        until = self._clock() + patience_s
        waits = False
        while await self._client.healthy(engine, _HEALTH_S) is not True:
            if self._clock() >= until:
                return False
            if not waits:
                waits = True
                self._show.note(f"engine {engine.name} is not well; it has {clock(patience_s)} to come back")
            await asyncio.sleep(_ASK_AGAIN_S)
        return True

    async def _give_up(self, engine: Engine, reason: str) -> None:
        async with self._news:
            self.gone[engine.name] = reason
            self._rows[engine.name] = Row(engine.name, engine.pool, gone=reason)
            self._show.note(f"engine {engine.name} gets no more cells: {reason}")
            if engine.pool not in self._alive():
                left = sum(cell.pool == engine.pool for cell in self.due)
                self._show.note(
                    f"pool {engine.pool} has no engine left; {left} of its cells are not measured"
                )
            self._estimate()
            self._news.notify_all()

    def _alive(self) -> dict[str, int]:
        """The pools that have engines, with their number."""
        counts: dict[str, int] = {}
        for engine in self._work.engines:
            if engine.name not in self.gone:
                counts[engine.pool] = counts.get(engine.pool, 0) + 1
        return counts

    def _estimate(self) -> None:
        alive = self._alive()
        cell_s = {
            pool: statistics.fmean(self._took[pool]) if pool in self._took else guess_s(self._work, pool)
            for pool in alive
        }
        self._ends_at = self._clock() + left_s(self.due, alive, cell_s)

    def _tell(self, engine: Engine, cell: Cell | None, progress: Progress | None) -> None:
        self._rows[engine.name] = Row(engine.name, engine.pool, cell, progress)
        self._show.update(self._board())

    def _board(self) -> Board:
        under_way = [row.progress.left_s for row in self._rows.values() if row.progress]
        return Board(
            rows=tuple(self._rows.values()),
            done=sum(window.valid for window in self.windows),
            due=len(self.due),
            invalid=sum(not window.valid for window in self.windows),
            left_s=max(self._ends_at - self._clock(), *under_way, 0.0),
            simulated=self._work.setting.simulated,
        )
