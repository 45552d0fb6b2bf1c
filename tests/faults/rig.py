"""Two gateways before a hostile engine: one has nobody else, the other a healthy engine beside it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from gateway.config import parse
from gateway.engines.simulated.simulated_server import SimulatedEngine
from gateway.engines.simulated.step_model import Fit
from gateway.policy.fail.breaker import Phase
from gateway.server.app import Gateway
from gateway.wire.sse import EventSplitter, event_data
from tests.faults.hostile import FAULTS, PROMPT, Hostile, Limit, Point, ready
from tests.support import served, serving, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HOSTILE, HEALTHY = "hostile", "healthy"
# Each limit by itself: a fault runs into the one that it is meant to, however slow the machine is.
_LIMITS: dict[Limit, dict[str, float]] = {
    Limit.NONE: {},
    Limit.CONNECT: {"connect_s": 0.3},
    Limit.FIRST_EVENT: {"first_event_s": 0.2},
    Limit.IDLE: {"idle_s": 0.2},
    Limit.TOTAL: {"total_s": 0.3},
    Limit.STREAM_TOTAL: {"total_s": 1},
}
_PROMPTS = (f"p{number:07}" for number in itertools.count())


@dataclass
class Had:
    """What a client had of one request.

    Attributes:
        status: HTTP status.
        code: the error's code, of the answer or of the last event.
        text: what was written.
        whole: it ended as it should: a stream with [DONE].
        body: all of it.
        retry_after: the header.
    """

    status: int
    body: bytes = b""
    code: str | None = None
    text: str = ""
    whole: bool = False
    retry_after: str | None = None


@dataclass
class Proxy:
    """A gateway, its client, and what its counters were."""

    gateway: Gateway
    url: str
    http: httpx.AsyncClient
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def counted(self) -> Counter[tuple[str, str]]:
        """What requests_total and retries_total have grown by, summed by code and by reason."""
        counts: Counter[tuple[str, str]] = Counter()
        metrics = self.gateway._metrics
        for name, family, label in (
            ("requests", metrics._requests, "code"),
            ("retries", metrics._retries, "reason"),
        ):
            for sample in next(iter(family.collect())).samples:
                if sample.name.endswith("_total"):
                    counts[name, sample.labels[label]] += int(sample.value)
        grown, self.counts = counts - self.counts, counts
        return grown

    def heal(self) -> None:
        """Have the engine found down and up again, as its health check would: then it is tried anew."""
        (name,) = (view.engine.name for view in self.views() if view.engine.pool == HOSTILE)
        self.gateway.state.mark(name, up=False)
        self.gateway.state.mark(name, up=True)

    def views(self) -> list[Any]:
        return [status.view for status in self.gateway.state.snapshot().engines]

    def blamed(self, pool: str = HOSTILE) -> bool:
        """Whether the breaker of an engine, of the hostile one, has been opened."""
        engines = self.gateway.state.snapshot().engines
        return any(one.phase is Phase.OPEN for one in engines if one.view.engine.pool == pool)

    def at_base(self) -> bool:
        """Whether nothing of any request is left."""
        snapshot = self.gateway.state.snapshot()
        routes = snapshot.routes.values()
        return not (
            self.gateway.state.requests.open
            or self.gateway.state.memory.total
            or any(route.in_flight or route.waiting for route in routes)
            or any(status.view.ours for status in snapshot.engines)
        )

    async def ask(
        self, prompt: str, *, streams: bool, limit: Limit, engine: Hostile | None = None, padding: int = 0
    ) -> Had:
        """Send a request and read its answer to the end, however that is."""
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": [{"type": "text", "text": prompt}]}],
            "stream": streams,
            "padding": "x" * padding,
        }
        async with self.http.stream(
            "POST",
            self.url + "/v1/chat/completions",
            content=json.dumps(body).encode(),
            headers={"x-ocr-route": limit, "content-type": "application/json"},
        ) as reply:
            had = Had(reply.status_code, retry_after=reply.headers.get("retry-after"))
            async for data in reply.aiter_raw():
                had.body += data
                if engine:
                    engine.seen(prompt.encode()).set()
            if streams and reply.headers["content-type"].startswith("text/event-stream"):
                _read_stream(had)
            else:
                _read_whole(had)
        return had


def had_of(answer: bytes) -> Had:
    """Read a whole answer as it came over the wire."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status_line, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    had = Had(int(status_line.split()[1]), body, retry_after=headers.get("retry-after"))
    _read_whole(had)
    return had


def _read_stream(had: Had) -> None:
    splitter = EventSplitter(1 << 30)
    for event in [*splitter.feed(had.body), splitter.rest()]:
        data = event_data(event)
        if data == b"[DONE]":
            had.whole = True
            continue
        with contextlib.suppress(ValueError, RecursionError):
            told = json.loads(data or b"{}")
            if error := told.get("error"):
                had.code = error.get("code") if isinstance(error, dict) else error
            had.text += "".join(part["delta"].get("content") or "" for part in told.get("choices", ()))


def _read_whole(had: Had) -> None:
    with contextlib.suppress(ValueError, RecursionError, TypeError, KeyError):
        told = json.loads(had.body)
        if error := told.get("error"):
            had.code = error["code"]
        else:
            had.text, had.whole = told["choices"][0]["message"]["content"], True


@dataclass
class Rig:
    """Everything, once for all cells."""

    hostile: Hostile
    healthy: Hostile
    alone: Proxy
    paired: Proxy
    prompts: tuple[str, str] = ("", "")

    async def meets(self, name: str, point: Point) -> tuple[Had, Had]:
        """Have both gateways meet a fault; return what their clients had."""
        fault = FAULTS[name]
        self.prompts = next(_PROMPTS), next(_PROMPTS)

        async def ask(proxy: Proxy, prompt: str) -> Had:
            return await proxy.ask(
                prompt,
                streams=point.streams,
                limit=fault.limit(point),
                engine=self.hostile,
                padding=8_000_000 if fault.unread else 0,
            )

        self.hostile.suffer(fault, point)
        async with self._circumstances(name, point) as act:
            asked = asyncio.gather(ask(self.alone, self.prompts[0]), ask(self.paired, self.prompts[1]))
            await act(asked)
            had = await asked
        await until(lambda: self.alone.at_base() and self.paired.at_base() and not self.hostile.open)
        self.hostile.suffer(None)
        return had

    async def recovers(self, *, streams: bool) -> None:
        """Have the engine found well again; whoever comes next must have an answer, and his own."""
        self.hostile.suffer(None)
        for proxy in (self.alone, self.paired):
            proxy.heal()
            prompt = next(_PROMPTS)
            had = await proxy.ask(prompt, streams=streams, limit=Limit.NONE, engine=self.hostile)
            assert (had.status, had.text, had.whole) == (200, prompt, True), had
            await until(proxy.at_base)
            assert not proxy.blamed()
            proxy.counted()

    @contextlib.asynccontextmanager
    async def _circumstances(self, name: str, point: Point) -> AsyncIterator[Any]:
        """Bring about what an engine cannot write; yields what to do while it is asked."""

        async def nothing(_: object) -> None: ...

        if name == "refused":
            async with self.hostile.refusing():
                yield nothing
        elif name == "no-connection":
            async with self.hostile.unreachable():
                yield nothing
        elif name == "stopped":
            async with self.hostile.stopped():
                yield nothing
        elif ready in FAULTS[name].steps[point]:
            async with self.hostile.stopped() as listener, _process(listener.fileno(), name, point) as act:
                yield act
        else:
            yield nothing


@contextlib.asynccontextmanager
async def _process(fd: int, name: str, point: Point) -> AsyncIterator[Any]:
    """The engine as a process, to which a signal is sent once both requests have come so far."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.faults.hostile",
        str(fd),
        name,
        point.name,
        pass_fds=[fd],
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout

    async def act(asked: asyncio.Future[Any]) -> None:
        assert process.stdout
        for _ in range(2):
            await process.stdout.readline()
        process.send_signal(signal.SIGSTOP if name == "paused" else signal.SIGKILL)

    try:
        yield act
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _before(stack: contextlib.AsyncExitStack, pools: dict[str, str], scrape_s: float) -> Proxy:
    """Serve a gateway before engines, one in each pool."""
    config = {
        "model": "m",
        "pools": {name: {"engines": [url]} for name, url in pools.items()},
        "routes": {limit: {"timeouts": timeouts} for limit, timeouts in _LIMITS.items()},
        "polling": {"scrape_s": scrape_s},
        "breaker": {"failures": 1, "open_s": 3600, "probes": 1},
        "limits": {"answer_bytes": 2_000_000},
    }
    gateway = Gateway(parse(json.dumps(config), "routes.yaml", Path(), {}))
    url = await stack.enter_async_context(serving(gateway))
    http = httpx.AsyncClient(limits=httpx.Limits(), timeout=None, trust_env=False)
    proxy = Proxy(gateway, url, await stack.enter_async_context(http))
    await until(lambda: all(view.up for view in proxy.views()))
    return proxy


@contextlib.asynccontextmanager
async def simulated() -> AsyncIterator[tuple[Proxy, str]]:
    """A gateway before one simulated engine, whose URL comes along."""
    app = SimulatedEngine(Fit.builtin("h100-9b"), model="m", time_scale=1000).app()
    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(served(app))
        yield await _before(stack, {HOSTILE: url}, scrape_s=0.05), url


@contextlib.asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    async with contextlib.AsyncExitStack() as stack:
        hostile = await stack.enter_async_context(Hostile())
        healthy = await stack.enter_async_context(Hostile(load=5))  # so that the hostile one is asked first
        alone = await _before(stack, {HOSTILE: hostile.url}, scrape_s=3600)
        paired = await _before(stack, {HOSTILE: hostile.url, HEALTHY: healthy.url}, scrape_s=3600)
        yield Rig(hostile, healthy, alone, paired)


assert len(next(_PROMPTS)) == len(PROMPT)
