import asyncio
from random import Random

import pytest

from gateway.model import Engine
from gateway.poller import Poller
from gateway.state import State
from tests.support import until


class ScriptedClient:
    """Answers health checks from a list; the last answer goes on for ever."""

    def __init__(self, *answers: bool | None) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def healthy(self, engine: Engine, within_s: float) -> bool | None:
        if engine.name == "broken":
            raise UnicodeError("label too long")
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


async def seen(*answers: bool | None, polls: int) -> list[bool]:
    """How the engine stood after each poll."""
    state = State([Engine("e", "http://e", "p", 0)], ["text"])
    client = ScriptedClient(*answers)
    poller = Poller(state, client, 1e-6, Random(1))  # type: ignore[arg-type]
    stood: list[bool] = []
    task = asyncio.create_task(poller.run())
    while len(stood) < polls:
        await until(lambda: client.asked > len(stood))
        stood.append(state.snapshot().engines[0].up)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return stood


async def test_an_engine_goes_up_and_down_with_its_answers() -> None:
    stood = await seen(True, True, False, polls=30)
    assert stood[0]
    assert not stood[-1]


async def test_short_silence_is_forgiven_and_long_silence_is_not() -> None:
    assert all(await seen(True, None, None, True, polls=20))
    assert not (await seen(True, None, polls=30))[-1]


async def test_an_engine_that_cannot_be_polled_does_not_end_the_watch_over_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    state = State([Engine("broken", "http://a..b", "p", 0), Engine("e", "http://e", "p", 0)], ["text"])
    client = ScriptedClient(True)
    task = asyncio.create_task(Poller(state, client, 1e-6, Random(1)).run())  # type: ignore[arg-type]
    await until(lambda: client.asked > 10)
    assert [view.up for view in state.snapshot().engines] == [False, True]
    assert "broken cannot be polled" in caplog.text
    task.cancel()


async def test_an_engine_that_hangs_is_reported_once_for_each_silence() -> None:
    state = State([Engine("e", "http://e", "p", 0)], ["text"])
    client = ScriptedClient(*[None] * 20, True, *[None] * 16, True)
    hung: list[str] = []
    poller = Poller(state, client, 1e-6, Random(1), lambda engine: hung.append(engine.name))  # type: ignore[arg-type]
    task = asyncio.create_task(poller.run())
    await until(lambda: client.asked > 40)
    assert hung == ["e", "e"]
    task.cancel()


async def test_an_engine_that_is_down_from_the_start_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    assert not any(await seen(False, polls=20))
    assert [record.getMessage() for record in caplog.records] == ["engine e is down"]
