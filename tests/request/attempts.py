"""One attempt at an engine that behaves as told, and what came of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from gateway.config import Timeouts, parse
from gateway.errors import GatewayError
from gateway.model import Engine
from gateway.policy.fail.breaker import Phase
from gateway.request.attempt import AttemptFailed, GatewayResponse, attempt
from gateway.request.receive import EngineRequest
from gateway.request.record import AnswerOutcome
from gateway.state.fleet import Fleet
from gateway.state.lease import Lease
from gateway.state.requests import BodyMemory
from gateway.state.store import State
from gateway.upstream.client import EngineClient
from gateway.wire.openai import COMPLETIONS
from tests.support import FakeEngine, served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.policy.account.acceptance import Sample
    from gateway.policy.fail.retry import Failure
    from gateway.wire.openai import Dialect
    from tests.support import _Sender

CONFIG = """
model: m
pools: {p: {engines: [http://e], speculative_config: {method: mtp, num_speculative_tokens: 3}}}
routes: {text: {}}
breaker: {failures: 1}
"""
# What vLLM makes of a request that reaches its engine when that is to stop.
ABORTED = b'{"choices":[{"index":0,"delta":{},"message":{"content":""},"finish_reason":"abort"}]}'
OPENING = b'{"choices":[{"index":0,"delta":{"role":"assistant"},"finish_reason":null}]}'
BODY = b'{"model": "m"}'
DONE = b"data: [DONE]\n\n"
TIMEOUTS = Timeouts(connect_s=2, first_event_s=5, idle_s=5, total_s=20)


def events(*values: Any, end: bool = True) -> Any:
    """An engine that streams these."""

    async def behave(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.start(kind="text/event-stream")
        for value in values:
            await (send.body(value) if isinstance(value, bytes) else send.event(value))
        if not end:
            raise ConnectionError
        await send.body(b"", more=False)

    return behave


def status(code: int, body: Any = None) -> Any:
    async def behave(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.json({"error": {"message": "told"}} if body is None else body, code)

    return behave


class Tried:
    """One attempt, and what came of it."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self.failure: Failure | None = None
        self.instead: GatewayResponse | None = None
        self.logged = ""
        self.code: str | None = None
        self.phase = Phase.CLOSED
        self.in_flight_at_the_end: int | None = None
        self.outcome = AnswerOutcome()
        self.held = self.held_at_the_end = 0
        self.error: GatewayError | None = None
        self.sample: Sample | None = None


async def tried(
    behave: Any,
    *,
    stream: bool = True,
    strip_usage: bool = False,
    lose: bool = False,
    timeouts: Timeouts = TIMEOUTS,
    merged: bool = False,
    leave_at: bytes | None = None,
    begun: asyncio.Event | None = None,
    answer_bytes: int = 10**6,
    memory_bytes: int = 10**6,
    dialect: Dialect = COMPLETIONS,
) -> Tried:
    fake, result = FakeEngine(behave), Tried()
    async with served(fake) as url, EngineClient() as client:
        engine = Engine("e", url, "p", 3)
        state = State(
            Fleet.of(parse(CONFIG, "f", Path(), {})), [engine], asyncio.get_running_loop().time, Random()
        )
        state.mark("e", up=True)
        lease = state.take("text")
        assert isinstance(lease, Lease)
        if lose:
            asyncio.get_running_loop().call_later(0, lambda: lose_when_running(state, fake))
        held = BodyMemory(memory_bytes).claim("client")
        held.add(len(BODY))
        request = EngineRequest(
            path="/v1/chat/completions",
            request_id="id",
            body=(BODY,),
            held=held,
            answer_bytes=answer_bytes,
            stream=stream,
            strip_usage=strip_usage,
            timeouts=timeouts,
            merged=merged,
            dialect=dialect,
            context={},
            trace=None,
        )

        async def deliver(response: GatewayResponse) -> None:
            result.status = response.status
            result.held = held.size
            async for part in parts(response):
                result.body += part
                if begun:
                    begun.set()
                if leave_at and leave_at in result.body:
                    break
            result.held_at_the_end = held.size
            result.in_flight_at_the_end = state.snapshot().routes["text"].in_flight

        deadline = asyncio.get_running_loop().time() + 20
        with lease:
            try:
                await attempt(client, request, lease, result.outcome, deadline, deliver)
            except AttemptFailed as failed:
                result.failure, result.code, result.error = failed.failure, failed.error.code, failed.error
                result.instead, result.logged = failed.response, failed.told
                assert held.size == sum(map(len, request.body)) == len(BODY)
            except GatewayError as error:
                result.error = error
        result.sample = lease.sample
        result.phase = state.snapshot().engines[0].phase
        assert lease.on_lost is None
    return result


async def parts(response: GatewayResponse) -> AsyncIterator[bytes]:
    if isinstance(response.body, bytes):
        yield response.body
        return
    async for part in response.body:
        yield part


def lose_when_running(state: State, fake: FakeEngine) -> None:
    if fake.running:
        state.mark_lost("e")
    else:
        asyncio.get_running_loop().call_later(0.01, lambda: lose_when_running(state, fake))
