"""What users of other gateways ran into, tried here; the documentation's list names tests that exist."""

from __future__ import annotations

import asyncio
import gc
import json
import re
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from tests.conftest import Running, fleet
from tests.faults.clients import Target, post
from tests.faults.hostile import Limit
from tests.faults.matrix import PAGE
from tests.faults.rig import Had, had_of, rig
from tests.support import USAGE, answer, chat, chunk, data_url, encoded, hang, until

if TYPE_CHECKING:
    from tests.support import FakeEngine, _Sender

ROOT = Path(__file__).parents[2]
CHAT = "/v1/chat/completions"


async def test_a_burst_between_two_readings_of_the_engines_is_split() -> None:
    async with fleet(2, "polling: {scrape_s: 3600}") as served:
        for engine in served.engines:
            engine.behave = hang
        asked = [asyncio.create_task(served.http.post(CHAT, json=chat(image=None))) for _ in range(40)]
        await until(lambda: sum(served.took()) == 40)
        assert served.took() == [20, 20]
        for request in asked:
            request.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def test_an_engine_that_hangs_keeps_no_one_from_the_others() -> None:
    async with fleet(2) as served:
        dead = served.engines[0]
        dead.behave = hang
        stuck = [asyncio.create_task(served.http.post(CHAT, json=chat(image=None))) for _ in range(20)]
        await until(lambda: dead.running == 10)
        await until(lambda: sum(request.done() for request in stuck) == 10)
        replies = await asyncio.gather(
            *(served.http.post(CHAT, json=chat(image=None)) for _ in range(8)), return_exceptions=True
        )
        assert [reply for reply in replies if isinstance(reply, BaseException)] == []
        for request in stuck:
            request.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)


async def test_a_page_of_20_megabytes_is_taken_by_default_and_sent_once() -> None:
    noise = Random(0).randbytes(2300 * 2200 * 3)
    page = data_url(encoded(Image.frombytes("RGB", (2300, 2200), noise), "PNG", compress_level=0))
    assert len(page) > 20_000_000
    async with fleet(1) as served:
        assert (await served.http.post(CHAT, json=chat(image=page))).status_code == 200
        (body,) = served.engines[0].bodies
        assert body.count(page[-40:].encode()) == body.count(page[30:70].encode()) == 1
        assert len(body) < len(page) + 1000


async def test_usage_told_before_a_stream_breaks_is_counted(running: Running) -> None:
    async def breaks(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.start(kind="text/event-stream")
        await send.event(chunk("one", usage=USAGE))
        await send.event(chunk("two"))
        raise ConnectionError

    running.plain.behave = breaks
    reply = await running.http.post(CHAT, json=chat(stream=True, stream_options={"include_usage": True}))
    assert b"engine_died" in reply.content
    assert await running.metric("ocr_gateway_completion_tokens_total", route="text") == 2


async def test_nothing_is_kept_of_requests_that_have_ended(running: Running) -> None:
    """Prompts, ids and users that never come again leave no object behind."""

    async def round_of(requests: int, start: int) -> int:
        for number in range(start, start + requests):
            body = chat(f"OCR: {number}", None, stream=number % 2 == 0, user=f"u{number}")
            await running.http.post(CHAT, json=body, headers={"x-request-id": f"r{number}"})
        await until(lambda: running.gateway.state.requests.open == 0)
        for engine in (running.plain, running.deep):
            engine.bodies.clear()
            engine.headers.clear()
        gc.collect()
        return len(gc.get_objects())

    running.plain.behave = running.deep.behave = answer
    await round_of(20, 0)
    counts = [await round_of(60, start) for start in range(20, 260, 60)]
    # What others in the process come to keep meanwhile, they do not keep in every round.
    assert min(after - before for before, after in pairwise(counts)) < 60


@pytest.mark.faults
async def test_a_thousand_and_more_requests_at_once_are_answered() -> None:
    crowd = 1600
    async with rig() as stand:
        target = Target.of(stand.alone.url)

        # On bare sockets: 1,600 at once take httpx so long that the gateway in the same process is late.
        async def ask(prompt: str) -> Had:
            content = [{"type": "text", "text": prompt}]
            body = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]})
            peer = await target.connect()
            extra = f"x-ocr-route: {Limit.NONE}\r\nconnection: close\r\n".encode()
            await peer.send(post(body.encode(), extra=extra))
            try:
                return had_of(await peer.read())
            finally:
                peer.close()

        prompts = [f"q{number:07}" for number in range(crowd)]
        had = await asyncio.gather(*map(ask, prompts))
        answered = [one for one, prompt in zip(had, prompts, strict=True) if one.text == prompt]
        # Those for whom there is no room, or not soon enough, are told so at once.
        shed = [one for one in had if one.status == 503 and one.retry_after]
        assert len(answered) + len(shed) == crowd
        assert {one.code for one in shed} <= {"queue_full", "queue_too_slow"}
        assert len(answered) > 256
        await until(stand.alone.at_base)
        await stand.recovers(streams=False)


def test_the_tests_that_the_documentation_names_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(?:\w+::)?(\w+)", PAGE.read_text())
    assert len(named) > 20
    for path, test in named:
        assert f"def {test}(" in (ROOT / path).read_text(), (path, test)
