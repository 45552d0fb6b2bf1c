"""Every cell of the fault matrix, before real gateways; and that its documentation says the same."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, get_args

import pytest
import pytest_asyncio

from gateway.engines.simulated.faults import Kind
from tests.faults.hostile import FAULTS, Limit, Point
from tests.faults.matrix import OUTCOMES, PAGE, SIMULATED, SLOW, cells, placed
from tests.faults.rig import HEALTHY, Rig, rig, simulated
from tests.support import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.faults.matrix import Outcome
    from tests.faults.rig import Had, Proxy

CELLS = [
    pytest.param(
        name,
        point,
        OUTCOMES[outcome],
        id=f"{name}-{point.name.lower()}",
        marks=[pytest.mark.faults] if (name, point) in SLOW else [],
    )
    for name, point, outcome in cells()
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stand() -> AsyncIterator[Rig]:
    async with rig() as built:
        yield built


def check(had: Had, outcome: Outcome, proxy: Proxy) -> None:
    """The client that had nobody else: what it had, and what was counted."""
    assert had.status == outcome.status, had
    assert outcome.code is None or had.code == outcome.code, had
    assert had.whole or not outcome.whole, had
    assert (had.retry_after is not None) == (outcome.status in (429, 503))
    assert proxy.counted() == {("requests", str(outcome.booked)): 1}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("name", "point", "outcome"), CELLS)
async def test_a_fault(
    stand: Rig, name: str, point: Point, outcome: Outcome, caplog: pytest.LogCaptureFixture
) -> None:
    try:
        alone, paired = await stand.meets(name, point)
        check(alone, outcome, stand.alone)
        if outcome.retried:
            assert (paired.status, paired.whole, paired.text) == (200, True, stand.prompts[1])
            assert stand.paired.counted() == {("requests", "200"): 1, ("retries", outcome.retried): 1}
        else:
            check(paired, outcome, stand.paired)
        assert "stranger" not in alone.text + paired.text
        assert [proxy.blamed() for proxy in (stand.alone, stand.paired)] == [outcome.blamed] * 2
        assert not stand.paired.blamed(HEALTHY)
    finally:
        await stand.recovers(streams=point.streams)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("kind", sorted(set(SIMULATED) - {"die"}))  # which is the `killed` of the cells above
async def test_a_fault_of_a_simulated_engine(kind: str, streams: bool) -> None:
    outcome = OUTCOMES[SIMULATED[kind][streams]]
    limit = (Limit.FIRST_EVENT if streams else Limit.TOTAL) if kind == "hang" else Limit.NONE
    async with simulated() as (proxy, url):
        fault = {"kind": kind, "factor": 2, "after_tokens": 5, "health": True}
        assert (await proxy.http.post(f"{url}/faults", json=fault)).status_code == 200
        if outcome.code == "no_engine":
            await until(lambda: not any(view.up for view in proxy.views()))
        check(await proxy.ask("Text Recognition:", streams=streams, limit=limit), outcome, proxy)
        assert proxy.blamed() == outcome.blamed
        await until(proxy.at_base)


def test_every_fault_is_in_the_matrix_and_every_outcome_happens() -> None:
    found = {outcome for _, _, outcome in cells()} | {one for pair in SIMULATED.values() for one in pair}
    assert found == set(OUTCOMES)
    assert set(SIMULATED) == set(get_args(Kind))
    assert {name for name, _, _ in cells()} == set(FAULTS)


def test_the_documentation_holds_the_matrix() -> None:
    page = PAGE.read_text()
    assert page == placed(page), "python -m tests.faults.matrix writes it anew"
