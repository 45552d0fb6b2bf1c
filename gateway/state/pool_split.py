"""The split of routes between pools that is in force: a plan that knows better than the greedy choice."""

from __future__ import annotations

import logging
import math
from collections import Counter
from typing import TYPE_CHECKING

from gateway.policy.choose.split import SplitInputs, SplitPool

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gateway.policy.choose.split import SplitPlan
    from gateway.state.engine_record import EngineRecord
    from gateway.state.fleet import Fleet

log = logging.getLogger(__name__)


class PoolSplit:
    """The plan in force, if any, and this gateway's share of what it was made for.

    Attributes:
        plan: made by policy.choose.split; its targets are empty where the greedy choice does as well.
        keeps_apart: there is a plan, and it has targets.
    """

    def __init__(self) -> None:
        self.plan: SplitPlan | None = None
        self.keeps_apart = False
        self._engines: Counter[str] = Counter()
        self._share = 1.0

    def inputs(
        self, fleet: Fleet, records: Iterable[EngineRecord], in_flight: Sequence[int], waiting: Sequence[int]
    ) -> SplitInputs | None:
        """Return what a plan is to be made of; None without all profiles.

        Args:
            fleet: the configuration in force.
            records: all engines'.
            in_flight: our requests by route.
            waiting: those that wait, by route.
        """
        up = [record for record in records if record.view.up]
        engines = Counter(record.engine.pool for record in up)
        last = self.plan if engines == self._engines else None
        self._engines = engines
        ours, foreign = sum(in_flight), sum(record.foreign for record in up)
        self._share = ours / (ours + foreign) if ours else 1.0
        population = [round((own + more) / self._share) for own, more in zip(in_flight, waiting, strict=True)]
        pools = {
            name: SplitPool(fleet.tables[name], count, fleet.serves[name]) for name, count in engines.items()
        }
        return SplitInputs(last, population, pools) if fleet.profiled else None

    def adopt(self, plan: SplitPlan | None) -> bool:
        """Take a plan over, or end the one there is; tell whether that changes where routes go."""
        if plan is self.plan:
            return False
        targets = plan.targets if plan else {}
        did_keep_apart = self.keeps_apart
        self.plan, self.keeps_apart = plan, bool(targets)
        if not (did_keep_apart or targets):
            return False
        counts = {pool: [round(count) for count in part] for pool, part in targets.items()}
        log.info("routes are kept apart: %s", counts) if counts else log.info("routes are kept apart no more")
        return True

    def clear(self) -> None:
        """Forget the plan: it was made for another configuration."""
        self.plan, self.keeps_apart = None, False

    def pool_for(self, route: str, index: int, records: Iterable[EngineRecord]) -> str:
        """Return the pool in which a route is furthest below its part of the plan; empty where it has none.

        Args:
            route: its name.
            index: its index in the configuration's order.
            records: of the engines that it may use.
        """
        if not self.plan:
            return ""
        have: Counter[str] = Counter()
        for record in records:
            have[record.engine.pool] += record.by_route[route]
        lacking = {
            pool: part[index] * self._share - have[pool]
            for pool, part in self.plan.targets.items()
            if part[index]
        }
        return max(lacking, key=lacking.__getitem__, default="")

    def load(self, pool: str) -> int:
        """Return the load that each engine of a pool is to have, which may be past its curve's peak."""
        return math.ceil(self.plan.loads.get(pool, 0)) if self.plan else 0
