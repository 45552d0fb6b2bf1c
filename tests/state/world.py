"""A state, and the time it lives in, which tests make pass."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from gateway.config import parse
from gateway.model import Engine
from gateway.policy.choose.balance import Choice, Fitness
from gateway.policy.choose.split import replanned
from gateway.state.fleet import Fleet
from gateway.state.lease import Lease
from gateway.state.store import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gateway.state.queues import Waiter

CONFIG = """
model: glm-ocr
pools:
  deep:
    speculative_config: {method: mtp, num_speculative_tokens: 3}
    engines: [http://d0:80, http://d1:80]
    max_load: 4
  plain: {engines: [http://p0:80], max_load: 4}
routes:
  text: {schedule: [[1, 63, 3], [64, 4096, 0]]}
  table: {pools: [deep]}
retry: {budget: 0.1}
"""
DEEP = [Engine("d0:80", "http://d0:80", "deep", 3), Engine("d1:80", "http://d1:80", "deep", 3)]
PLAIN = Engine("p0:80", "http://p0:80", "plain", 0)
ALL = [*DEEP, PLAIN]


# Two routes that are best kept apart under load: see tests/policy/choose/test_split.py.
CURVES = {
    "text": {"deep": (0.004, 4e-4, 0), "plain": (0.012, 6e-4, 0)},
    "table": {"deep": (0.004, 1e-4, 4e-6), "plain": (0.012, 5e-5, 1e-7)},
}


class Timers:
    """What is to be called when, as an event loop keeps it; `early_s` is by how much it calls too soon."""

    def __init__(self, early_s: float = 0.0) -> None:
        self.now = 100.0
        self.early_s = early_s
        self.set: list[_Timer] = []

    def call_later(self, delay_s: float, call: Callable[[], None]) -> _Timer:
        timer = _Timer(self, self.now + delay_s - self.early_s, call)
        self.set.append(timer)
        return timer

    def run(self, until: float) -> None:
        """Let the time pass, and call what is due at the moment it is."""
        while due := [timer for timer in self.set if timer.at <= until]:
            timer = min(due, key=lambda timer: timer.at)
            self.set.remove(timer)
            self.now = max(self.now, timer.at)
            timer.call()
        self.now = until


@dataclass(eq=False)
class _Timer:
    timers: Timers
    at: float
    call: Callable[[], None]

    def cancel(self) -> None:
        self.timers.set.remove(self)


class World:
    """A state, and the time it lives in: `now` may be set, and `pass_time` also calls what is due."""

    def __init__(
        self, text: str = CONFIG, engines: Iterable[Engine] = ALL, *, up: bool = True, folder: Path = Path()
    ) -> None:
        self.timers = Timers()
        self.fleet = Fleet.of(parse(text, "routes.yaml", folder, {}))
        self.state = State(
            self.fleet, engines, lambda: self.now, Random(0), call_later=self.timers.call_later
        )
        if up:
            for engine in engines:
                self.state.mark(engine.name, up=True)

    @property
    def now(self) -> float:
        return self.timers.now

    @now.setter
    def now(self, now: float) -> None:
        self.timers.now = now

    def pass_time(self, seconds: float) -> None:
        self.timers.run(self.now + seconds)

    def take(self, route: str = "text", **more: Any) -> Lease:
        taken = self.state.take(route, **more)
        assert isinstance(taken, Lease)
        return taken

    def refused(self, route: str = "text") -> Fitness:
        taken = self.state.take(route)
        assert isinstance(taken, Choice)
        return taken.reason

    def wait(self, route: str = "text", **more: Any) -> tuple[Waiter, list[int]]:
        woken: list[int] = []
        return self.state.wait(route, lambda: woken.append(1), **more), woken

    def load(self, name: str) -> int:
        return next(
            status.view.load for status in self.state.snapshot().engines if status.view.engine.name == name
        )

    def replan(self) -> None:
        situation = self.state.split_inputs()
        self.state.adopt_split(replanned(situation) if situation else None)

    def fill(self, route: str = "text") -> list[Lease]:
        leases = []
        while isinstance(taken := self.state.take(route), Lease):
            leases.append(taken)
        return leases

    def status(self, name: str) -> Any:
        return next(status for status in self.state.snapshot().engines if status.view.engine.name == name)
