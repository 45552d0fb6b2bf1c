from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from gateway.tools.demo import demo_load
from gateway.tools.demo.demo_load import Request, breath, chat, clients
from tests.support import FakeEngine, hang, served, until

if TYPE_CHECKING:
    from tests.conftest import Running

ASKS = Request(chat("Text Recognition:", None))


def test_the_load_breathes() -> None:
    levels = [breath(second, 120, 4, 200) for second in range(121)]
    assert levels[0] == levels[120] == min(levels) == 4
    assert levels[60] == max(levels) == 200
    assert levels[:61] == sorted(levels[:61])
    assert levels[60:] == sorted(levels[60:], reverse=True)


async def test_each_clients_next_request_waits_for_the_last() -> None:
    engine = FakeEngine(behave=hang)
    async with served(engine) as url, clients(url, [ASKS]) as crowd:
        crowd.want(3)
        await until(lambda: engine.running == 3)
        crowd.want(5)
        await until(lambda: engine.running == 5)
        assert len(engine.bodies) == 5
    await until(lambda: engine.running == 0)


async def test_who_is_too_much_leaves_once_answered() -> None:
    engine = FakeEngine()
    async with served(engine) as url, clients(url, [ASKS]) as crowd:
        crowd.want(4)
        await until(lambda: crowd.ends["answered"] > 8)
        crowd.want(0)
        await until(lambda: all(task.done() for task in crowd._tasks.values()))
        count = len(engine.bodies)
        assert crowd.ends == {"answered": count}
        crowd.want(1)
        await until(lambda: len(engine.bodies) > count)


async def test_the_prompts_go_to_each_route(running: Running) -> None:
    async with clients(
        running.url, [Request(chat(prompt, demo_load.page())) for prompt in demo_load.PROMPTS]
    ) as crowd:
        crowd.want(3)
        await until(lambda: crowd.ends["answered"] >= 9)
    for route in ("text", "key-value", "table"):
        assert await running.metric("ocr_gateway_sort_decisions_total", route=route, reason="prompt") >= 1


@pytest.mark.parametrize(
    ("status", "headers", "pause_s"),
    [(503, {"retry-after": "3"}, 3.0), (503, {"retry-after": "999"}, 10.0), (400, {}, 1.0)],
)
async def test_a_client_that_is_refused_waits_as_told(
    status: int, headers: dict[str, str], pause_s: float
) -> None:
    async def refuse(engine: FakeEngine, request: dict[str, Any], send: Any) -> None:
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send.send({"type": "http.response.start", "status": status, "headers": raw})
        await send.body(b"", more=False)

    async with served(FakeEngine(behave=refuse)) as url, clients(url, [ASKS]) as crowd:
        assert await crowd.send(ASKS) == pause_s
        assert crowd.ends == {str(status): 1}


async def test_a_client_may_leave_and_a_gateway_may_be_gone() -> None:
    async with served(FakeEngine(behave=hang)) as url, clients(url, [ASKS]) as crowd:
        assert await crowd.send(Request(ASKS.body, leaves_s=0.01)) == 0.0
        assert crowd.ends == {"left": 1}
    async with clients("http://127.0.0.1:9", [ASKS]) as crowd:
        assert await crowd.send(ASKS) == 1.0
        assert crowd.ends == {"broken off": 1}


async def test_it_runs_by_itself() -> None:
    engine = FakeEngine()
    async with served(engine) as url:
        _, module, *options = demo_load.arguments(url, 2, 2, 60.0)
        assert module == demo_load.__name__
        chosen = demo_load.parser().parse_args(options)
        assert (chosen.gateway, chosen.few, chosen.many, chosen.period) == (url, 2, 2, 60.0)
        task = asyncio.create_task(demo_load.run(chosen.gateway, chosen.few, chosen.many, chosen.period))
        await until(lambda: asked(engine) == set(demo_load.PROMPTS[:2]))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def asked(engine: FakeEngine) -> set[str]:
    return {request["messages"][0]["content"][1]["text"] for request in engine.requests}


def test_ctrl_c_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo_load, "run", interrupted)
    demo_load.main(demo_load.arguments("http://127.0.0.1:9", 1, 2, 3.0)[2:])
