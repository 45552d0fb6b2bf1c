"""Limits of keys: by themselves on a clock of our own, and as clients meet them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.config import KeyLimits, Keys, parse
from gateway.errors import BodyTooLarge, RateLimited
from gateway.state.quotas import Quotas, QuotaUse
from gateway.wire import openai as openai_wire
from tests.api.test_auth import KEY, OTHER, guarded
from tests.support import FakeEngine, answer, chat, data_url, hang, png, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.config import Config
    from tests.api.test_auth import Guarded

CHAT = "/v1/chat/completions"
BASE = parse("model: m\npools: {p: {engines: [http://e]}}\nroutes: {text: {}}", "f", Path(), {})


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def config(names: str = "a b", **limits: KeyLimits) -> Config:
    """A configuration with keys of some names, and limits by name; `others` is `*`."""
    found = BASE.completed(profiles={}, keys=Keys({name.encode() * 32: name for name in names.split()}))
    auth = found.auth.model_copy(
        update={"limits": {{"others": "*"}.get(name, name): limit for name, limit in limits.items()}}
    )
    copy = found.model_copy(update={"auth": auth})
    assert copy.keys is found.keys
    return copy


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def quotas(clock: Clock) -> Quotas:
    return Quotas(clock)


def entered(quotas: Quotas, name: str) -> QuotaUse:
    visit = quotas.open_use(name)
    visit.admit()
    return visit


def test_without_a_key_or_limits_everything_may_come(quotas: Quotas) -> None:
    quotas.configure(config("a"))
    for name in ("", "a", "gone"):
        visits = [entered(quotas, name) for _ in range(100)]
        for visit in visits:
            visit.add_image_bytes(10**9)
            assert visit.headers() == {}
            visit.release()
        assert quotas.in_flight(name) == 0


def test_requests_by_the_minute(quotas: Quotas, clock: Clock) -> None:
    quotas.configure(config(a=KeyLimits(requests_per_minute=2)))
    assert entered(quotas, "a").headers() == {
        "x-ratelimit-limit-requests": "2",
        "x-ratelimit-remaining-requests": "1",
        "x-ratelimit-reset-requests": "30s",
    }
    entered(quotas, "a")
    clock.now += 0.5
    refused = quotas.open_use("a")
    with pytest.raises(
        RateLimited, match=r"may send 2 requests a minute \(auth.limits: requests_per_"
    ) as told:
        refused.admit()
    assert (told.value.code, told.value.retry_after) == ("rate_limit_exceeded", 30)
    assert refused.headers()["x-ratelimit-remaining-requests"] == "0"
    assert refused.headers()["x-ratelimit-reset-requests"] == "59.5s"
    entered(quotas, "b")
    clock.now += 29.5
    entered(quotas, "a")


def test_requests_at_once(quotas: Quotas) -> None:
    quotas.configure(config(others=KeyLimits(concurrent=2, requests_per_minute=3)))
    first, _ = entered(quotas, "a"), entered(quotas, "a")
    with pytest.raises(RateLimited, match="has 2 requests here already") as told:
        entered(quotas, "a")
    assert told.value.retry_after == 1
    entered(quotas, "b")
    first.release()
    first.release()
    assert quotas.in_flight("a") == 1
    entered(quotas, "a")  # the one that was refused has not cost one of the minute's
    assert quotas.in_flight("a") == 2


def test_image_bytes_by_the_minute(quotas: Quotas, clock: Clock) -> None:
    quotas.configure(config(a=KeyLimits(image_bytes_per_minute=6000)))
    entered(quotas, "a").add_image_bytes(6000)
    clock.now += 10.0
    visit = entered(quotas, "a")
    visit.add_image_bytes(0)
    with pytest.raises(
        RateLimited, match=r"may send 6,000 image bytes a minute \(auth.limits: image_by"
    ) as told:
        visit.add_image_bytes(2000)
    assert told.value.retry_after == 10
    assert visit.headers()["x-ratelimit-remaining-image-bytes"] == "1000"
    clock.now += 10.0
    visit.add_image_bytes(2000)


def test_more_images_than_a_minute_allows_are_no_matter_of_waiting(quotas: Quotas) -> None:
    quotas.configure(config(a=KeyLimits(image_bytes_per_minute=6000)))
    with pytest.raises(BodyTooLarge, match="images are 6,001 bytes, and the key 'a' may send 6,000") as told:
        entered(quotas, "a").add_image_bytes(6001)
    assert (told.value.code, told.value.retry_after) == ("image_bytes_over_limit", None)


def test_a_keys_own_limits_come_before_those_of_all_others(quotas: Quotas) -> None:
    quotas.configure(config(a=KeyLimits(), others=KeyLimits(concurrent=1)))
    entered(quotas, "a"), entered(quotas, "a"), entered(quotas, "b")
    with pytest.raises(RateLimited):
        entered(quotas, "b")


def test_limits_that_change_find_what_was_used_before(quotas: Quotas) -> None:
    quotas.configure(config())
    running = [entered(quotas, "a") for _ in range(3)]
    quotas.configure(config(a=KeyLimits(concurrent=3, requests_per_minute=10)))
    with pytest.raises(RateLimited, match="has 3 requests here already"):
        entered(quotas, "a")
    running.pop().release()
    for _ in range(4):
        entered(quotas, "a").release()
    quotas.configure(config(a=KeyLimits(requests_per_minute=5)))
    entered(quotas, "a")
    with pytest.raises(RateLimited, match="5 requests a minute"):
        entered(quotas, "a")
    assert quotas.in_flight("a") == 3


def test_what_a_key_that_is_gone_had_is_forgotten(quotas: Quotas) -> None:
    quotas.configure(config("a b"))
    running = entered(quotas, "a")
    for name in ("a", "b", "", "x"):
        quotas.count_request(name, 200, 10)
    assert quotas.requests == {("a", 200): 1, ("b", 200): 1, ("", 200): 1}
    assert quotas.image_bytes == {"a": 10, "b": 10}
    quotas.configure(config("b"))
    running.release()
    quotas.count_request("a", 200, 10)
    assert quotas.requests == {("b", 200): 1, ("", 200): 1}
    assert quotas.image_bytes == {"b": 10}


@settings(max_examples=50)
@given(st.data())
def test_whatever_happens_a_place_is_given_back_once(data: st.DataObject) -> None:
    clock = Clock()
    quotas = Quotas(clock)
    quotas.configure(config())
    inside: list[QuotaUse] = []
    for _ in range(data.draw(st.integers(0, 30))):
        clock.now += data.draw(st.floats(0, 30))
        step = data.draw(st.sampled_from(["enter", "leave", "leave again", "configure"]))
        if step == "enter":
            visit = quotas.open_use("a")
            try:
                visit.admit()
            except RateLimited as error:
                assert (error.retry_after or 0) >= 1  # noqa: PT017 - whether it is raised is open
                visit.release()
            else:
                inside.append(visit)
        elif step == "configure":
            limit = st.none() | st.integers(1, 5)
            limits = KeyLimits(concurrent=data.draw(limit), requests_per_minute=data.draw(limit))
            quotas.configure(config(a=limits))
        elif inside:
            visit = inside.pop(data.draw(st.integers(0, len(inside) - 1)))
            visit.release()
            if step == "leave again":
                visit.release()
        assert quotas.in_flight("a") == len(inside)


# --- as clients meet them


def limited(folder: Path, **limits: int) -> Any:
    return guarded(folder, auth={"limits": {"team-a": limits}})


def in_flight(gateway: Guarded) -> int:
    return gateway.gateway.state.quotas.in_flight("team-a")


async def test_an_openai_client_waits_as_long_as_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, naps = Clock(), list[float]()

    async def nap(seconds: float) -> None:
        naps.append(seconds)
        clock.now += seconds

    monkeypatch.setattr("anyio.sleep", nap)
    async with limited(tmp_path, requests_per_minute=2) as gateway:
        clock.now = time.monotonic()
        gateway.gateway.state.quotas._clock = clock
        client = gateway.client(KEY)
        for _ in range(3):
            reply = await client.chat.completions.with_raw_response.create(**chat())
            assert reply.headers["x-ratelimit-limit-requests"] == "2"
        assert naps == [30]
        assert len(gateway.engine.bodies) == 3
        with pytest.raises(openai.RateLimitError) as refused:
            await gateway.client(KEY, max_retries=0).chat.completions.create(**chat())
        assert (refused.value.code, refused.value.type) == ("rate_limit_exceeded", "rate_limit_exceeded")
        assert refused.value.response.headers["retry-after"] == "30"
        assert refused.value.response.headers["x-ratelimit-remaining-requests"] == "0"
        other = await gateway.client(OTHER).chat.completions.with_raw_response.create(**chat())
        assert "x-ratelimit-limit-requests" not in other.headers
        page = (await gateway.http.get("/metrics")).text
    assert 'ocr_gateway_key_requests_total{code="429",key="team-a"} 2.0' in page
    assert 'ocr_gateway_requests_total{code="429",pool="",route=""} 2.0' in page


async def test_image_bytes_are_counted_as_decoded(tmp_path: Path) -> None:
    picture = png("hello")
    async with limited(tmp_path, image_bytes_per_minute=2 * len(picture) + 1) as gateway:
        reply = await gateway.http.post(CHAT, json=chat(image=picture))
        assert reply.headers["x-ratelimit-limit-image-bytes"] == str(2 * len(picture) + 1)
        assert int(reply.headers["x-ratelimit-remaining-image-bytes"]) >= len(picture) + 1
        both = chat(image=picture)
        part = {"type": "image_url", "image_url": {"url": data_url(picture)}}
        both["messages"][0]["content"] += [part, part]
        reply = await gateway.http.post(CHAT, json=both)
        assert (reply.status_code, reply.json()["error"]["code"]) == (413, "image_bytes_over_limit")
        assert "retry-after" not in reply.headers
        both["messages"][0]["content"].pop()
        reply = await gateway.http.post(CHAT, json=both)
        assert reply.status_code == 429
        assert 1 <= int(reply.headers["retry-after"]) <= 60
        assert len(gateway.engine.bodies) == 1
        sent = 'ocr_gateway_key_image_bytes_total{key="team-a"} '
        assert f"{sent}{6 * len(picture)}.0" in (await gateway.http.get("/metrics")).text
        assert in_flight(gateway) == 0


async def test_at_once_counts_until_the_last_byte_of_the_answer(tmp_path: Path) -> None:
    async with limited(tmp_path, concurrent=1) as gateway:
        gateway.engine.behave = hang
        running = asyncio.create_task(gateway.http.post(CHAT, json=chat(stream=True)))
        await until(lambda: gateway.engine.running)
        reply = await gateway.http.post(CHAT, json=chat())
        assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")
        running.cancel()
        await until(lambda: in_flight(gateway) == 0)
        gateway.engine.behave = None
        assert (await gateway.http.post(CHAT, json=chat())).status_code == 200


async def test_a_request_that_is_over_its_limit_is_not_read(tmp_path: Path) -> None:
    async with limited(tmp_path, requests_per_minute=1) as gateway:
        assert (await gateway.http.post(CHAT, json=chat())).status_code == 200
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
        writer.write(f"{head}content-type: application/json\r\ncontent-length: 900000\r\n\r\n".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 429 ")
        writer.close()


async def by_prompt(engine: FakeEngine, request: dict[str, Any], send: Any) -> None:
    """Do as the prompt says."""
    prompt = request["messages"][0]["content"][-1]["text"]
    if prompt == "hang":
        await hang(engine, request, send)
    elif prompt == "fail":
        await send.json({"error": "broken"}, 500)
    elif prompt == "break off":
        await send.start(kind="text/event-stream")
        raise ConnectionError
    else:
        await answer(engine, request, send)


@pytest.fixture
async def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Guarded]:
    """A gateway whose requests may end in every way."""
    parsed = openai_wire.parse_request

    def parse_request(body: bytes, **options: Any) -> Any:
        if b"a fault of ours" in body:
            raise RuntimeError
        return parsed(body, **options)

    monkeypatch.setattr("gateway.request.receive.openai.parse_request", parse_request)
    breaker, retry = {"failures": 10**6}, {"per_request": 0}
    limits = {"limits": {"team-a": {"concurrent": 4}}}
    async with guarded(tmp_path, auth=limits, breaker=breaker, retry=retry) as gateway:
        gateway.engine.behave = by_prompt
        yield gateway


ENDS = ["good", "stream", "no json", "no image", "left", "a fault of ours", "fail", "break off"]


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(ENDS), min_size=1, max_size=8))
async def test_whatever_becomes_of_requests_their_places_are_given_back(
    gateway: Guarded, ends: list[str]
) -> None:
    async def one(end: str) -> None:
        body = chat({"left": "hang"}.get(end, end), stream=end in ("stream", "break off"))
        if end == "no image":
            body = chat(image=b"no image")
        content = b"{" if end == "no json" else json.dumps(body).encode()
        post = gateway.http.post(CHAT, content=content, headers={"content-type": "application/json"})
        if end == "left":
            sent = gateway.gateway.state.requests.open
            task = asyncio.create_task(post)
            await until(lambda: gateway.gateway.state.requests.open > sent or task.done())
            task.cancel()
            return
        with contextlib.suppress(httpx.RemoteProtocolError):
            await post

    await asyncio.gather(*map(one, ends))
    await until(lambda: in_flight(gateway) == gateway.gateway.state.requests.open == 0)
