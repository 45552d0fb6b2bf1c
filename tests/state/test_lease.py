"""What a request's place on an engine tells of it, and that it is given back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import parse
from gateway.model import Reading, Speculation, SpeculationFault
from gateway.policy.account.acceptance import Sample, Source
from gateway.policy.choose.balance import Fitness
from gateway.policy.fail.breaker import Outcome
from gateway.policy.fail.retry import Failure
from gateway.state.fleet import Fleet
from gateway.state.lease import Lease
from gateway.state.ledger import AnswerKind
from tests.conftest import fleet
from tests.state.world import ALL, CONFIG, DEEP, PLAIN, World
from tests.support import chat, completion

if TYPE_CHECKING:
    from gateway.model import ToldSpeculation
    from gateway.state.queues import Waiter
    from tests.support import FakeEngine, _Sender


def streamed(world: World, *, chunks: int = 50, told: ToldSpeculation = None) -> Lease:
    """A request of an answer of 76 tokens, from its beginning to its end."""
    with world.take("table") as lease:
        lease.request_sent(AnswerKind.STREAM)
        for _ in range(chunks + 1):
            lease.count_step()
        lease.answer_complete(told, 76)
    return lease


class TestPlaces:
    def test_a_place_is_taken_at_once_and_given_back_once(self) -> None:
        world = World()
        lease = world.take()
        assert world.load(lease.engine.name) == 1
        assert world.state.snapshot().routes["text"].in_flight == 1
        lease.release()
        lease.release()
        assert world.load(lease.engine.name) == 0
        with world.take() as lease:
            assert world.load(lease.engine.name) == 1
        assert world.load(lease.engine.name) == 0

    def test_it_knows_its_depth_under_the_load_it_made(self) -> None:
        text = CONFIG.replace(
            "num_speculative_tokens: 3}",
            "num_speculative_tokens: 3, num_speculative_tokens_per_batch_size: [[1, 1, 3], [2, 9, 1]]}",
        )
        world = World(text, DEEP[:1])
        assert [world.take("table").depth for _ in range(3)] == [3, 1, 1]


class TestEngineActivity:
    def test_who_waits_for_a_lost_engine_is_told(self) -> None:
        world = World(engines=[PLAIN])
        told: list[str] = []
        first, second = world.take(), world.take()
        first.on_lost = lambda: told.append("first")
        world.state.mark_lost("p0:80")
        assert told == ["first"]
        assert world.refused() is Fitness.DOWN
        second.release()

    def test_signs_of_life_are_noted(self) -> None:
        world = World(engines=[PLAIN])
        lease = world.take()
        world.now += 7
        lease.record_activity()
        assert world.state.activity("p0:80").active_at == 107

    def test_it_tells_how_many_chunks_have_come(self) -> None:
        world = World(engines=DEEP[:1])
        streamed(world, chunks=7)
        streamed(world, chunks=5)
        assert (world.state.activity("d0:80").chunks, world.state.activity("gone").chunks) == (12, 0)


class TestAcceptance:
    SCHEDULED = CONFIG.replace(
        "num_speculative_tokens: 3}",
        "num_speculative_tokens: 3, num_speculative_tokens_per_batch_size: [[1, 1, 3], [2, 9, DEPTH]]}",
    )

    def test_a_pool_whose_engines_need_not_draft_gives_no_estimates(self) -> None:
        assert streamed(World()).sample == Sample(Source.STREAM, Speculation(50, 25))
        for text in (
            self.SCHEDULED.replace("DEPTH", "0"),
            CONFIG.replace("method: mtp", "method: ngram"),
            CONFIG.replace("method: mtp", "method: suffix"),
        ):
            assert streamed(World(text)).sample is None
        assert streamed(World(self.SCHEDULED.replace("DEPTH", "1"))).sample is not None

    def test_a_request_keeps_the_depth_it_was_sent_to(self) -> None:
        world = World()
        lease = world.take("table")
        lease.request_sent(AnswerKind.STREAM)
        for _ in range(51):
            lease.count_step()
        other = Fleet.of(
            parse(CONFIG.replace("tokens: 3", "tokens: 1").replace("63, 3]", "63, 1]"), "f", Path(), {})
        )
        world.state.configure(other, ALL)
        lease.answer_complete(None, 126)
        assert lease.sample == Sample(Source.STREAM, Speculation(50, 75))

    def test_an_estimate_is_believed_once_the_engines_counters_bear_it_out(self) -> None:
        world = World(engines=DEEP[:1])
        heard: list[tuple[str, str, Source]] = []
        world.state.speculation.listen(lambda route, pool, sample: heard.append((route, pool, sample.source)))

        def read(at: int, drafts: int) -> None:
            counted = {"0": Speculation(drafts, drafts / 2, 3 * drafts, (drafts / 2, 0, 0))}
            chunks = world.state.activity("d0:80").chunks
            world.state.record_reading(
                "d0:80", Reading(at, 0, 0, finished=drafts // 50, chunks=chunks, speculation=counted)
            )

        read(101, 0)
        lease = streamed(world)
        assert lease.trusted_sample() is None
        for at in (102, 103, 104):
            read(at, 50)
        assert heard == [("table", "deep", Source.STREAM)]
        assert lease.trusted_sample() == lease.sample
        lease = streamed(world, chunks=25)
        for at in (105, 106, 107):
            read(at, 100)
        assert len(heard) == 1
        assert world.status("d0:80").merges_chunks
        assert lease.trusted_sample() is None
        lease = streamed(world, chunks=25, told=Speculation(50, 25, 150, (20, 5, 0)))
        assert lease.trusted_sample() == lease.sample
        assert len(heard) == 2

    def test_a_stream_of_more_tokens_than_steps_can_write_convicts_its_engine(self) -> None:
        world = World(engines=DEEP[:1])
        streamed(world, chunks=10)
        assert world.status("d0:80").merges_chunks

    def test_what_has_not_been_sent_is_not_accounted(self) -> None:
        with World().take("table") as lease:
            lease.count_step()
            lease.mark_uncountable()
            lease.answer_complete(None, 76)
        assert lease.sample is None

    def test_an_engine_that_leaves_keeps_nothing_back(self) -> None:
        world = World(engines=DEEP[:1])
        heard: list[str] = []
        world.state.speculation.listen(lambda route, pool, sample: heard.append(route))

        def read(at: int, drafts: int) -> None:
            counted = {"0": Speculation(drafts, drafts, 3 * drafts, (drafts, 0, 0))}
            chunks = world.state.activity("d0:80").chunks
            world.state.record_reading(
                "d0:80", Reading(at, 0, 0, finished=drafts // 50, chunks=chunks, speculation=counted)
            )

        read(101, 0)
        streamed(world)
        for at in (102, 103, 104):
            read(at, 50)
        streamed(world)
        assert len(heard) == 1
        world.state.set_engines(DEEP[1:])
        assert len(heard) == 2

    def test_figures_of_another_depth_than_the_pools_are_not_its(self) -> None:
        world = World()
        heard: list[str] = []
        world.state.speculation.listen(lambda route, pool, sample: heard.append(route))
        streamed(world, told=Speculation(20, 10, 20, (10,)))
        assert heard == []
        streamed(world, told=Speculation(20, 10, 60, (6, 3, 1)))
        assert heard == ["table"]

    def test_figures_of_routes_and_pools_that_have_gone_still_count(self) -> None:
        world = World()
        heard: list[tuple[str, str]] = []
        world.state.speculation.listen(lambda route, pool, sample: heard.append((route, pool)))
        streamed(world, told=Speculation(20, 10, 60, (6, 3, 1)))
        late = world.take("table")
        late.request_sent(AnswerKind.WHOLE)
        plain = "model: m\npools: {plain: {engines: [http://p0:80]}}\nroutes: {text: {}}"
        world.state.configure(Fleet.of(parse(plain, "f", Path(), {})), [PLAIN])
        late.answer_complete(Speculation(20, 10, 60, (6, 3, 1)), 31)
        late.release()
        assert heard == [("table", "deep")] * 2
        assert world.state.snapshot().routes["text"].acceptance == {}
        assert world.state.speculation.by_key["table", "deep", Source.REQUEST].drafts == 40


ENDS = st.sampled_from(["success", "error", "refusal", "broken", "cancel", "lost", "down"])


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["take", "wait", "end", "end"]),
            st.sampled_from(list(AnswerKind)),
            ENDS,
            st.integers(0, 9),
        ),
        max_size=60,
    )
)
def test_whatever_ends_a_request_nothing_is_left_in_flight(
    moves: list[tuple[str, AnswerKind, str, int]],
) -> None:
    """Every mix of cancel, error and success: counts, leases and clients' places end at zero."""
    world = World(engines=DEEP)
    state = world.state
    leases: list[Lease] = []
    waiters: list[Waiter] = []

    def end(lease: Lease, kind: AnswerKind, how: str) -> None:
        with lease:
            if how == "cancel":  # before anything was sent
                return
            lease.request_sent(kind)
            if how == "success":
                lease.count_step()
                lease.record_activity()
                lease.answer_complete(Speculation(4, 6, 12, (3, 2, 1)), 11)
                lease.record_outcome(Outcome.SUCCESS)
                lease.release()  # its place is free before its client has read all
            elif how == "lost":
                lease.on_lost = lease.release
                state.mark_lost(lease.engine.name, down=False)
            elif how == "down":
                state.mark(lease.engine.name, up=False)
                state.mark(lease.engine.name, up=True)
            elif how == "broken":
                lease.mark_uncountable()
                lease.record_outcome(Outcome.FAILURE)
            else:
                state.record_failure(lease, Failure.BUSY if how == "refusal" else Failure.ERROR)

    for move, kind, how, number in moves:
        world.pass_time(0.5)
        route = ("text", "table")[number % 2]
        if move == "take" and isinstance(taken := state.take(route, client=f"c{number}"), Lease):
            leases.append(taken)
        elif move == "wait":
            waiters.append(world.wait(route, client=f"c{number}")[0])
        elif move == "end" and leases:
            end(leases.pop(number % len(leases)), kind, how)
        leases += [waiter.lease for waiter in waiters if waiter.lease]
        waiters = [waiter for waiter in waiters if not waiter.lease]
    for waiter in waiters:
        state.leave(waiter)
    for lease in leases:
        end(lease, AnswerKind.WHOLE, "cancel")
    snapshot = state.snapshot()
    assert {(status.view.ours, sum(status.view.own)) for status in snapshot.engines} == {(0, 0)}
    assert {(route.in_flight, route.waiting) for route in snapshot.routes.values()} == {(0, 0)}
    records = state._roster.records.values()
    assert not any(record.leases or record.ledger._running.total() for record in records)
    assert not any(queue.fair.places.total() for queue in state.queues._queues.values())


class TestRejectedFigures:
    @pytest.mark.parametrize(
        ("told", "why"),
        [
            (SpeculationFault.FORMAT, "not in the form"),
            (SpeculationFault.HISTOGRAM_SUMS, "not the sums of their histogram"),
            (SpeculationFault.ACCEPTED_OVER_DRAFTED, "more tokens were accepted than drafted"),
            (SpeculationFault.DRAFTED_OVER_POSITIONS, "more tokens were drafted than"),
            (Speculation(77, 77, 231, (77, 0, 0)), "more drafts than the answer has tokens"),
            (Speculation(20, 10, 20, (10,)), "more or fewer positions than the pool's depth"),
        ],
    )
    def test_they_are_not_counted_and_the_log_says_it_once(
        self, told: Speculation | SpeculationFault, why: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        world = World(engines=DEEP[:1])
        counted: list[str] = []
        world.state.speculation.listen(lambda route, pool, sample: counted.append(route))
        for _ in range(3):
            streamed(world, told=told)
        (rejected,) = world.status("d0:80").rejected.items()
        assert rejected[1] == 3
        assert counted == []
        (line,) = [record.getMessage() for record in caplog.records]
        assert line.startswith("engine d0:80: ")
        assert why in line
        assert line.endswith(f"({rejected[0]})")

    def test_each_reason_is_told_by_itself(self, caplog: pytest.LogCaptureFixture) -> None:
        world = World(engines=DEEP[:1])
        before = world.status("d0:80").rejected
        for fault in (SpeculationFault.FORMAT, SpeculationFault.HISTOGRAM_SUMS, SpeculationFault.FORMAT):
            streamed(world, told=fault)
        assert len(caplog.records) == 2
        assert world.status("d0:80").rejected == {"format": 2, "histogram_sums": 1}
        assert before == {}  # what was handed out does not change

    def test_good_figures_and_none_are_no_fault(self, caplog: pytest.LogCaptureFixture) -> None:
        world = World(engines=DEEP[:1])
        for told in (None, Speculation(50, 25, 150, (20, 5, 0)), Speculation(0, 0, 0, (0, 0, 0))):
            streamed(world, told=told)
        with world.take("table") as lease:
            lease.request_sent(AnswerKind.WHOLE)
            lease.answer_complete(Speculation(50, 25, 150, (20, 5, 0)), 0)  # the length is not known
        assert lease.sample is None
        assert world.status("d0:80").rejected == {}
        assert not caplog.records

    def test_where_figures_are_no_good_the_stream_is_estimated(self) -> None:
        world = World(engines=DEEP[:1])
        assert streamed(world, told=SpeculationFault.FORMAT).sample == Sample(
            Source.STREAM, Speculation(50, 25)
        )
        streamed(world, chunks=10, told=SpeculationFault.FORMAT)
        assert world.status("d0:80").merges_chunks

    async def test_clients_answers_show_it(self) -> None:
        figures = {
            "acceptance_histogram": [1, 1],
            "num_spec_steps": 3,
            "num_accepted_draft_tokens": 1,
            "num_draft_tokens": 3,
        }

        async def tells(engine: FakeEngine, request: dict[str, Any], send: _Sender) -> None:
            await send.json({**completion("x"), "metrics": {"speculative_decoding": figures}})

        async with fleet(1) as served_fleet:
            served_fleet.engines[0].behave = tells
            for _ in range(2):
                reply = await served_fleet.http.post("/v1/chat/completions", json=chat())
                assert reply.status_code == 200
            (engine,) = (await served_fleet.http.get("/status")).json()["engines"]
            page = (await served_fleet.http.get("/metrics")).text
        assert engine["speculation_rejected"] == {"histogram_sums": 2}
        labels = f'engine="{engine["engine"]}",pool="pool",reason="histogram_sums"'
        assert f"ocr_gateway_engine_speculation_rejected_total{{{labels}}} 2.0" in page
