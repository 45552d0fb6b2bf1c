"""Clients in a closed loop that forgive nothing: a request that is not answered in whole has failed.

They keep idle connections as long as the openai SDK and others do, and try nothing again.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
from PIL import Image, ImageDraw

from deploy.rehearsal.kept_connections import KeptConnections
from gateway.tools.demo.demo_load import PATH, PROMPTS, chat

if TYPE_CHECKING:
    from types import TracebackType

# How long clients keep idle connections: the openai SDK, which shares them between all that ask through it;
# and aiohttp's, which stands for those that pause between requests.
_SDK_KEEPS_S = 5.0
_PATIENT_KEEPS_S = 15.0
# The longest that a slow client pauses.
_PAUSE_S = 20.0
_SHARING = 8
_ONE_IN_SLOW = 8
_ONE_IN_LONG = 8
# Fewer events leave more of a small machine to connections, which is what is rehearsed.
_TOKENS_AN_EVENT = 8
_STREAM: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
_PAUSE_AFTER_FAILURE_S = 0.1
_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Failure:
    """One request that failed: when (seconds after the start), whose, and how."""

    at_s: float
    client: str
    reason: str


@dataclass
class Tally:
    """What became of requests.

    Attributes:
        answered: whole answers.
        streamed: how many of them were streams.
        failures: every request that was not.
        longest_gap_s: the longest time in which no answer ended.
    """

    answered: int = 0
    streamed: int = 0
    failures: list[Failure] = field(default_factory=list)
    longest_gap_s: float = 0.0

    @property
    def reasons(self) -> Counter[str]:
        """How many failed in which way."""
        return Counter(failure.reason for failure in self.failures)


@dataclass(frozen=True)
class _Client:
    name: str
    url: str
    connections: KeptConnections
    body: bytes
    stream: bool
    tokens: int
    pause_s: float


class Clients:
    """Clients in a closed loop, half of them streaming; an asynchronous context manager that runs them.

    One in eight pauses between requests, so that its connection is idle when a gateway stops; one in eight
    asks for answers that outlast a gateway's linger.
    """

    def __init__(
        self, url: str, model: str, count: int, *, key: str, tokens: int, long_tokens: int, pace: float
    ) -> None:
        """Prepare clients.

        Args:
            url: where they ask.
            model: what they ask for.
            count: how many there are.
            key: the API key they show.
            tokens: an ordinary answer's length.
            long_tokens: a long answer's.
            pace: multiplies pauses between requests, and the time for which idle connections are kept.
        """
        self._url = url
        self._model = model
        self._count = count
        self._headers = {"Authorization": f"Bearer {key}"}
        self._tokens = tokens
        self._long_tokens = long_tokens
        self._pace = pace
        self._ending = asyncio.Event()
        self._rng = random.Random(0)
        self.tally = Tally()

    async def __aenter__(self) -> Clients:
        self._began = self._last = time.monotonic()
        image = _page()
        self._pools: list[KeptConnections] = []
        self._tasks = []
        for number in range(self._count):
            slow = number % _ONE_IN_SLOW == 0
            if slow or number % _SHARING == 1:
                keeps_s = self._pace * (_PATIENT_KEEPS_S if slow else _SDK_KEEPS_S)
                self._pools.append(KeptConnections(keeps_s, self._headers))
            stream = number // 2 % 2 == 0
            long = number % _ONE_IN_LONG in (2, 4) and number // _ONE_IN_LONG % 2 == 0
            tokens = self._long_tokens if long else self._tokens + self._rng.randrange(self._tokens)
            kind = f"{'slow ' * slow}{'long ' * long}{'stream' if stream else 'whole'}"
            body = chat(
                PROMPTS[number % len(PROMPTS)],
                image,
                model=self._model,
                max_tokens=tokens,
                ignore_eos=True,
                stream_interval=_TOKENS_AN_EVENT,
                **(_STREAM if stream else {}),
            )
            client = _Client(
                f"{number} ({kind})",
                self._url + PATH,
                self._pools[-1],
                body,
                stream,
                tokens,
                slow * _PAUSE_S * self._pace,
            )
            self._tasks.append(asyncio.create_task(self._run(client)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let every client end with the request that it has."""
        self._ending.set()
        if error:
            for task in self._tasks:
                task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        for pool in self._pools:
            await pool.aclose()
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def answered(self, more: int) -> None:
        """Wait until so many more requests have been answered or have failed."""
        wanted = self._ended + more
        while self._ended < wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    @property
    def _ended(self) -> int:
        return self.tally.answered + len(self.tally.failures)

    async def _run(self, client: _Client) -> None:
        while not self._ending.is_set():
            reason = await _request(client)
            now = time.monotonic()
            if reason is None:
                self.tally.longest_gap_s = max(self.tally.longest_gap_s, now - self._last)
                self._last = now
                self.tally.answered += 1
                self.tally.streamed += client.stream
            else:
                self.tally.failures.append(Failure(now - self._began, client.name, reason))
            pause_s = self._rng.uniform(0, client.pause_s) if reason is None else _PAUSE_AFTER_FAILURE_S
            if pause_s:
                await asyncio.wait([asyncio.ensure_future(self._ending.wait())], timeout=pause_s)


async def _request(client: _Client) -> str | None:
    """Ask once; return what was wrong with the answer, None where nothing was."""
    headers = {"content-type": "application/json"}
    try:
        async with asyncio.timeout(_TIMEOUT_S), client.connections.client() as http:
            reply = await http.post(client.url, content=client.body, headers=headers)
        read = _streamed if client.stream else _whole
        return _refusal(reply.status_code, reply.content) or read(reply.content, client.tokens)
    except (httpx.HTTPError, TimeoutError, ValueError, KeyError) as error:
        return f"{type(error).__name__}: {error}"


def _refusal(status: int, body: bytes) -> str | None:
    if status == 200:
        return None
    try:
        return f"{status} {json.loads(body)['error']['code']}"
    except (ValueError, KeyError, TypeError):
        return f"{status} {body[:60].decode('utf-8', 'replace')}"


def _whole(body: bytes, tokens: int) -> str | None:
    return None if json.loads(body)["usage"]["completion_tokens"] == tokens else "an answer that is not whole"


def _streamed(body: bytes, tokens: int) -> str | None:
    events = [line.removeprefix("data: ") for line in body.decode().splitlines() if line]
    chunks = [json.loads(event) for event in events if event != "[DONE]"]
    if any("error" in event for event in chunks):
        return "an error event"
    if not chunks or events[-1] != "[DONE]":
        return "a stream that broke off"
    usage = chunks[-1].get("usage") or {}
    return None if usage.get("completion_tokens") == tokens else "a stream that is not whole"


def _page() -> str:
    """A page with words on it, about 100 KB, as a data URL."""
    image = Image.effect_noise((480, 640), 12)
    draw = ImageDraw.Draw(image)
    for y in range(20, 620, 20):
        draw.text((20, y), "item        quantity        price        amount", fill=0)
    data = io.BytesIO()
    image.save(data, "JPEG", quality=90)
    return f"data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}"
