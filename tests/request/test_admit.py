"""Places on engines: who gets one, who waits, and who is shed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.conftest import Fleeting, fleet
from tests.support import (
    answer,
    chat,
    hang,
    until,
)

if TYPE_CHECKING:
    import httpx
    import pytest

    from tests.conftest import Running

CHAT = "/v1/chat/completions"


async def test_no_engine_is_a_503_that_says_when_to_ask_again(running: Running) -> None:
    running.plain.healthy = False
    await until(lambda: not running.up("plain"))
    reply = await running.http.post(CHAT, json=chat())
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_engine")
    assert int(reply.headers["retry-after"]) > 0
    assert (await running.http.post(CHAT, json=chat("Table Recognition:"))).status_code == 200


async def test_a_gateway_that_drains_takes_no_new_work_and_says_so(running: Running) -> None:
    running.gateway.state.requests.draining = True
    reply = await running.http.post(CHAT, json=chat())
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "shutting_down")
    assert reply.headers["retry-after"] == "1"


class TestQueue:
    async def full(self, served_fleet: Fleeting, requests: int) -> list[asyncio.Task[httpx.Response]]:
        """Engines that never answer, as many requests on them as there is room, and more that wait."""
        for engine in served_fleet.engines:
            engine.behave = hang
        tasks = [asyncio.create_task(served_fleet.http.post(CHAT, json=chat())) for _ in range(requests)]
        state = served_fleet.gateway.state
        await until(
            lambda: (
                sum(status.view.ours for status in state.snapshot().engines) + state.queues.waiting("text")
                == requests
                and sum(engine.running for engine in served_fleet.engines)
                == sum(status.view.ours for status in state.snapshot().engines)
            )
        )
        return tasks

    async def leave(self, tasks: list[asyncio.Task[httpx.Response]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def test_who_finds_no_room_waits_for_it(self) -> None:
        async with fleet(1, max_load=2) as served_fleet:
            tasks = await self.full(served_fleet, 2)
            waiting = asyncio.create_task(served_fleet.http.post(CHAT, json=chat()))
            await until(lambda: served_fleet.gateway.state.queues.waiting("text") == 1)
            served_fleet.engines[0].behave = answer
            await asyncio.sleep(0.002)  # what is shorter is not told of
            tasks.pop().cancel()
            assert (await waiting).status_code == 200
            page = (await served_fleet.http.get("/metrics")).text
            assert 'ocr_gateway_queue_seconds_count{pool="pool",route="text"}' in page
            recent = (await served_fleet.http.get("/status")).json()["recent"]
            assert any("waited" in row["why"] for row in recent)
            await self.leave(tasks)

    async def test_a_full_queue_is_a_503_that_says_when_to_come_back(self) -> None:
        settings = "routes: {text: {queue: {max_waiting: 1, max_wait_s: 60}}}"
        async with fleet(1, settings, max_load=1) as served_fleet:
            tasks = await self.full(served_fleet, 2)
            reply = await served_fleet.http.post(CHAT, json=chat())
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "queue_full")
            assert int(reply.headers["retry-after"]) >= 1
            assert "max_waiting" in reply.json()["error"]["message"]
            page = (await served_fleet.http.get("/metrics")).text
            assert 'ocr_gateway_shed_total{reason="queue_full",route="text"} 1.0' in page
            (recent,) = (await served_fleet.http.get("/status")).json()["recent"]
            assert (recent["code"], recent["engine"], recent["why"]) == (503, None, "queue_full")
            assert 'ocr_gateway_waiting{route="text"} 1.0' in page
            await self.leave(tasks)

    async def test_where_nobody_may_wait_a_free_engine_is_still_used(self) -> None:
        settings = "routes: {text: {}, table: {queue: {max_waiting: 0}}}"
        async with fleet(1, settings, max_load=1) as served_fleet:
            tasks = await self.full(served_fleet, 2)
            refused = await served_fleet.http.post(CHAT, json=chat("Table Recognition:"))
            assert refused.json()["error"]["code"] == "queue_full"
            await self.leave(tasks)
            await until(lambda: served_fleet.gateway.state.requests.open == 0)
            served_fleet.engines[0].behave = answer
            assert (await served_fleet.http.post(CHAT, json=chat("Table Recognition:"))).status_code == 200

    async def test_who_waits_too_long_is_told(self) -> None:
        settings = "routes: {text: {queue: {max_waiting: 5, max_wait_s: 0.05}}}"
        async with fleet(1, settings, max_load=1) as served_fleet:
            first = asyncio.create_task(served_fleet.http.post(CHAT, json=chat()))
            served_fleet.engines[0].behave = hang
            await until(lambda: served_fleet.engines[0].running)
            reply = await served_fleet.http.post(CHAT, json=chat())
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "queue_timeout")
            assert int(reply.headers["retry-after"]) >= 1
            page = (await served_fleet.http.get("/metrics")).text
            assert 'ocr_gateway_queue_seconds_count{pool="",route="text"} 1.0' in page
            await self.leave([first])

    async def test_who_would_wait_too_long_is_refused_on_arrival(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with fleet(1, max_load=1) as served_fleet:
            tasks = await self.full(served_fleet, 2)
            monkeypatch.setattr(served_fleet.gateway.state.queues, "speed", lambda _: 0.02)
            reply = await served_fleet.http.post(CHAT, json=chat())
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "queue_too_slow")
            assert reply.headers["retry-after"] == "60"
            await self.leave(tasks)

    async def test_who_waits_on_a_route_that_is_taken_away_is_told(self) -> None:
        async with fleet(1, max_load=1) as served_fleet:
            tasks = await self.full(served_fleet, 2)
            state = served_fleet.gateway.state
            config = state.fleet.config
            routes = {"table": config.routes["table"]}
            await served_fleet.gateway.reload(config.model_copy(update={"routes": routes}))
            done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            (reply,) = (task.result() for task in done)
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_engine")
            await self.leave(list(rest))

    async def test_a_client_that_leaves_the_queue_frees_its_place_at_once(self) -> None:
        async with fleet(1, max_load=1) as served_fleet:
            tasks = await self.full(served_fleet, 5)
            await self.leave(tasks[1:])
            await until(lambda: served_fleet.gateway.state.requests.open == 1)
            await self.leave(tasks)
            await until(lambda: served_fleet.gateway.state.requests.open == 0)

    async def test_a_place_that_comes_as_its_client_leaves_is_not_lost(self) -> None:
        async with fleet(1, max_load=1) as served_fleet:
            tasks = await self.full(served_fleet, 40)
            await self.leave(tasks)
            await until(lambda: served_fleet.gateway.state.requests.open == 0)
            served_fleet.engines[0].behave = answer
            assert (await served_fleet.http.post(CHAT, json=chat())).status_code == 200
