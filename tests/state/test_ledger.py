"""Which of an engine's figures are booked, to whom, and that none is booked twice."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.model import Reading, Speculation, SpeculationFault
from gateway.policy.account.acceptance import Sample, Source, of_answer, total
from gateway.state.ledger import AnswerKind, LedgerEntry, SpeculationLedger, SpeculationTally

NOTHING = Speculation(0, 0, 0, (0, 0, 0))
# An answer of 100 drafts, as the engine counts it, as it tells it, and as its stream makes it look.
ANSWER = Speculation(100, 150, 300, (80, 50, 20))
TOLD = Sample(Source.REQUEST, ANSWER)
ESTIMATE = Sample(Source.STREAM, Speculation(100, 148))
HELD_BACK = 31


@dataclass
class World:
    """An engine with its counters, and the account that is kept of it; a reading is a second."""

    booked: list[tuple[str, Sample]] = field(default_factory=list)
    rejected: list[SpeculationFault] = field(default_factory=list)
    is_of_depth: bool = True
    counted: Speculation = NOTHING
    done: int = 0
    written: int = 0
    at: float = 100.0

    def __post_init__(self) -> None:
        self.ledger = SpeculationLedger("pool", self._book, self.rejected.append)
        self.running: list[LedgerEntry] = []

    def _book(self, route: str, pool: str, sample: Sample) -> bool:
        assert pool == "pool"
        if self.is_of_depth:
            self.booked.append((route, sample))
        return self.is_of_depth

    def began(self, route: str = "text", kind: AnswerKind = AnswerKind.WHOLE) -> LedgerEntry:
        entry = self.ledger.request_sent(route, kind)
        self.running.append(entry)
        return entry

    def drafted(self, more: Speculation = ANSWER) -> None:
        self.counted = total(self.counted, more)
        self.written += 1

    def finished(self, entry: LedgerEntry, sample: Sample | None = None, *, complete: bool = True) -> None:
        """End a request; of one that is broken off vLLM counts no end."""
        self.running.remove(entry)
        self.done += complete
        self.ledger.request_ended(entry, sample, complete=complete)

    def answered(self, route: str = "text", sample: Sample | None = None) -> None:
        request = self.began(route)
        self.drafted()
        self.finished(request, sample)

    def streamed(self, route: str = "text", *, chunks: int = 100, sample: Sample = ESTIMATE) -> None:
        request = self.began(route, AnswerKind.STREAM)
        self.drafted()
        for _ in range(chunks + 1):
            self.ledger.count_step(request)
        self.finished(request, sample)

    def read(self, times: int = 1, *, others: int = 0, ranks: dict[str, Speculation] | None = None) -> None:
        for _ in range(times):
            self.at += 1
            self.ledger.record_reading(
                Reading(
                    at=self.at,
                    load=len(self.running) + others,
                    own=len(self.running),
                    finished=self.done,
                    generation_tokens=self.written,
                    chunks=self.ledger.chunks,
                    speculation={"0": self.counted} if ranks is None else ranks,
                )
            )

    def restarted(self) -> None:
        self.counted, self.done, self.written = NOTHING, 0, 0

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


class TestTold:
    def test_it_counts_at_once_and_once(self, world: World) -> None:
        world.answered("table", TOLD)
        assert world.booked == [("table", TOLD)]
        world.read(2 * HELD_BACK)
        assert world.booked == [("table", TOLD)]

    def test_an_engine_that_tells_is_not_counted_by_its_counters_too(self, world: World) -> None:
        """Also what it did before its first answer was there."""
        first = world.began("text")
        for _ in range(2 * HELD_BACK):
            world.drafted(Speculation(1, 1, 3, (1, 0, 0)))
            world.read()
        world.finished(first, TOLD)
        world.answered(
            "text"
        )  # by one whose answer does not tell: of several choices, ended by a stop string
        world.read(2 * HELD_BACK)
        assert world.booked == [("text", TOLD)]


class TestStreams:
    def test_an_estimate_counts_once_the_counters_bear_it_out(self, world: World) -> None:
        world.streamed("table")
        assert world.booked == []
        world.read(3)
        assert world.booked == [("table", ESTIMATE)]
        assert world.ledger.confirms_steps("table")
        assert not world.ledger.confirms_steps("text")
        world.read(2 * HELD_BACK)
        assert len(world.booked) == 1

    @pytest.mark.parametrize("chunks", [25, 50, 80, 97])
    def test_chunks_that_are_no_steps_give_none_and_the_counters_stand_in(
        self, world: World, chunks: int
    ) -> None:
        for _ in range(3):
            world.streamed("text", chunks=chunks)
            world.read(3)
        assert world.ledger.merges_chunks
        world.read(HELD_BACK)
        assert (
            world.figures() == [("text", Source.ENGINE, 100, 150)] * 2
        )  # the first might have been estimated
        assert world.booked[0][1].speculation.accepted_per_position == (80, 50, 20)

    def test_a_page_that_is_some_steps_old_convicts_nobody(self, world: World) -> None:
        """It was written two steps of six requests before the gateway had read it."""
        streams = [world.began("text", AnswerKind.STREAM) for _ in range(6)]
        late = Speculation(12, 12, 36, (12, 0, 0))
        for second in range(20):
            asked = world.ledger.chunks
            for stream in streams:
                for _ in range(20 + (second == 0)):
                    world.ledger.count_step(stream)
            world.drafted(Speculation(108 if second == 0 else 120, 0, 360, (0, 0, 0)))
            world.at += 1
            counted = {"0": world.counted}
            world.ledger.record_reading(
                Reading(world.at, 6, 6, chunks=max(asked, world.ledger.chunks - 12), speculation=counted)
            )
        assert not world.ledger.merges_chunks
        assert world.ledger.confirms_steps("text")
        world.drafted(late)
        for stream in streams:
            world.finished(stream, ESTIMATE)
        world.read(3)
        assert len(world.booked) == 6

    def test_a_burst_is_not_vouched_for_by_what_went_before_it(self, world: World) -> None:
        for _ in range(20):
            world.streamed("text")
            world.read(3)
        before = len(world.booked)
        world.streamed("text", chunks=94)
        world.read(3)
        assert len(world.booked) == before == 20

    def test_more_chunks_than_drafts_bear_nothing_out(self, world: World) -> None:
        for _ in range(3):
            world.streamed("text", chunks=110)
            world.read(3)
        assert not world.ledger.merges_chunks
        world.read(HELD_BACK)
        assert world.booked == []

    def test_a_stream_with_more_tokens_than_steps_can_write_convicts_its_engine(self, world: World) -> None:
        world.streamed("text")
        world.ledger.mark_merged()
        world.read(2 * HELD_BACK)
        assert world.booked == []

    def test_an_engine_is_believed_again_once_chunks_are_steps(self, world: World) -> None:
        world.streamed("text", chunks=50)
        world.read(3)
        world.restarted()
        world.read()
        for _ in range(2):
            world.streamed("text")
            world.read(3)
        assert world.figures() == [
            ("text", Source.STREAM, 100, 148)
        ]  # the first that began after the verdict

    def test_while_others_use_the_engine_nothing_is_known(self, world: World) -> None:
        for _ in range(HELD_BACK * 2):
            world.streamed("text")
            world.drafted(Speculation(50, 50, 150, (50, 0, 0)))
            world.read(others=1)
        assert world.booked == []
        assert not world.ledger.confirms_steps("text")

    def test_beside_whole_answers_the_last_verdict_holds_for_a_while(self, world: World) -> None:
        world.streamed("table")
        world.read(3)
        whole = world.began("text")
        world.streamed("table")
        world.streamed("text")  # nearly all of a table's drafts may be right: it vouches for itself alone
        world.read(HELD_BACK)
        assert [route for route, _ in world.booked] == ["table", "table"]
        world.read(300)
        world.streamed("table")
        world.read(HELD_BACK)
        assert len(world.booked) == 2
        world.finished(whole)

    @pytest.mark.parametrize("told", [None, TOLD])
    def test_a_stream_whose_chunks_blur_says_nothing_of_its_engine(
        self, world: World, told: Sample | None
    ) -> None:
        world.streamed("text")
        world.read(3)
        blurred = world.began("text", AnswerKind.STREAM)
        world.ledger.count_step(blurred)
        world.ledger.mark_uncountable(blurred)
        world.drafted()
        world.finished(blurred, told or ESTIMATE)
        world.read(3)
        assert world.ledger.confirms_steps("text")
        assert world.booked[1:] == ([("text", told)] if told else [])

    def test_an_engine_that_goes_is_judged_by_what_is_known(self, world: World) -> None:
        world.streamed("text")
        world.read(3)
        late = world.began("text", AnswerKind.STREAM)
        world.streamed("text")
        world.ledger.close()
        world.finished(late, ESTIMATE)
        assert [route for route, _ in world.booked] == ["text"] * 3
        unknown = World()
        unknown.streamed("text")
        unknown.ledger.close()
        assert unknown.booked == []

    def test_what_waits_is_bounded(self, world: World) -> None:
        """An engine whose metrics cannot be read."""
        for _ in range(5000):
            world.streamed("text", chunks=0)
        assert len(world.ledger._estimates) == 4096

    @pytest.mark.parametrize("interval", [1, 2, 3, 4])
    @pytest.mark.parametrize("whole", [0.0, 0.3])
    @pytest.mark.parametrize(("accepts", "tokens"), [((0.7, 0.7), (60, 90)), ((0.95, 0.05), (40, 300))])
    def test_in_a_crowd_too_no_figure_is_wrong(
        self, interval: int, whole: float, accepts: tuple[float, float], tokens: tuple[int, int]
    ) -> None:
        crowd = Crowd(interval, whole, accepts, tokens)
        for _ in range(300):
            crowd.second()
        for source, booked in crowd.booked.items():
            for route, sums in booked.items():
                assert sums.length == pytest.approx(crowd.true[route].length, rel=0.05), (source, route)
        streamed = sum(sums.drafts for sums in crowd.booked.get(Source.STREAM, {}).values())
        honest = interval == 1 and not whole
        assert (streamed > 0.9 * sum(sums.drafts for sums in crowd.true.values())) == honest
        assert streamed == 0 or honest

    def test_an_engine_whose_chunks_begin_to_merge_is_found_out(self) -> None:
        crowd = Crowd(1, 0.0, (0.7, 0.7), (60, 90))
        for _ in range(400):
            crowd.second()
        before = crowd.booked[Source.STREAM]["text"].drafts
        crowd.interval = 2
        for _ in range(400):
            crowd.second()
        assert crowd.booked[Source.STREAM]["text"].drafts < 1.05 * before


class Crowd:
    """Sixteen clients of two routes at one engine of depth 3 that merges chunks; each second is read."""

    def __init__(
        self, interval: int, whole: float, accepts: tuple[float, float], tokens: tuple[int, int]
    ) -> None:
        self.interval, self._whole, self._tokens = interval, whole, tokens
        self._accepts = dict(zip(("text", "table"), accepts, strict=True))
        self._rng = Random(1)
        self.true = dict.fromkeys(self._accepts, NOTHING)
        self.booked: dict[Source, dict[str, Speculation]] = {}
        rejected: list[SpeculationFault] = []
        self._ledger = SpeculationLedger("pool", self._book, rejected.append)
        self._requests: list[list[int | str | LedgerEntry]] = []
        self._done = 0
        self._at = 0.0
        self._read()

    def second(self) -> None:
        for _ in range(10):
            while len(self._requests) < 16:
                self._begin()
            for request in list(self._requests):
                self._step(request)
        self._read()

    def _book(self, route: str, _: str, sample: Sample) -> bool:
        sums = self.booked.setdefault(sample.source, {})
        sums[route] = total(sums.get(route), sample.speculation)
        return True

    def _begin(self) -> None:
        route = self._rng.choice(list(self._accepts))
        kind = AnswerKind.WHOLE if self._rng.random() < self._whole else AnswerKind.STREAM
        self._requests.append(
            [route, self._rng.randint(*self._tokens), 0, 0, 0, self._ledger.request_sent(route, kind)]
        )

    def _step(self, request: list) -> None:  # type: ignore[type-arg]
        route, wanted, written, held, chunks, entry = request
        if not written:
            accepted = 0
        else:
            accepted = 0
            while accepted < 3 and self._rng.random() < self._accepts[route]:
                accepted += 1
            by_position = tuple(int(accepted > place) for place in range(3))
            self.true[route] = total(self.true[route], Speculation(1, accepted, 3, by_position))
        first, new = not written, min(accepted + 1, wanted - written)
        written, held = written + new, held + new
        if entry.traits.kind is AnswerKind.STREAM and (first or held >= self.interval or written == wanted):
            self._ledger.count_step(entry)
            chunks, held = chunks + 1, 0
        request[2:5] = written, held, chunks
        if written == wanted:
            self._requests.remove(request)
            self._done += 1
            sample = of_answer(None, completion_tokens=wanted, steps=chunks, depth=3)
            self._ledger.request_ended(entry, sample, complete=True)

    def _read(self) -> None:
        self._at += 1
        load, counted = len(self._requests), total(self.true["text"], self.true["table"])
        self._ledger.record_reading(
            Reading(
                self._at,
                load,
                load,
                finished=self._done,
                generation_tokens=counted.drafts,
                chunks=self._ledger.chunks,
                speculation={"": counted},
            )
        )


class TestCounters:
    def test_what_one_route_had_the_engine_for_is_its_own(self, world: World) -> None:
        world.answered("table")
        world.answered("table")
        world.read(2)
        assert world.booked == []
        world.read(HELD_BACK)
        assert world.figures() == [("table", Source.ENGINE, 200, 300)]

    def test_two_routes_at_once_are_nobodys(self, world: World) -> None:
        slow = world.began("text")
        world.answered("table")
        world.read()
        world.finished(slow)
        world.read(2)  # an engine works on for a moment: what comes next may still be of both
        world.answered("text")
        world.read(HELD_BACK + 2)
        assert world.figures() == [("text", Source.ENGINE, 100, 150)]

    def test_a_route_does_not_get_what_another_ended_just_before(self, world: World) -> None:
        """The page was written before the other's end, or its last steps were counted after it."""
        aborted = world.began("table")
        world.read()
        world.finished(aborted, complete=False)
        world.read()
        world.drafted()
        world.answered("text")
        world.read(HELD_BACK)
        assert world.booked == []

    def test_a_route_after_the_other_while_ends_are_out_of_step(self, world: World) -> None:
        world.done += 1  # the engine has ended one whose last byte we have not seen
        world.answered("text")
        world.read()
        world.read()
        world.answered("table")
        world.read(HELD_BACK)
        assert "table" not in [route for route, _ in world.booked]

    def test_a_request_that_gave_nothing_leaves_its_work_to_the_counters(self, world: World) -> None:
        world.answered("text")
        aborted = world.began("text")
        world.drafted(Speculation(10, 10, 30, (10, 0, 0)))
        world.finished(aborted, complete=False)
        world.read(HELD_BACK + 1)
        assert world.figures() == [("text", Source.ENGINE, 110, 160)]

    @pytest.mark.parametrize("when", ["before", "after", "later"])
    def test_where_others_show_nothing_is_booked_not_even_what_went_before(
        self, world: World, when: str
    ) -> None:
        world.read(others=when == "before")
        world.answered("text")
        world.read(others=when == "after")
        if when == "later":
            world.read(10)
            world.read(others=1)
        world.read(HELD_BACK)
        assert world.booked == []

    def test_others_that_come_and_go_between_readings_show_by_their_ends(self, world: World) -> None:
        for _ in range(10):
            world.answered("text")
            world.drafted()
            world.done += 1
            world.read()
        world.read(HELD_BACK)
        assert world.booked == []

    def test_others_that_use_an_idle_engine_show_by_what_it_drafts(self, world: World) -> None:
        world.answered("text")
        world.read(3)
        world.drafted()
        world.read(HELD_BACK)
        assert world.booked == []

    def test_a_failed_request_of_ours_does_not_hide_anothers(self, world: World) -> None:
        for _ in range(10):
            refused = world.began("text")
            world.finished(refused, complete=False)
            world.drafted()
            world.done += 1
            world.read()
        world.read(HELD_BACK)
        assert world.booked == []

    def test_an_end_that_is_seen_late_does_no_harm(self, world: World) -> None:
        for _ in range(5):
            request = world.began("text")
            world.drafted()
            world.done += 1
            world.read()
            world.done -= 1
            world.finished(request)
            world.read()
        world.read(HELD_BACK)
        assert sum(drafts for _, _, drafts, _ in world.figures()) == 500

    def test_what_waits_is_bounded(self, world: World) -> None:
        world.began("text")
        for _ in range(5000):
            world.drafted()
            world.read()
        assert len(world.ledger._pending) == 4096
        assert world.booked == []  # nothing has been answered yet: the engine may still tell


class TestRestarts:
    def test_a_restart_books_nothing_and_loses_no_later_figure(self, world: World) -> None:
        world.answered("text", TOLD)
        world.read()
        running, told = world.began("text"), world.began("text", AnswerKind.STREAM)
        world.restarted()
        world.finished(running, complete=False)
        world.finished(told, ESTIMATE)
        world.drafted(Speculation(5, 5, 15, (5, 0, 0)))
        world.read(3)
        assert world.booked == [("text", TOLD)]
        world.answered("table")
        world.read(HELD_BACK + 1)
        assert world.figures()[1:] == [("table", Source.ENGINE, 100, 150)]
        assert world.ledger.sums == total(ANSWER, ANSWER)

    def test_who_tells_after_its_beginning_was_booked_by_the_counters_is_not_booked_again(
        self, world: World
    ) -> None:
        long, short = world.began(), world.began()
        world.drafted()
        world.finished(short)  # of a single token: it has nothing to tell
        world.read()
        world.read(2 * HELD_BACK)
        assert [sample.source for _, sample in world.booked] == [Source.ENGINE]
        world.finished(long, TOLD)
        assert len(world.booked) == 1
        world.answered(sample=TOLD)
        assert [sample.source for _, sample in world.booked] == [Source.ENGINE, Source.REQUEST]

    @pytest.mark.parametrize("what", ["finished", "written"])
    def test_a_restart_shows_even_where_the_drafts_have_grown_past_it(self, world: World, what: str) -> None:
        world.answered("text")
        world.answered("text")
        world.read(2 * HELD_BACK)
        world.booked.clear()
        world.restarted()
        world.drafted(Speculation(900, 900, 2700, (900, 0, 0)))
        if what == "finished":
            world.written = 900
        else:
            world.done = 90
        world.read(2 * HELD_BACK)
        assert world.booked == []
        assert world.ledger.sums == total(ANSWER, ANSWER)

    def test_a_rank_that_starts_anew_or_is_missing_from_a_page_adds_nothing_false(self, world: World) -> None:
        def read(**ranks: Speculation) -> None:
            world.read(ranks={name: Speculation(*figures) for name, figures in ranks.items()})  # type: ignore[misc]

        read(a=(100, 290, 300, (100, 100, 90)), b=(95, 5, 285, (5, 0, 0)))
        read(a=(200, 580, 600, (200, 200, 180)), b=(0, 0, 0, (0, 0, 0)))
        read(a=(210, 590, 630, (210, 200, 180)), b=(10, 10, 30, (10, 0, 0)))
        read(a=(220, 600, 660, (220, 200, 180)))
        read(a=(230, 610, 690, (230, 200, 180)), b=(1_000_000, 1_000_000, 3_000_000, (1_000_000, 0, 0)))
        assert world.ledger.sums == Speculation(20, 20, 60, (20, 0, 0))

    def test_sums_stay_while_a_page_has_none(self, world: World) -> None:
        world.answered("text")
        world.read()
        world.read(ranks={})
        assert world.ledger.sums == ANSWER
        assert World().ledger.sums is None

    def test_the_first_reading_is_where_counting_begins(self) -> None:
        world = World()
        world.drafted()
        world.streamed("text")
        world.answered("text")
        world.read(2 * HELD_BACK)
        assert world.booked == []
        assert world.ledger.sums == NOTHING


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["begin", "end", "end", "read", "read", "stranger", "restart"]),
            st.sampled_from(["text", "table"]),
            st.sampled_from(list(AnswerKind)),
            st.sampled_from(["told", "estimate", "nothing", "broken"]),
        ),
        max_size=60,
    ),
    st.booleans(),
    st.integers(0, 9),
)
def test_never_more_is_booked_than_was_drafted(
    moves: list[tuple[str, str, AnswerKind, str]], tells: bool, seed: int
) -> None:
    """Whatever comes in whatever order: no draft is booked twice, or to a route that did not cause it."""
    world, rng = World(), Random(seed)
    world.read()
    true: Counter[str] = Counter()
    gave: Counter[LedgerEntry] = Counter()
    strangers: deque[int] = deque()
    for move, route, kind, gives in moves:
        if world.running:
            busy = rng.choice(world.running)
            more = rng.randrange(1, 30)
            world.drafted(Speculation(more, more, 3 * more, (more, 0, 0)))
            for _ in range(more + (gave[busy] == 0)):
                world.ledger.count_step(busy)
            true[busy.traits.route] += more
            gave[busy] += more
        if move == "begin":
            world.began(route, kind)
        elif move == "end" and world.running:
            request = rng.choice(world.running)
            drafts = gave[request]
            if gives == "told" and tells and drafts:
                world.finished(request, Sample(Source.REQUEST, Speculation(drafts, drafts)))
            elif gives == "estimate" and request.traits.kind is AnswerKind.STREAM and drafts:
                world.finished(request, Sample(Source.STREAM, Speculation(drafts, drafts)))
            else:
                world.finished(request, complete=gives != "broken")
        elif move == "stranger":
            strangers.append(3)
        elif move == "restart":
            world.restarted()
        elif move == "read":
            for _ in strangers:
                world.drafted(Speculation(7, 7, 21, (7, 0, 0)))
            world.read(rng.randrange(1, 40), others=len(strangers))
            strangers = deque(left - 1 for left in strangers if left)
    for request in list(world.running):
        world.finished(request)
    world.read(2 * HELD_BACK)
    booked: Counter[str] = Counter()
    for route, _, drafts, accepted in world.figures():
        assert drafts == accepted
        booked[route] += round(drafts)
    for route in ("text", "table"):
        assert booked[route] <= true[route]
    assert not world.ledger._running.total()
    assert not world.ledger._estimates


def test_told_figures_of_another_depth_are_rejected() -> None:
    world = World(is_of_depth=False)
    world.read()
    world.answered("table", TOLD)
    assert (world.booked, world.rejected) == ([], [SpeculationFault.POOL_DEPTH])


def test_a_tally_knows_the_last_minutes_apart_from_the_rest() -> None:
    tally = SpeculationTally(depth=2)
    assert tally.positions == [0, 0]
    tally.add(Speculation(100, 100, 300, (60, 30, 10)))
    tally.fold(0.0)
    tally.fold(10.0)
    assert (tally.recent.at, tally.recent.sums.length) == (0.0, 2.0)
    tally.add(Speculation(100, 300, 300, (100, 100, 100)))
    tally.fold(3000.0)
    assert tally.recent.sums.length == pytest.approx(4.0, abs=0.001)
    assert (tally.drafts, tally.accepted, tally.draft_tokens) == (200, 400, 600)
    assert tally.positions == [160, 130, 110]
