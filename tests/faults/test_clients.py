"""Hostile and broken clients beside good ones, at a gateway of real processes over simulated engines."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from bench.connections import Crowd, measure, report
from bench.faults import engine_processes, write_config
from bench.serving import serve
from tests.faults.clients import HOSTILITIES, LONG_S, PATIENT, Stand, Target

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

# So short that a test need not wait, and so long that a busy machine does not make bad clients of good ones.
LIMITS = {"header_s": 4, "body_s": 4, "keep_alive_s": 6}


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    folder = tmp_path_factory.mktemp("clients")
    log = folder / "log"
    with engine_processes((3, 0), time_scale=10) as engines, log.open("wb") as file:
        write_config(folder / "routes.yaml", engines, limits=LIMITS, routes=PATIENT)
        with serve(folder / "routes.yaml", file.fileno()) as served:
            yield Stand(served, engines, log)


def check_log(log: str) -> None:
    """Whoever broke off or was sent away has a line; nothing in it is a fault of the gateway's."""
    assert not [word for word in ("Traceback", " ERROR ", " CRITICAL ", "code=500") if word in log], log


async def test_good_requests_finish_beside_all_of_them_at_once_and_nothing_is_left_of_them(
    stand: Stand,
) -> None:
    async with stand.beside_good_clients(), asyncio.timeout(LONG_S):
        await asyncio.gather(*(hostility(stand.target, False) for hostility in HOSTILITIES))
    log = stand.log()
    check_log(log)
    assert "code=499" in log
    assert "code=408" in log


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("hostility", HOSTILITIES, ids=lambda hostility: hostility.__name__)
async def test_good_requests_finish_and_nothing_is_left_of_one_that(
    hostility: Callable[[Target, bool], Awaitable[None]], stand: Stand
) -> None:
    before = len(stand.log())
    async with stand.beside_good_clients(), asyncio.timeout(10 * LONG_S):
        await hostility(stand.target, True)
    check_log(stand.log()[before:])


@pytest.mark.faults
async def test_a_crowd_of_idle_and_slow_connections_costs_no_request_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    crowd = Crowd(silent=200, kept=200, slow=40)
    result = await measure(tmp_path, crowd, windows=1, answers=60)
    calm, crowded = result.windows
    assert crowded.descriptors > calm.descriptors + 0.9 * crowd.total
    for window in result.windows:
        tally = window.tally
        assert (tally.lost, tally.silent, tally.told) == ({}, 0, 0)
        assert len(tally.seconds) >= 60
    assert not [line for line in report(result, crowd) if "nan" in line]
