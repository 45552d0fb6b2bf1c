"""Fair queues: shares of places, shares of a full queue, nobody starved."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.admit.fairness import FairQueue, Ranks

if TYPE_CHECKING:
    from random import Random

CLIENTS = "abcde"
clients = st.sampled_from(CLIENTS)


class World:
    """A queue before so many places; what is on them, in the order it came there."""

    def __init__(self, places: int) -> None:
        self.queue: FairQueue[tuple[str, int]] = FairQueue()
        self.places = places
        self.on: list[str] = []
        self.served: Counter[str] = Counter()
        self._number = 0

    def join(self, client: str, times: int = 1) -> None:
        for _ in range(times):
            self._number += 1
            self.queue.join((client, self._number), client)

    def fill(self) -> None:
        while len(self.on) < self.places and (item := self.queue.first()):
            self.queue.leave(item)
            self.queue.started(item[0])
            self.on.append(item[0])
            self.served[item[0]] += 1

    def end(self, place: int = 0) -> str:
        client = self.on.pop(place)
        self.queue.ended(client)
        return client

    def everything(self) -> list[tuple[str, int]]:
        found = []
        while item := self.queue.first():
            found.append(item)
            self.queue.leave(item)
        return found

    def step(self) -> None:
        self.fill()
        if self.on:
            self.end()


def max_min(demands: dict[str, int], places: int) -> dict[str, int]:
    """Whole places shared max-min: one by one to who has fewest and wants more."""
    shares = dict.fromkeys(demands, 0)
    for _ in range(places):
        wanting = [client for client in demands if shares[client] < demands[client]]
        if not wanting:
            break
        shares[min(wanting, key=shares.__getitem__)] += 1
    return shares


@given(st.dictionaries(clients, st.integers(1, 30), min_size=1), st.integers(1, 40))
def test_places_are_shared_max_min_whoever_came_first(demands: dict[str, int], places: int) -> None:
    world = World(places)
    for client, demand in demands.items():
        world.join(client, demand)
    world.fill()
    expected = max_min(demands, places)
    have = Counter(world.on)
    assert all(abs(have[client] - share) <= 1 for client, share in expected.items())
    assert len(world.on) == sum(expected.values())
    assert all(
        have[client] == demands[client] for client in demands if demands[client] < min(expected.values())
    )


@given(st.integers(1, 6), st.lists(clients, max_size=80), st.integers(0, 5))
def test_nobody_is_starved_whoever_comes_meanwhile(places: int, coming: list[str], burst: int) -> None:
    world = World(places)
    world.join("a", burst * 20)
    world.fill()
    world.join("b")
    for client in coming:
        world.join(client if client != "b" else "a")
    # Once every other client has had its turn, and who has places has given them back.
    for _ in range(places + len(CLIENTS)):
        world.step()
    assert world.served["b"] == 1


def test_one_place_goes_round() -> None:
    world = World(1)
    world.join("a", 100)
    world.fill()
    world.join("b", 100)
    world.join("c", 100)
    world.end()
    for _ in range(30):
        world.step()
    assert world.served == {"a": 11, "b": 10, "c": 10}


def test_a_client_by_itself_is_served_in_order() -> None:
    queue: FairQueue[int] = FairQueue()
    for item in range(5):
        queue.join(item, "a")
    queue.leave(2)
    queue.leave(2)
    order = []
    while (item := queue.first()) is not None:
        order.append(item)
        queue.leave(item)
        queue.started("a")
    assert order == [0, 1, 3, 4]


def test_clients_of_one_request_each_are_served_in_order() -> None:
    queue: FairQueue[int] = FairQueue()
    for item in range(50):
        queue.join(item, str(item))
    assert list(queue.heads()) == list(range(50))
    for item in range(50):
        assert queue.first() == item
        queue.leave(item)
        queue.started(str(item))


def test_who_is_slow_to_be_served_is_not_given_more_for_it() -> None:
    """Shares are of places held, so a client with long requests does not get more of them at once."""
    world = World(4)
    world.join("long", 100)
    world.join("short", 100)
    for _ in range(40):
        world.fill()
        world.end(world.on.index("short"))
    world.fill()
    assert Counter(world.on) == {"long": 2, "short": 2}


@given(st.lists(st.tuples(clients, st.booleans()), max_size=120), st.integers(1, 12))
def test_a_queue_is_never_overfull_and_the_longest_pays(events: list[tuple[str, bool]], most: int) -> None:
    world = World(0)
    waiting: Counter[str] = Counter()
    for client, leaves in events:
        if leaves and (item := world.queue.first()):
            world.queue.leave(item)
            waiting[item[0]] -= 1
            continue
        world.join(client)
        waiting[client] += 1
        if len(world.queue) > most:
            gone = world.queue.pushed_out(client) or (client, world._number)
            assert waiting[gone[0]] == max(waiting.values())
            world.queue.leave(gone)
            waiting[gone[0]] -= 1
        assert len(world.queue) == waiting.total() <= most


@given(st.dictionaries(clients, st.integers(1, 30), min_size=1), st.integers(1, 40), st.randoms())
def test_a_full_queue_is_shared_max_min(demands: dict[str, int], most: int, random: Random) -> None:
    world = World(0)
    arrivals = [client for client, demand in demands.items() for _ in range(demand)]
    random.shuffle(arrivals)
    for client in arrivals:
        world.join(client)
        if len(world.queue) > most:
            world.queue.leave(world.queue.pushed_out(client) or (client, world._number))
    waiting = Counter(item[0] for item in world.everything())
    shares = max_min(demands, most)
    assert waiting.total() == sum(shares.values())
    assert all(abs(waiting[client] - share) <= 1 for client, share in shares.items())


def test_it_is_the_newest_of_the_longest_that_goes() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "a2", "b1"):
        queue.join(item, item[0])
    queue.join("c1", "c")
    assert queue.pushed_out("c") == "a2"
    queue.leave("a2")
    queue.join("d1", "d")
    assert queue.pushed_out("d") is None


@given(st.dictionaries(clients, st.tuples(st.integers(0, 6), st.integers(0, 20)), min_size=1), clients)
def test_who_goes_before_is_known_beforehand(state: dict[str, tuple[int, int]], client: str) -> None:
    """Without anybody coming or ending, so many are served before the last of a client."""
    world = World(1000)
    for name, (places, _) in state.items():
        for _ in range(places):
            world.queue.started(name)
    for name, (_, waiting) in state.items():
        world.join(name, waiting)
    world.join(client)
    last = (client, world._number)
    told = world.queue.ahead(client)
    world.places = 10_000
    served = 0
    while (item := world.queue.first()) != last:
        assert item is not None
        world.queue.leave(item)
        world.queue.started(item[0])
        served += 1
    # Of equals, each may have its turn before or after.
    assert served <= told <= served + len(CLIENTS)


@given(st.lists(st.tuples(clients, st.integers(0, 3) | st.none()), max_size=60))
def test_ranks_are_those_of_a_sorted_list(steps: list[tuple[str, int | None]]) -> None:
    ranks = Ranks()
    known: dict[str, int] = {}
    for client, count in steps:
        known.pop(client, None)
        if count is None:
            ranks.drop(client)
        else:
            ranks.put(client, count)
            known[client] = count  # a dict keeps the order of arrival
        assert all((name in ranks) == (name in known) for name in CLIENTS)
        if known:
            assert ranks.least() == min(known, key=known.__getitem__)
            assert ranks.most() == max(known, key=known.__getitem__)
        else:
            with pytest.raises(ValueError, match="empty"):
                ranks.least()
