"""Simulated engines that fail and a gateway that stops, under load, all in processes of their own."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

from bench.faults import FAULTS, Clients, Watch, engine_processes, serving, write_config

if TYPE_CHECKING:
    from pathlib import Path

CLIENTS = 24
LONG_S = 60


async def test_no_request_is_lost_that_had_not_begun(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    with engine_processes(time_scale=4) as engines:
        write_config(path, engines, breaker={"open_s": 1})
        async with serving(path) as served, Watch(served.url, engines) as watch:
            async with Clients([served.url], CLIENTS) as clients:
                for name, engine in zip(("kill", "garbage", "503", "drain"), engines, strict=True):
                    fault = next(fault for fault in FAULTS if fault.name.startswith(name))
                    tally = clients.fresh()
                    await fault.begin(watch, engine)
                    assert await watch.until(lambda sample, name=engine.name: not sample.serves(name), LONG_S)
                    await clients.answered(CLIENTS)
                    await fault.heal(watch, engine)
                    assert await watch.until(lambda sample, name=engine.name: sample.ours[name] > 2, LONG_S)
                    assert (tally.lost, tally.silent) == ({}, 0), fault.name
                    assert fault.may_break or tally.told == 0, fault.name
            while any(await watch.open()):  # noqa: ASYNC110 - other processes have no event to wait on
                await asyncio.sleep(0.05)
            async with Clients([served.url], CLIENTS) as clients:
                await clients.answered(CLIENTS)
                served.process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(served.process.wait, LONG_S) == 0
            assert (clients.tally.lost, clients.tally.silent, clients.tally.told) == ({}, 0, 0)
