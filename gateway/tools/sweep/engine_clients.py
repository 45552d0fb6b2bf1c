"""Clients of one engine, a fixed number or at a fixed rate, and what became of each request."""

from __future__ import annotations

import asyncio
import re
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from gateway.errors import EngineFailed, GatewayError
from gateway.model import Speculation, Usage
from gateway.wire import openai, sse

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from gateway.model import Engine, ToldSpeculation
    from gateway.tools.sweep.request_bodies import RequestBodies
    from gateway.upstream.client import EngineClient, EngineResponse

_PATH = "/v1/chat/completions"
# A connection each: of a kept one nobody knows whether the engine is just closing it, and one error costs the
# window. vLLM closes idle ones after 5 s, by the clock of a loop that may be busy.
_HEADERS = {"Content-Type": "application/json", "Connection": "close"}
_CONNECT_S = 5.0
_UNTOLD = Usage()
# In JSON no text can hold these: its quotes would be escaped.
_CUT_OFF = re.compile(rb'"finish_reason":\s*"length"')
_CONTENT = re.compile(r"data:[^\s'\"]*|[A-Za-z0-9+/=]{64,}")
_LONGEST_MESSAGE = 300
# Of a stream's events past the first text, only those with one of these tell anything.
_TELLS = re.compile(rb'"(?:usage|error|length)"|\[DONE\]')


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """A request that has ended.

    Attributes:
        sent, first, ended: when it was sent, when its first text came (0 where it was not streamed, or none
            came) and when it ended, in seconds of the load's clock.
        tokens: of the answer, as the engine told; 0 where it did not.
        speculation: what was drafted for it; None where the engine does not tell.
        error: what failed: `http_503`, `stream_error`, `no_usage`, or a code of the client's such as
            `engine_died`; empty where nothing did.
        truncated: the answer was cut off at its longest.
    """

    sent: float
    first: float
    ended: float
    tokens: int
    speculation: Speculation | None
    error: str = ""
    truncated: bool = False


class LoadGenerator:
    """Sends requests to one engine until it is stopped; used once, from one event loop.

    Args:
        client: sends them.
        engine: where to.
        bodies: what is sent.
        clock: tells the records' times; the event loop's clock where it is None.
        total_s: the longest a request may take.
        pause_s: how long a client waits after a failure.

    Attributes:
        in_flight: requests under way.
        sent: requests sent, in all.
        aborted: those cut off before they ended, by `stop` or because the load itself was cancelled.
        skipped: of an open loop, requests that would have been too many at once and were not sent.
        records: those that ended, in that order.
        messages: the first message of every kind of error.
    """

    def __init__(
        self,
        client: EngineClient,
        engine: Engine,
        bodies: RequestBodies,
        clock: Callable[[], float] | None = None,
        *,
        total_s: float = 600.0,
        pause_s: float = 1.0,
    ) -> None:
        self._client = client
        self._engine = engine
        self._bodies = bodies
        self._loop = asyncio.get_running_loop()
        self._clock = clock or self._loop.time
        self._total_s = total_s
        self._pause_s = pause_s
        self._stopping: asyncio.Future[None] = self._loop.create_future()
        self._under_way: set[asyncio.Task[object]] = set()
        self.sent = self.aborted = self.skipped = 0
        self.records: list[EndedRequest] = []
        self.messages: dict[str, str] = {}

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return len(self._under_way)

    async def closed(self, n: int) -> None:
        """Keep `n` requests under way, each client sending its next one at once, until `stop`."""
        async with asyncio.TaskGroup() as group:
            for _ in range(n):
                group.create_task(self._send_again())

    async def open(self, per_s: float, most: int, rng: Random) -> None:
        """Send requests at random moments, `per_s` a second on average (Poisson arrivals), until `stop`.

        One that would make more than `most` under way is skipped, and counted.
        """
        at = self._loop.time()
        async with asyncio.TaskGroup() as group:
            while True:
                at += rng.expovariate(per_s)
                if await self._stops_within(at - self._loop.time()):
                    break
                if self.in_flight < most:
                    group.create_task(self._send())
                else:
                    self.skipped += 1

    async def stop(self, drain_s: float) -> bool:
        """Send nothing more, and give what is under way `drain_s` to end; `closed` or `open` returns then.

        Returns:
            Whether all ended by themselves; what did not is aborted.
        """
        if not self._stopping.done():
            self._stopping.set_result(None)
        if not self._under_way:
            return True
        _, late = await asyncio.wait(self._under_way, timeout=drain_s)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
        return not late

    async def _send_again(self) -> None:
        while not self._stopping.done():
            if (await self._send()).error:
                await self._stops_within(self._pause_s)

    async def _stops_within(self, seconds: float) -> bool:
        await asyncio.wait((self._stopping,), timeout=seconds)
        return self._stopping.done()

    async def _send(self) -> EndedRequest:
        """Send one request and record what became of it."""
        task = cast("asyncio.Task[object]", asyncio.current_task())
        self._under_way.add(task)
        self.sent += 1
        answered, error, sent = _Answered(), "", self._clock()
        try:
            await self._exchange(answered)
        except GatewayError as failure:
            error = failure.code or "failed"
            self.messages.setdefault(error, self._bare(failure.message))
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            self._under_way.discard(task)
        record = EndedRequest(
            sent,
            answered.first,
            self._clock(),
            answered.usage.completion_tokens,
            answered.speculation if isinstance(answered.speculation, Speculation) else None,
            error,
            answered.truncated,
        )
        self.records.append(record)
        return record

    def _bare(self, message: str) -> str:
        """An engine's message without the key and the images that some engines repeat in it."""
        if self._engine.api_key:
            message = message.replace(self._engine.api_key, "...")
        return _CONTENT.sub("...", message)[:_LONGEST_MESSAGE]

    async def _exchange(self, answered: _Answered) -> None:
        sent = self._client.send(
            self._engine,
            _PATH,
            (self._bodies.next(),),
            _HEADERS,
            connect_s=_CONNECT_S,
            first_event_s=None,
            deadline=self._loop.time() + self._total_s,
        )
        with closing(await sent) as answer:
            if answer.status != 200:
                told = openai.read_error_message(await answer.read())
                raise EngineFailed(told or "no message", code=f"http_{answer.status}")
            if answer.is_stream:
                await self._stream(answer, answered)
            else:
                answered.take_whole(await answer.read())
        if not answered.usage.completion_tokens:
            raise EngineFailed("the answer does not tell its tokens, or has none", code="no_usage")

    async def _stream(self, answer: EngineResponse, answered: _Answered) -> None:
        splitter = sse.EventSplitter()
        while data := await answer.more(None):
            for event in splitter.feed(data):
                if not answered.first or _TELLS.search(event):
                    answered.take_event(event, self._clock)
        answered.take_event(splitter.rest(), self._clock)
        if not answered.done:
            raise EngineFailed("the stream ended without its end mark", code="stream_error")


@dataclass(slots=True)
class _Answered:
    """What has come of an answer so far."""

    first: float = 0.0
    usage: Usage = _UNTOLD
    speculation: ToldSpeculation = None
    truncated: bool = False
    done: bool = False

    def take_whole(self, body: bytes) -> None:
        whole = openai.read_answer(body)
        if whole is None:
            raise EngineFailed("the answer is no completion", code="engine_garbage")
        self.usage, self.speculation = whole.usage or _UNTOLD, whole.speculation
        self.truncated = bool(_CUT_OFF.search(body))

    def take_event(self, event: bytes, clock: Callable[[], float]) -> None:
        data = sse.event_data(event)
        if data is None:
            return
        if data == sse.DONE:
            self.done = True
            return
        chunk = openai.read_chunk(data)
        if chunk.is_error:
            raise EngineFailed(openai.read_error_message(data) or "no message", code="stream_error")
        if chunk.has_output and not self.first:
            self.first = clock()
        if chunk.usage:
            self.usage, self.speculation = chunk.usage, chunk.speculation
        self.truncated |= bool(_CUT_OFF.search(data))
