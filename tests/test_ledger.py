"""Which of an engine's figures are booked, to whom, and that none is booked twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.ledger import Entry, Ledger
from gateway.model import Reading, Speculation
from gateway.policy.acceptance import Sample, Source, total

NOTHING = Speculation(0, 0, 0, (0, 0, 0))
# An answer of 100 drafts, as the engine counts it, as it tells it, and as its stream makes it look.
ANSWER = Speculation(100, 150, 300, (80, 50, 20))
TOLD = Sample(Source.REQUEST, ANSWER)
ESTIMATE = Sample(Source.STREAM, Speculation(100, 148))
MERGED = Sample(Source.STREAM, Speculation(60, 188))


@dataclass
class World:
    """An engine with its counters, and the account that is kept of it."""

    booked: list[tuple[str, Sample]] = field(default_factory=list)
    counted: Speculation = NOTHING
    done: int = 0
    load: int = 0
    at: float = 100.0

    def __post_init__(self) -> None:
        self.ledger = Ledger(lambda route, sample: self.booked.append((route, sample)))
        self.running: list[Entry] = []

    def began(self, route: str = "text") -> Entry:
        entry = self.ledger.began(route)
        self.running.append(entry)
        return entry

    def drafted(self, more: Speculation = ANSWER) -> None:
        self.counted = total(self.counted, more)

    def finished(self, entry: Entry, sample: Sample | None = None) -> None:
        self.running.remove(entry)
        self.done += 1
        self.ledger.finished(entry, sample)

    def answered(self, route: str = "text", sample: Sample | None = None) -> None:
        request = self.began(route)
        self.drafted()
        self.finished(request, sample)

    def read(self, *, others: int = 0, speculates: bool = True) -> None:
        self.at += 1
        self.ledger.read(
            Reading(
                at=self.at,
                load=len(self.running) + others,
                own=len(self.running),
                finished=self.done,
                ended=self.ledger.ended,
                speculation=self.counted if speculates else None,
            )
        )

    def restarted(self) -> None:
        self.counted, self.done = NOTHING, 0

    def figures(self) -> list[tuple[str, Source, float, float]]:
        return [
            (route, sample.source, sample.speculation.drafts, sample.speculation.accepted)
            for route, sample in self.booked
        ]


@pytest.fixture
def world() -> World:
    world = World()
    world.read()
    return world


def test_what_the_answer_tells_counts_at_once(world: World) -> None:
    world.answered("table", TOLD)
    assert world.booked == [("table", TOLD)]
    world.read()
    world.read()
    assert world.booked == [("table", TOLD)]


def test_an_estimate_counts_once_the_counters_bear_it_out(world: World) -> None:
    world.answered("table", ESTIMATE)
    world.read()
    assert world.booked == []
    world.read()
    assert world.booked == [("table", ESTIMATE)]
    world.read()
    assert len(world.booked) == 1


def test_an_estimate_waits_for_a_reading_that_surely_has_its_last_step(world: World) -> None:
    request = world.began()
    world.finished(request, ESTIMATE)  # its client has the last byte, the engine has not counted it yet
    world.read()
    world.drafted()
    world.read()
    assert world.booked == []
    world.read()
    assert world.booked == [("text", ESTIMATE)]


def test_merged_chunks_give_no_estimates_and_the_counters_stand_in(world: World) -> None:
    world.answered("text", MERGED)
    for _ in range(3):
        world.read()
    assert world.ledger.streams_told_true is False
    assert world.figures() == [("text", Source.ENGINE, 100, 150)]
    assert world.booked[0][1].speculation.accepted_per_position == (80, 50, 20)


def test_an_engine_that_merged_is_believed_again_once_it_is_started_anew(world: World) -> None:
    world.answered("text", MERGED)
    world.read()
    world.read()
    world.restarted()
    world.read()
    assert world.ledger.streams_told_true is False
    world.answered("text", ESTIMATE)
    world.read()
    world.read()
    assert world.ledger.streams_told_true
    assert world.figures()[-1] == ("text", Source.STREAM, 100, 148)


def test_a_long_time_without_merging_is_not_held_against_new_merging(world: World) -> None:
    """Over a long time nothing would ever stand out: streams are judged by the last minutes."""
    for _ in range(700):
        world.answered("text", ESTIMATE)
        world.answered("text", None)
        world.read()
    for _ in range(400):
        world.answered("text", MERGED)
        world.read()
    assert world.ledger.streams_told_true is False
    booked = len(world.booked)
    for _ in range(5):
        world.answered("text", MERGED)
        world.read()
    assert all(source is Source.ENGINE for _, source, *_ in world.figures()[booked:])


def test_one_routes_window_is_its_own(world: World) -> None:
    world.answered("table")
    world.answered("table")
    world.read()
    assert world.figures() == [("table", Source.ENGINE, 200, 300)]


def test_a_window_waits_for_its_requests_and_those_it_shares_with_others(world: World) -> None:
    slow = world.began("text")
    world.drafted(Speculation(10, 10, 30, (10, 0, 0)))
    world.read()
    world.drafted(Speculation(20, 20, 60, (20, 0, 0)))
    world.read()
    assert world.booked == []
    world.finished(slow)
    world.read()
    assert world.figures() == [("text", Source.ENGINE, 10, 10), ("text", Source.ENGINE, 20, 20)]


def test_a_window_of_two_routes_is_nobodys(world: World) -> None:
    slow = world.began("text")
    world.answered("table")
    world.read()
    world.drafted()
    world.finished(slow)
    world.read()
    # The second window was text's alone.
    assert world.figures() == [("text", Source.ENGINE, 100, 150)]


def test_nothing_is_counted_twice_where_a_request_tells_at_its_end(world: World) -> None:
    slow = world.began("text")
    world.drafted()
    world.read()
    world.read()
    world.finished(slow, TOLD)
    world.read()
    world.read()
    assert world.booked == [("text", TOLD)]


def test_nothing_is_counted_twice_where_an_estimate_is_believed(world: World) -> None:
    slow = world.began("text")
    world.drafted()
    world.read()
    world.finished(slow, ESTIMATE)
    world.answered("text")  # whole, in the window the stream has ended in
    for _ in range(4):
        world.read()
    assert world.booked == [("text", ESTIMATE)]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_window_with_others_requests_is_nobodys(world: World, when: str) -> None:
    if when == "before":
        world.read(others=1)
    world.answered("text")
    world.read(others=when == "after")
    world.read()
    assert world.booked == []


def test_a_request_that_came_and_went_between_readings_shows_by_its_end(world: World) -> None:
    world.answered("text")
    world.done += 1
    world.read()
    assert world.booked == []


def test_a_request_that_gave_nothing_leaves_its_work_to_the_window(world: World) -> None:
    """An aborted one, one of several choices, one that a stop string ended: its drafts were its route's."""
    aborted = world.began("text")
    world.drafted(Speculation(10, 10, 30, (10, 0, 0)))
    world.finished(aborted)
    world.read()
    assert world.figures() == [("text", Source.ENGINE, 10, 10)]


def test_a_restart_books_nothing_and_loses_no_later_figure(world: World) -> None:
    world.answered("text", TOLD)
    world.read()
    running, told = world.began("text"), world.began("text")
    world.restarted()
    world.finished(running)
    world.finished(told, ESTIMATE)
    world.drafted(Speculation(5, 5, 15, (5, 0, 0)))
    world.read()
    world.read()
    assert world.booked == [("text", TOLD)]
    world.answered("table")
    world.read()
    assert world.figures()[1:] == [("table", Source.ENGINE, 100, 150)]
    assert world.ledger.sums == total(ANSWER, ANSWER)


def test_an_engine_without_speculation_has_no_sums(world: World) -> None:
    world.read(speculates=False)
    world.answered("text")
    world.read(speculates=False)
    assert world.ledger.sums is None
    assert world.booked == []


def test_the_first_reading_is_where_counting_begins() -> None:
    world = World()
    world.drafted()
    world.answered("text", ESTIMATE)
    world.read()
    world.read()
    assert world.booked == []
    assert world.ledger.sums == NOTHING


def test_what_waits_is_bounded(world: World) -> None:
    """An engine whose metrics cannot be read, and one whose request never ends."""
    for _ in range(5000):
        world.answered("text", ESTIMATE)
    assert len(world.ledger._estimates) == world.ledger._windows[0].open == 4096
    endless = World()
    endless.began("text")
    for _ in range(1100):
        endless.read()
    assert len(endless.ledger._windows) <= 1025


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["begin", "end", "end", "read"]),
            st.sampled_from(["text", "table"]),
            st.sampled_from(["told", "estimate", "nothing"]),
        ),
        max_size=60,
    ),
    st.integers(0, 9),
)
def test_never_more_is_booked_than_was_drafted(moves: list[tuple[str, str, str]], seed: int) -> None:
    """Whatever comes in whatever order: no draft is booked twice, or to a route that did not cause it."""
    world, rng = World(), Random(seed)
    world.read()
    true: Counter[str] = Counter()
    gave: Counter[Entry] = Counter()
    for move, route, gives in moves:
        if world.running:
            busy = rng.choice(world.running)
            more = rng.randrange(1, 9)
            world.drafted(Speculation(more, more, 3 * more, (more, 0, 0)))
            true[busy.route] += more
            gave[busy] += more
        if move == "begin":
            world.began(route)
        elif move == "end" and world.running:
            request = rng.choice(world.running)
            drafts = gave[request]
            source = {"told": Source.REQUEST, "estimate": Source.STREAM}.get(gives)
            sample = Sample(source, Speculation(drafts, drafts)) if source and drafts else None
            world.finished(request, sample)
        elif move == "read":
            world.read()
    for request in list(world.running):
        world.finished(request)
    for _ in range(3):
        world.read()
    booked: Counter[str] = Counter()
    for route, _, drafts, accepted in world.figures():
        assert drafts == accepted
        booked[route] += round(drafts)
    for route in ("text", "table"):
        assert booked[route] <= true[route]
    assert not world.ledger._running.total()
    assert not world.ledger._estimates
    assert len(world.ledger._windows) == 1
    assert world.ledger.sums is not None
    assert world.ledger.sums.drafts == true.total()
