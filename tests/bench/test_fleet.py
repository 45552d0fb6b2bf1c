from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.choice.choosers import Pinned, least_loaded
from bench.choice.fleet import ROUTES, Fleet, Pool, World, measure
from bench.choice.sweep import fit_of, model_rate

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bench.choice.fleet import Result

PAIR = Fleet("pair", (Pool("deep", 3), Pool("plain", 0)))


def pinned(seed: int) -> Result:
    world = World(fit_of("h100-9b"), PAIR, seed=seed)
    split = Pinned({"deep-0": {"table": 20}, "plain-0": {"table": 30}})
    world.clients(lambda _: split, {"table": 50})
    return measure(world, 20, 100)


def test_pinned_clients_get_what_the_model_says_and_little_s_law_holds() -> None:
    result = pinned(1)
    expected = model_rate("h100-9b", 3, (), (0, 0, 20)) + model_rate("h100-9b", 0, (), (0, 0, 30))
    assert result.rate == pytest.approx(expected, rel=0.04)
    tokens = fit_of("h100-9b").routes["table"].output_tokens
    assert result.latency == pytest.approx(50 * tokens / expected, rel=0.1)
    assert result.by_route["table"] == pytest.approx(result.rate, rel=0.1)
    assert result.by_route["text"] == 0


def test_the_same_seed_gives_the_same_figures() -> None:
    assert pinned(1) == pinned(1)
    assert pinned(1) != pinned(2)


def test_clients_come_at_once_and_leave_with_their_answer() -> None:
    world = World(fit_of("h100-9b"), PAIR, seed=1)
    rule = least_loaded(world)
    world.at(0.0, lambda: world.clients(lambda _: rule, {"text": 12, "table": 4}))
    world.at(5.0, lambda: world.clients(lambda _: rule, {"text": 3, "table": 6}))
    world.run(4.9)
    assert [sum(load[route] for load in world.load.values()) for route in ROUTES] == [12, 0, 4]
    world.run(5.0)
    assert sum(load["table"] for load in world.load.values()) == 6
    world.run(15.0)
    assert [sum(load[route] for load in world.load.values()) for route in ROUTES] == [3, 0, 6]
    assert {name: clock.running + clock.waiting for name, clock in world.clocks.items()} == {
        name: sum(load.values()) for name, load in world.load.items()
    }


class OneAtATime:
    """Lets one request in, and the next one when that is answered."""

    def __init__(self) -> None:
        self._busy = False
        self._queue: list[int] = []

    def begin(self, client: int, route: str) -> str | None:
        if self._busy:
            self._queue.append(client)
            return None
        self._busy = True
        return "deep-0"

    def end(self, client: int, tokens: int) -> Iterable[tuple[int, str]]:
        if self._queue:
            return [(self._queue.pop(0), "deep-0")]
        self._busy = False
        return ()


def test_time_in_the_queue_is_part_of_the_latency() -> None:
    world = World(fit_of("h100-9b"), PAIR, seed=1)
    rule = OneAtATime()
    world.clients(lambda _: rule, {"text": 4})
    result = measure(world, 10, 60)
    alone = model_rate("h100-9b", 3, (), (1, 0, 0))
    assert result.rate == pytest.approx(alone, rel=0.15)
    assert result.latency == pytest.approx(
        4 * fit_of("h100-9b").routes["text"].output_tokens / alone, rel=0.15
    )
