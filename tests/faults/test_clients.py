"""Hostile and broken clients beside good ones, at a gateway of real processes over simulated engines."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING

import pytest

from bench.clients import Clients
from bench.engines import engine_processes, write_config
from bench.serving import serve
from tests.faults.clients import HOSTILITIES, LONG_S, PATIENT, Stand, Target, status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
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


@contextlib.asynccontextmanager
async def crowd(target: Target) -> AsyncIterator[int]:
    """Hold idle connections, half of them behind an answer, and slow ones; yield how many there are."""
    slow_head = b"POST /v1/chat/completions HTTP/1.1\r\nx-slow: "
    slow_body = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\n"
        b"content-type: application/json\r\ncontent-length: 100000\r\n\r\n{"
    )
    async with target.peers(200) as silent, target.peers(200) as kept, target.peers(40) as slow:
        for peer in kept:
            await peer.send(b"GET /health HTTP/1.1\r\nhost: gateway\r\n\r\n")
            assert status(await peer.answer()) == 200
        beginnings = itertools.cycle((slow_head, slow_body))
        sending = [
            asyncio.create_task(peer.drip(itertools.chain([begun], itertools.repeat(b" ")), pause_s=1))
            for peer, begun in zip(slow, beginnings, strict=False)
        ]
        try:
            yield len([*silent, *kept, *slow])
        finally:
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)


@pytest.mark.faults
async def test_a_crowd_of_idle_and_slow_connections_costs_no_request_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    waits = dict.fromkeys(("header_s", "body_s", "keep_alive_s"), 10 * LONG_S)  # nobody is sent away here
    with engine_processes((3, 0), time_scale=50) as engines:
        write_config(tmp_path / "routes.yaml", engines, limits=waits)
        with serve(tmp_path / "routes.yaml") as served:
            stand = Stand(served, engines, tmp_path / "log")
            async with Clients([served.url], 4) as clients, asyncio.timeout(2 * LONG_S):
                await clients.wait_answered(60)
                before = stand.descriptors()
                async with crowd(stand.target) as count:
                    await clients.wait_answered(60)
                    assert stand.descriptors() > before + 0.9 * count
                while stand.descriptors() > before + 8:  # noqa: ASYNC110 - another process has no event
                    await asyncio.sleep(0.1)
            tally = clients.tally
            assert (tally.failed, tally.cut, tally.error_events) == ({}, 0, 0)
            assert len(tally.seconds) >= 120
