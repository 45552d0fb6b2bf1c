"""One of three engines fails at once, in every way: it must not swallow what the others would have served."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.conftest import fleet
from tests.support import FakeEngine, _Sender, answer, breaks_off, chat, failing

if TYPE_CHECKING:
    from collections.abc import Callable

CHAT = "/v1/chat/completions"
CLIENTS = 32
# So long a good answer takes: the one that fails is always the one with the least to do.
_WORK_S = 0.01
_TOLD = b'{"error": {"message": "told"}}'


async def works(engine: FakeEngine, request: Any, send: _Sender) -> None:
    await asyncio.sleep(_WORK_S)
    await answer(engine, request, send)


WAYS: dict[str, Any] = {
    "breaks off": breaks_off,
    "redirect": failing(307, b"", location="http://127.0.0.1:1/"),
    "html": failing(200, b"<html><title>Welcome</title>", "text/html"),
    "html 404": failing(404, b"<html><title>Not Found</title>", "text/html"),
    "empty 200": failing(200, b""),
    "empty 204": failing(204, b""),
    "empty 400": failing(400, b""),
    "flat error as 200": failing(200, b'{"object": "error", "message": "no such model", "code": 404}'),
    "detail 422": failing(422, b'{"detail": [{"msg": "field required"}]}'),
}
SHORT = [400, 401, 403, 404, 405, 408, 413, 415, 429, 500, 501, 502, 503, 504, 599]


async def lost_of(behave: Any, requests: int, log: Callable[[], str]) -> tuple[int, float]:
    """Return how many of so many requests failed, and after how many seconds the log named the engine."""
    async with fleet(3, "breaker: {failures: 5, open_s: 10, probes: 2}") as served:
        bad, *good = served.engines
        bad.behave = behave
        for engine in good:
            engine.behave = works
        name = served.gateway.state.snapshot().engines[0].view.engine.name
        began, named, left, codes = time.monotonic(), 0.0, requests, list[int]()

        async def client() -> None:
            nonlocal named, left
            async with httpx.AsyncClient(base_url=served.http.base_url, timeout=30) as http:
                while left:
                    left -= 1
                    codes.append((await http.post(CHAT, json=chat())).status_code)
                    if not named and name in log():
                        named = time.monotonic() - began

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return requests - codes.count(200), named


@pytest.mark.parametrize("way", [*WAYS, *SHORT])
async def test_one_that_fails_at_once_does_not_swallow_the_fleet(
    way: str | int, caplog: pytest.LogCaptureFixture
) -> None:
    behave = failing(way, _TOLD) if isinstance(way, int) else WAYS[way]
    lost, named = await lost_of(behave, 400, lambda: caplog.text)
    assert lost <= CLIENTS // 2  # what was under way when the first of them failed
    assert named


@pytest.mark.faults
@pytest.mark.parametrize("way", [*WAYS, *range(400, 600)])
async def test_under_one_in_a_hundred_is_lost_and_the_log_names_it(
    way: str | int, caplog: pytest.LogCaptureFixture
) -> None:
    behave = failing(way, _TOLD) if isinstance(way, int) else WAYS[way]
    requests = 10_000 if way in (*WAYS, *SHORT) else 2_000
    lost, named = await lost_of(behave, requests, lambda: caplog.text)
    print(f"{way}: {lost} of {requests:,} lost; named in the log after {named:.2f} s")
    assert lost < requests / 100
    assert named
