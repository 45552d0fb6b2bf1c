"""Three routes on one shared engine that tells each answer's speculation, beside one that does not draft."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest
from openai import APIError

from tests.vllm.engines import MODEL, Counts, Engine, started
from tests.vllm.tiny_model import DOCUMENTS
from tests.vllm.traffic import HELD_BACK_S, KINDS, ROUTES, Answer, Client, Gateway, Kind, gateway

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.timeout(900)

WHOLE, STREAM, USAGE = KINDS[:3]
# Six of the text, eight of the others; a third of each is not streamed.
MIXED = [(route, kind) for kind in (STREAM, WHOLE, USAGE) * 2 for route in ROUTES]
MIXED += [(route, kind) for kind in (STREAM, WHOLE) for route in ROUTES[1:]]


@pytest.fixture(scope="module")
def engines(engine: Callable[..., Engine]) -> Iterator[Sequence[Engine]]:
    """One of depth 3 and one of depth 0."""
    with started(engine(3, "--per-request-spec-decode-metrics=summary"), engine(0)) as both:
        yield both


@pytest.fixture(scope="module")
def deep(engines: Sequence[Engine]) -> Engine:
    return engines[0]


@pytest.fixture(scope="module")
def plain(engines: Sequence[Engine]) -> Engine:
    return engines[1]


@pytest.fixture(scope="module")
def alone(deep: Engine) -> dict[str, Counts]:
    """What the engine's own counters say of each route, run by itself and without the gateway."""
    counts, client = {}, Client(deep.url)
    with client.openai:
        for route in ROUTES:
            before = deep.settled()
            assert texts(client.ask_all([(route, WHOLE), (route, STREAM)])) == [DOCUMENTS[route].text] * 2
            counts[route] = deep.settled() - before
    return counts


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory, deep: Engine) -> Iterator[Gateway]:
    """The shared engine behind a gateway."""
    with gateway(tmp_path_factory.mktemp("gateway"), {"mtp3": [deep]}) as running:
        running.settled()
        yield running


def texts(answers: list[Answer]) -> list[str]:
    return [answer.text for answer in answers]


def sums(counts: Counts) -> tuple[float, float, float]:
    return counts.drafts, counts.draft_tokens, counts.accepted


def test_the_model_does_what_is_foretold(alone: dict[str, Counts]) -> None:
    for route, counts in alone.items():
        steps = DOCUMENTS[route].steps(3)
        assert (counts.drafts, counts.accepted) == (2 * len(steps), 2 * sum(steps)), route
        assert counts.positions == tuple(2 * sum(step > place for step in steps) for place in range(3))


def test_mixed_traffic_is_accounted_to_the_routes_that_caused_it(
    front: Gateway, deep: Engine, alone: dict[str, Counts]
) -> None:
    before = deep.settled()
    assert texts(front.client.ask_all(MIXED)) == [DOCUMENTS[route].text for route, _ in MIXED]
    engine, series = deep.settled() - before, front.settled()
    for route in ROUTES:
        counts, truth = series.spec(route=route, source="request"), alone[route]
        assert counts.length == pytest.approx(truth.length, rel=0.01), route
        rates = [accepted / counts.drafts for accepted in counts.positions]
        assert rates == pytest.approx([accepted / truth.drafts for accepted in truth.positions], rel=0.01)
    every = series.spec(pool="mtp3")
    assert sums(every) == pytest.approx(sums(engine), rel=0.01)
    assert every.positions == pytest.approx(engine.positions, rel=0.01)
    assert sums(series.spec(source="request")) == sums(every)
    assert sums(series.engine_spec(pool="mtp3", engine=deep.name)) == sums(engine)
    assert series.total("requests_total", code="200") == len(MIXED)


def test_short_answers_in_streams_are_exact_as_well(front: Gateway, alone: dict[str, Counts]) -> None:
    before = front.settled()
    front.client.ask_all([("key-value", STREAM)] * 12)
    counts = front.settled().spec(source="request") - before.spec(source="request")
    assert counts.drafts == 12 * alone["key-value"].drafts / 2
    assert counts.length == pytest.approx(alone["key-value"].length, rel=0.02)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.told], ids=lambda kind: kind.name)
def test_the_engine_is_quoted(front: Gateway, deep: Engine, kind: Kind) -> None:
    engine_before, before = deep.settled(), front.settled()
    front.client.ask("table", kind)
    engine, series = deep.settled() - engine_before, front.settled()
    counts = series.spec() - before.spec()
    assert sums(series.spec(source="request") - before.spec(source="request")) == sums(engine)
    assert (sums(counts), counts.positions) == (sums(engine), engine.positions)


def test_what_the_engine_does_not_tell_is_not_made_up(front: Gateway, deep: Engine) -> None:
    engine_before, before = deep.settled(), front.settled()
    for kind in KINDS:
        if not kind.told:
            front.client.ask("table", kind)
    engine = deep.settled() - engine_before
    time.sleep(HELD_BACK_S)
    series = front.settled()
    assert series.spec(source="request") == before.spec(source="request")
    assert series.spec(source="stream").drafts == 0
    # Some of it may have been read off the counters, since the route was alone.
    known = series.spec() - before.spec()
    assert all(some <= every for some, every in zip(sums(known), sums(engine), strict=True))
    assert all(some <= every for some, every in zip(known.positions, engine.positions, strict=True))
    assert sum(known.positions) == known.accepted


def test_without_depth_there_is_no_speculation(tmp_path: Path, plain: Engine) -> None:
    with gateway(tmp_path, {"plain": [plain]}) as front:
        asks = [(route, kind) for route in ROUTES for kind in (WHOLE, STREAM)]
        assert texts(front.client.ask_all(asks)) == [DOCUMENTS[route].text for route, _ in asks]
        series = front.settled()
        assert sums(series.spec()) == (0, 0, 0)
        assert not series.each("engine_spec_drafts_total")
        assert series.total("acceptance_length_count") == 0
        assert series.total("engine_config_mismatch") == 0


def test_two_engines_are_told_apart(
    tmp_path: Path, engines: Sequence[Engine], deep: Engine, plain: Engine, alone: dict[str, Counts]
) -> None:
    schedule = {route: {"schedule": [[1, 2, 3], [3, 4096, 0]]} for route in ROUTES}
    with gateway(tmp_path, {"mtp3": [deep], "plain": [plain]}, routes=schedule) as front:
        front.settled()
        before = deep.settled()
        assert texts(front.client.ask_all(MIXED)) == [DOCUMENTS[route].text for route, _ in MIXED]
        engine, series = deep.settled() - before, front.settled()
        taken = {pool: series.total("requests_total", pool=pool, code="200") for pool in ("mtp3", "plain")}
        assert min(taken.values()) > 0
        assert sum(taken.values()) == len(MIXED)
        assert sums(series.spec(pool="mtp3")) == sums(engine)
        assert series.spec(pool="plain").drafts == 0
        for route in ROUTES:
            if (counts := series.spec(route=route)).drafts:
                assert counts.length == pytest.approx(alone[route].length, rel=0.01), route


def test_an_engine_that_is_killed_and_comes_back(
    front: Gateway, deep: Engine, alone: dict[str, Counts]
) -> None:
    first = front.settled()
    front.client.ask_all(MIXED)
    before = front.settled()
    with (
        contextlib.suppress(APIError),
        front.client.openai.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Text Recognition:"}], stream=True
        ) as broken,
    ):
        next(iter(broken))
        deep.end(signal.SIGKILL)
        for _ in broken:
            pass
    watched: list[float] = []
    stop = threading.Event()
    watch = threading.Thread(target=_watch, args=(front, watched, stop))
    watch.start()
    try:
        deep.start()
        deep.wait_ready()
        front.served.wait_ready()
        assert texts(front.client.ask_all(MIXED)) == [DOCUMENTS[route].text for route, _ in MIXED]
        after = front.settled()
    finally:
        stop.set()
        watch.join()
    assert sums(after.spec() - before.spec()) == sums(before.spec() - first.spec())
    for route in ROUTES:
        counts = after.spec(route=route) - before.spec(route=route)
        assert counts.length == pytest.approx(alone[route].length, rel=0.01), route
    # No counter ever fell; what the old process did in the broken request may have been read before its end.
    assert watched == sorted(watched)
    broken_off = after.engine_spec() - before.engine_spec() - deep.settled()
    assert 0 <= broken_off.drafts <= alone["text"].drafts / 2


def _watch(front: Gateway, drafts: list[float], stop: threading.Event) -> None:
    while not stop.wait(0.2):
        drafts.append(front.series().total("engine_spec_drafts_total"))
