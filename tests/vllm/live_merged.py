"""Engines whose chunks carry several steps each, `--stream-interval`: no estimate, or a right one."""

from __future__ import annotations

import contextlib
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


def test_merged_streams_give_no_wrong_figure(tmp_path: Path, engines: Sequence[Engine]) -> None:
    with contextlib.ExitStack() as stack:
        fronts = []
        for interval, engine in zip(INTERVALS, engines, strict=True):
            (folder := tmp_path / str(interval)).mkdir()
            fronts.append(stack.enter_context(gateway(folder, {"mtp3": [engine]})))
        for front in fronts:
            front.settled()
        drafts = [_ask(front, engine) for front, engine in zip(fronts, engines, strict=True)]
        time.sleep(HELD_BACK_S)
        for interval, front, whole in zip(INTERVALS, fronts, drafts, strict=True):
            series = front.settled()
            for route in ROUTES:
                truth = DOCUMENTS[route].acceptance_length(3)
                for counts in (series.spec(route=route, source="stream"), series.spec(route=route)):
                    right = counts.drafts < 50 or counts.length == pytest.approx(truth, rel=0.05)
                    assert right, (interval, route, counts)
            # Two steps in a chunk are rare where nearly every draft is right; four tokens in each show.
            assert interval == 2 or series.spec(source="stream").drafts == 0
            assert series.spec(source="request").drafts == 0
            # What is not streamed is read off the counters, as with any other engine.
            assert series.spec(route="table", source="engine").drafts >= whole


def _ask(front: Gateway, engine: Engine) -> float:
    """Ask in all manners; return how many drafts the whole answers took that a route alone had."""
    before = engine.settled()
    front.client.ask_all([("table", WHOLE)] * 4)
    whole = (engine.settled() - before).drafts
    front.settled()
    asks = [(route, STREAM) for route in ROUTES] * 3
    answers = front.client.ask_all(asks)
    assert [answer.text for answer in answers] == [DOCUMENTS[route].text for route, _ in asks]
    for route in ROUTES:
        front.client.ask_all([(route, STREAM)] * 3)
        front.settled()
    front.client.ask_all([(route, kind) for kind in (STREAM, WHOLE) for route in ROUTES] * 2)
    return whole
