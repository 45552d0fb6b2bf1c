"""Engines whose chunks carry several steps each, `--stream-interval`: no estimate, or a right one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.vllm.engines import Engine, started
from tests.vllm.tiny_model import DOCUMENTS
from tests.vllm.traffic import HELD_BACK_S, KINDS, ROUTES, Gateway, gateway

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.timeout(900)

WHOLE, STREAM = KINDS[:2]
INTERVALS = (4, 2)


@pytest.fixture(scope="module")
def engines(engine: Callable[..., Engine]) -> Iterator[Sequence[Engine]]:
    """Both of depth 3."""
    with started(*(engine(3, f"--stream-interval={interval}") for interval in INTERVALS)) as both:
        yield both


@pytest.fixture(params=INTERVALS, ids="interval-{}".format)
def interval(request: pytest.FixtureRequest) -> int:
    chosen: int = request.param
    return chosen


@pytest.fixture
def behind(interval: int, engines: Sequence[Engine]) -> Engine:
    return engines[INTERVALS.index(interval)]


@pytest.fixture
def front(tmp_path: Path, behind: Engine) -> Iterator[Gateway]:
    with gateway(tmp_path, {"mtp3": [behind]}) as running:
        running.settled()
        yield running


def test_merged_streams_give_no_wrong_figure(front: Gateway, interval: int) -> None:
    asks = [(route, STREAM) for route in ROUTES] * 3
    answers = front.client.ask_all(asks)
    assert [answer.text for answer in answers] == [DOCUMENTS[route].text for route, _ in asks]
    for route in ROUTES:
        front.client.ask_all([(route, STREAM)] * 3)
        front.settled()
    front.client.ask_all([(route, kind) for kind in (STREAM, WHOLE) for route in ROUTES] * 2)
    time.sleep(HELD_BACK_S)
    series = front.settled()
    for route in ROUTES:
        truth = DOCUMENTS[route].acceptance_length(3)
        for counts in (series.spec(route=route, source="stream"), series.spec(route=route)):
            assert counts.drafts < 50 or counts.length == pytest.approx(truth, rel=0.05), route
    # Two steps in a chunk are rare where nearly every draft is right; four tokens in each would be seen.
    assert interval == 2 or series.spec(source="stream").drafts == 0
    assert series.spec(source="request").drafts == 0


def test_whole_answers_are_still_read_off_the_counters(front: Gateway, behind: Engine) -> None:
    before = behind.settled()
    front.client.ask_all([("table", WHOLE)] * 4)
    engine = behind.settled() - before
    series = front.until(lambda series: series.spec(source="engine").drafts >= engine.drafts)
    counts = series.spec(route="table", source="engine")
    assert (counts.drafts, counts.accepted) == (engine.drafts, engine.accepted)
