"""Engines that tell nothing of an answer's speculation: it is estimated, or read off their counters."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.vllm.engines import Counts, Engine, started
from tests.vllm.tiny_model import DOCUMENTS
from tests.vllm.traffic import HELD_BACK_S, KINDS, ROUTES, Gateway, Kind, Series, gateway

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.timeout(900)

WHOLE, STREAM = KINDS[:2]
# Estimates are low, by what was accepted past the end: the less, the longer an answer is.
TOLERANCE = {route: 0.03 if DOCUMENTS[route].length >= 100 else 0.05 for route in ROUTES}
DEPTHS = (3, 1)


@pytest.fixture(scope="module")
def engines(engine: Callable[..., Engine]) -> Iterator[Sequence[Engine]]:
    """One of depth 3 and one of depth 1."""
    with started(*(engine(depth) for depth in DEPTHS)) as both:
        yield both


@pytest.fixture(params=DEPTHS, ids="depth-{}".format)
def behind(request: pytest.FixtureRequest, engines: Sequence[Engine]) -> Engine:
    return engines[DEPTHS.index(request.param)]


@pytest.fixture
def front(tmp_path: Path, behind: Engine) -> Iterator[Gateway]:
    with gateway(tmp_path, {"deep": [behind]}) as running:
        running.settled()
        yield running


@dataclass
class Run:
    """What a run of streams gave; `lag` is the share of steps that the server did not send by themselves.

    A server that lags behind merges chunks. The client sees that, too; then there may be no estimate, or one
    that is off by as much.
    """

    engine: Counts
    before: Series
    after: Series
    lag: float

    def stream(self, **labels: str) -> Counts:
        return self.after.spec(source="stream", **labels) - self.before.spec(source="stream", **labels)

    def is_right(self, route: str, depth: int) -> bool:
        counts, truth = self.stream(route=route), DOCUMENTS[route].acceptance_length(depth)
        tolerance = TOLERANCE[route] + 2 * self.lag
        if not counts.drafts:
            return self.lag > 0
        return counts.length == pytest.approx(truth, rel=tolerance)


def run(front: Gateway, behind: Engine, asks: Sequence[tuple[str, Kind]]) -> Run:
    """Ask for streams, two at a time, and wait for the gateway's figures of them."""
    engine_before, before = behind.settled(), front.settled()
    answers = front.client.ask_all(asks, at_once=2)
    engine = behind.settled() - engine_before
    assert min(answer.chunks for answer in answers)
    chunks = sum(answer.chunks - 1 for answer in answers)
    lag = 1 - chunks / engine.drafts if engine.drafts else 0.0
    assert lag >= 0
    known = before.spec(source="stream").drafts
    after = front.until(lambda series: series.spec(source="stream").drafts - known >= chunks)
    assert lag or after.spec(source="stream").drafts - known == chunks
    return Run(engine, before, after, lag)


@pytest.mark.parametrize("route", ROUTES)
def test_a_streams_chunks_tell_its_acceptance(front: Gateway, behind: Engine, route: str) -> None:
    told = run(front, behind, [(route, STREAM)] * 6)
    assert told.engine.length == pytest.approx(DOCUMENTS[route].acceptance_length(behind.depth))
    assert told.is_right(route, behind.depth), (told.stream(), told.engine, told.lag)
    assert told.after.spec(source="request").drafts == 0


def test_mixed_streams_keep_apart(front: Gateway, behind: Engine) -> None:
    told = run(front, behind, [(route, STREAM) for route in ROUTES] * 4)
    for route in ROUTES:
        assert told.is_right(route, behind.depth), (route, told.stream(route=route), told.lag)


@pytest.mark.parametrize("behind", [3], indirect=True)
def test_whatever_is_streamed_its_steps_are_the_engines(front: Gateway, behind: Engine) -> None:
    lag = 0.0
    for kind in KINDS:
        if kind.stream and kind.told and not lag:
            told = run(front, behind, [("table", kind)])
            counts, lag = told.stream(), told.lag
            # All that was accepted, but for what was behind the end.
            assert lag or told.engine.accepted - behind.depth <= counts.accepted <= told.engine.accepted, kind


@pytest.mark.parametrize("behind", [3], indirect=True)
def test_what_chunks_do_not_tell_is_not_made_up(front: Gateway, behind: Engine) -> None:
    before = behind.settled()
    for kind in KINDS:
        if not kind.told:
            front.client.ask("table", kind)
    engine = behind.settled() - before
    time.sleep(HELD_BACK_S)
    series = front.settled()
    assert series.spec(source="stream").drafts == 0
    assert series.spec(source="engine").drafts <= engine.drafts
    assert series.spec(source="engine").accepted <= engine.accepted


def test_only_a_route_that_is_alone_is_read_off_the_counters(
    tmp_path_factory: pytest.TempPathFactory, engines: Sequence[Engine]
) -> None:
    deep, shared = engines
    with (
        gateway(tmp_path_factory.mktemp("alone"), {"deep": [deep]}) as alone,
        gateway(tmp_path_factory.mktemp("mixed"), {"shared": [shared]}) as mixed,
    ):
        mixed.settled()
        before = shared.settled()
        mixed.client.ask_all([(route, WHOLE) for route in ROUTES] * 4)
        shared_counts = shared.settled() - before
        alone.settled()
        counts = {}
        for route in ROUTES:
            before = deep.settled()
            alone.client.ask_all([(route, WHOLE)] * 4)
            counts[route] = deep.settled() - before
            alone.settled()
        every = sum(engine.drafts for engine in counts.values())
        series = alone.until(lambda series: series.spec(source="engine").drafts >= every)
        for route, engine in counts.items():
            read = series.spec(route=route, source="engine")
            assert read == Counts(engine.drafts, engine.draft_tokens, engine.accepted, engine.positions), (
                route
            )
        assert series.spec().drafts == every
        # Beginnings and ends apart, when one was alone indeed, little may be known of routes that mix.
        series = mixed.settled()
        assert series.spec().drafts < shared_counts.drafts / 2
        for route in ROUTES:
            if (read := series.spec(route=route)).drafts > 100:
                truth = DOCUMENTS[route].acceptance_length(shared.depth)
                assert read.length == pytest.approx(truth, rel=0.15), route
