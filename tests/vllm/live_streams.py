"""Engines that tell nothing of an answer's speculation: it is estimated, or read off their counters."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.vllm.engines import Counts, Engine, started
from tests.vllm.tiny_model import DOCUMENTS
from tests.vllm.traffic import HELD_BACK_S, KINDS, ROUTES, Answer, Gateway, Kind, Series, gateway

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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


@pytest.fixture(scope="module", params=DEPTHS, ids="depth-{}".format)
def behind(request: pytest.FixtureRequest, engines: Sequence[Engine]) -> Engine:
    return engines[DEPTHS.index(request.param)]


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory, behind: Engine) -> Iterator[Gateway]:
    with gateway(tmp_path_factory.mktemp("gateway"), {"deep": [behind]}) as running:
        running.settled()
        yield running


def estimated(front: Gateway, before: Series, engine: Counts, answers: list[Answer]) -> Series:
    """Read the gateway's figures of streams once they are there, or have been given up.

    An engine whose server lags behind merges chunks, which the client sees; then there may be none.
    """
    assert min(answer.chunks for answer in answers)
    chunks = sum(answer.chunks - 1 for answer in answers)
    assert chunks <= engine.drafts
    known = before.spec(source="stream").drafts
    series = front.until(lambda series: series.spec(source="stream").drafts - known >= chunks)
    assert series.spec(source="stream").drafts - known == chunks or chunks < engine.drafts
    return series


@pytest.mark.parametrize("route", ROUTES)
def test_a_streams_chunks_tell_its_acceptance(front: Gateway, behind: Engine, route: str) -> None:
    engine_before, before = behind.settled(), front.settled()
    answers = front.client.ask_all([(route, STREAM)] * 6)
    assert {answer.text for answer in answers} == {DOCUMENTS[route].text}
    engine = behind.settled() - engine_before
    assert engine.length == pytest.approx(DOCUMENTS[route].acceptance_length(behind.depth))
    series = estimated(front, before, engine, answers)
    counts = series.spec(route=route, source="stream") - before.spec(route=route, source="stream")
    assert not counts.drafts or counts.length == pytest.approx(engine.length, rel=TOLERANCE[route])
    assert series.spec(source="request").drafts == 0


def test_mixed_streams_keep_apart(front: Gateway, behind: Engine) -> None:
    engine_before, before = behind.settled(), front.settled()
    answers = front.client.ask_all([(route, STREAM) for route in ROUTES] * 4)
    series = estimated(front, before, behind.settled() - engine_before, answers)
    for route in ROUTES:
        counts = series.spec(route=route, source="stream") - before.spec(route=route, source="stream")
        truth = DOCUMENTS[route].acceptance_length(behind.depth)
        assert not counts.drafts or counts.length == pytest.approx(truth, rel=TOLERANCE[route]), route


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.stream and kind.told], ids=lambda kind: kind.name
)
@pytest.mark.parametrize("behind", [3], indirect=True)
def test_whatever_is_streamed_its_steps_are_the_engines(front: Gateway, behind: Engine, kind: Kind) -> None:
    engine_before, before = behind.settled(), front.settled()
    answer = front.client.ask("table", kind)
    engine = behind.settled() - engine_before
    counts = estimated(front, before, engine, [answer]).spec(source="stream") - before.spec(source="stream")
    assert not counts.drafts or counts.length == pytest.approx(engine.length, rel=0.05)


@pytest.mark.parametrize("behind", [3], indirect=True)
def test_what_chunks_do_not_tell_is_not_made_up(front: Gateway, behind: Engine) -> None:
    engine_before, before = behind.settled(), front.settled()
    for kind in KINDS:
        if not kind.told:
            front.client.ask("table", kind)
    engine = behind.settled() - engine_before
    time.sleep(HELD_BACK_S)
    series = front.settled()
    assert series.spec(source="stream") == before.spec(source="stream")
    known = series.spec(source="engine") - before.spec(source="engine")
    assert known.drafts <= engine.drafts
    assert known.accepted <= engine.accepted


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
