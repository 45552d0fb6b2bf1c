"""All engines at once, a cell each, until nothing is left to measure."""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from gateway.tools.output import duration
from gateway.tools.sweep.agenda import due, ordered, remaining_s
from gateway.tools.sweep.measure import measure
from gateway.tools.sweep.sweep_terminal import EngineRow, SweepState
from gateway.upstream.client import EngineClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from random import Random

    from gateway.model import Engine
    from gateway.tools.sweep.agenda import SweepPlan
    from gateway.tools.sweep.measure import CellProgress
    from gateway.tools.sweep.request_bodies import RequestBodies
    from gateway.tools.sweep.sweep_terminal import SweepDisplay
    from gateway.tools.sweep.sweep_values import SweepCell, Window

# Lost windows in a row after which an engine gets no more cells: it would spoil all that are left.
_LOST = 3
_HEALTH_S = 10.0
_ASK_AGAIN_S = 1.0


class Run:
    """One run of a sweep.

    Attributes:
        windows: earlier runs' valid ones, and all of this one.
        gone: engines that get no more cells, with the reason.
    """

    def __init__(
        self,
        plan: SweepPlan,
        before: Iterable[Window],
        client: EngineClient,
        bodies: Mapping[str, RequestBodies],
        add: Callable[[Window], None],
        display: SweepDisplay,
        rng: Random,
    ) -> None:
        """Prepare; nothing is sent.

        Args:
            plan: what to do.
            before: earlier runs' windows; cells of their lost ones are measured again.
            client: asks after engines that had trouble.
            bodies: requests by route.
            add: keeps a window; called as soon as it is done.
            display: is told what goes on.
            rng: for the moments of open loops.
        """
        self._plan = plan
        self._client = client
        self._bodies = bodies
        self._add = add
        self._display = display
        self._rng = rng
        self._clock = asyncio.get_running_loop().time
        self._rows = {engine.name: EngineRow(engine.name, engine.pool) for engine in plan.engines}
        self._took: dict[str, list[float]] = {}
        self._under_way: set[SweepCell] = set()
        self._news = asyncio.Condition()
        self._ends_at = 0.0
        self.windows = [window for window in before if window.valid]
        self._due = {route: due(plan, self.windows, route) for route in plan.options.pools}
        self.gone: dict[str, str] = {}

    @property
    def due(self) -> list[SweepCell]:
        """Cells not measured yet, as far as they are known, the most wanted first."""
        return ordered(cell for cells in self._due.values() for cell in cells)

    @property
    def lost(self) -> list[SweepCell]:
        """Cells of this run without a valid window."""
        valid = {window.cell for window in self.windows if window.valid}
        return sorted({window.cell for window in self.windows} - valid)

    async def run(self) -> None:
        """Measure until nothing is left that an engine could do; windows under way are given up on cancel."""
        self._estimate()
        async with asyncio.TaskGroup() as tasks:
            for engine in self._plan.engines:
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
            if lost and not reason and not await self._is_well(engine):
                reason = "its /health does not answer 200"
            if reason:
                await self._give_up(engine, reason)
                break

    async def _measure(self, engine: Engine, cell: SweepCell) -> Window:
        # A connection left idle since the last cell might be closed under this one's first request.
        async with EngineClient() as client:
            bodies, tell = self._bodies[cell.route], partial(self._tell, engine, cell)
            return await measure(client, engine, cell, bodies, self._plan.timing, self._rng, tell)

    async def _next(self, engine: Engine) -> SweepCell | None:
        """Take the engine's next cell; wait for one as long as others' windows may yet ask for it."""
        async with self._news:
            while True:
                for cell in self.due:
                    if cell.pool == engine.pool and cell not in self._under_way:
                        self._under_way.add(cell)
                        self._tell(engine, cell)
                        return cell
                alive = self._alive()
                if not self._under_way and not any(cell.pool in alive for cell in self.due):
                    return None
                self._tell(engine)
                await self._news.wait()

    async def _finish(self, engine: Engine, window: Window) -> None:
        async with self._news:
            self.windows.append(window)
            # It may take a while, in which other engines are measured.
            route = window.cell.route
            self._due[route] = await asyncio.to_thread(due, self._plan, tuple(self.windows), route)
            self._under_way.discard(window.cell)
            self._rows[engine.name] = EngineRow(engine.name, engine.pool)
            self._estimate()
            self._display.finished(window, self._state())
            self._news.notify_all()

    async def _is_well(self, engine: Engine) -> bool:
        """Whether it is well now, or again before our patience ends."""
        patience_s = self._plan.patience_s
        until = self._clock() + patience_s
        waits = False
        while await self._client.healthy(engine, _HEALTH_S) is not True:
            if self._clock() >= until:
                return False
            if not waits:
                waits = True
                left = duration(patience_s)
                self._display.note(f"engine {engine.name} is not well; it has {left} to come back")
            await asyncio.sleep(_ASK_AGAIN_S)
        return True

    async def _give_up(self, engine: Engine, reason: str) -> None:
        async with self._news:
            self.gone[engine.name] = reason
            self._rows[engine.name] = EngineRow(engine.name, engine.pool, gone=reason)
            self._display.note(f"engine {engine.name} gets no more cells: {reason}")
            if engine.pool not in self._alive():
                left = sum(cell.pool == engine.pool for cell in self.due)
                self._display.note(
                    f"pool {engine.pool} has no engine left; {left} of its cells are not measured"
                )
            self._estimate()
            self._news.notify_all()

    def _alive(self) -> Counter[str]:
        """The pools that have engines, with their number."""
        return Counter(engine.pool for engine in self._plan.engines if engine.name not in self.gone)

    def _estimate(self) -> None:
        alive = self._alive()
        cell_s = {
            pool: statistics.fmean(self._took[pool]) if pool in self._took else self._plan.our_cell_s(pool)
            for pool in alive
        }
        self._ends_at = self._clock() + remaining_s(self.due, alive, cell_s)

    def _tell(
        self, engine: Engine, cell: SweepCell | None = None, progress: CellProgress | None = None
    ) -> None:
        self._rows[engine.name] = EngineRow(engine.name, engine.pool, cell, progress)
        self._display.update(self._state())

    def _state(self) -> SweepState:
        under_way = [row.progress.left_s for row in self._rows.values() if row.progress]
        return SweepState(
            rows=tuple(self._rows.values()),
            done=sum(window.valid for window in self.windows),
            due=len(self.due),
            invalid=sum(not window.valid for window in self.windows),
            left_s=max(self._ends_at - self._clock(), *under_way, 0.0),
            simulated=self._plan.setting.simulated,
        )
