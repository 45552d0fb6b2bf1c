"""The requests of a process: how a stop comes, that all memory is given back, and what became of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Unavailable
from gateway.model import RequestRecord, Usage
from gateway.policy.account.pace import MeanTokens, Pace
from gateway.state.requests import BodyMemory, MemoryClaim, OpenRequests, RequestHistory
from tests.conftest import fleet
from tests.support import FakeEngine, answer, chat, completion, hang, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conftest import Fleeting
    from tests.support import _Sender

CHAT = "/v1/chat/completions"
LIMIT = 10_000
ENDED = RequestRecord(at=1e9, request_id="id", path="/v1/completions", code=200, seconds=1.2, route="text")
steps = st.lists(
    st.tuples(
        st.sampled_from(("open", "add", "answered", "drop", "close")), st.integers(0, 9), st.integers(0, 6000)
    ),
    max_size=80,
)


@given(steps)
def test_the_account_is_the_sum_of_what_is_held_and_returns_to_nothing(
    steps: list[tuple[str, int, int]],
) -> None:
    memory = BodyMemory(LIMIT)
    open_: dict[int, tuple[str, MemoryClaim]] = {}
    for step, which, size in steps:
        if step == "open":
            if which in open_:
                open_.pop(which)[1].close()
            client = "abc"[which % 3]
            open_[which] = client, memory.claim(client)
        elif which in open_:
            held = open_[which][1]
            before = held.size
            if step in ("add", "answered"):
                with contextlib.suppress(Unavailable):
                    (held.add if step == "add" else held.add_answer)(size)
                    before += size
                assert held.size == before
            elif step == "drop":
                held.release(size)
                assert held.size == max(0, before - size)
            else:
                held.close()
                held.close()
                assert held.size == 0
        own: Counter[str] = Counter()
        for client, held in open_.values():
            own[client] += held.size
        assert memory.total == own.total() <= LIMIT
    for _, held in open_.values():
        held.close()
    assert memory.total == 0
    assert not memory._own  # nor is any client remembered


def test_a_client_leaves_the_others_room() -> None:
    memory = BodyMemory(1000)
    hog = memory.claim("a")
    hog.add(500)
    with pytest.raises(Unavailable, match="1,000 bytes") as refused:
        hog.add(1)
    assert (refused.value.status, refused.value.code) == (503, "memory_full")
    assert refused.value.retry_after is not None
    memory.claim("b").add(250)
    hog.release(200)
    hog.add(20)


def test_what_is_only_expected_takes_nothing() -> None:
    memory = BodyMemory(1000)
    held = memory.claim("a")
    held.check_room(500)
    held.check_room(500)
    assert memory.total == 0
    with pytest.raises(Unavailable):
        held.check_room(501)


def test_an_answer_may_have_what_no_request_may() -> None:
    memory = BodyMemory(1000)
    held = memory.claim("a")
    held.add(500)
    held.add_answer(500)
    with pytest.raises(Unavailable):
        held.add_answer(1)
    assert memory.total == 1000


# --- over real sockets

LIMITS = "limits: {inflight_bytes: 400000, answer_bytes: 300000}"


class Peaked(BodyMemory):
    """An account that remembers the most that was held."""

    most = 0

    def _change(self, client: str, by: int) -> None:
        super()._change(client, by)
        self.most = max(self.most, self.total)


def padded(size: int, **members: Any) -> bytes:
    """A request of at least so many bytes."""
    return json.dumps(chat("x" * size, None, **members)).encode()


async def post(served_fleet: Fleeting, content: bytes | AsyncIterator[bytes]) -> httpx.Response:
    return await served_fleet.http.post(CHAT, content=content, headers={"content-type": "application/json"})


async def shed(served_fleet: Fleeting) -> float:
    for line in (await served_fleet.http.get("/metrics")).text.splitlines():
        if line.startswith("ocr_gateway_shed_total") and 'reason="memory_full"' in line:
            return float(line.rpartition(" ")[2])
    return 0.0


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_for_which_there_is_no_memory_is_refused_and_its_connection_serves_on(
    announced: bool,
) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        body = padded(350_000)
        for start in range(0, len(body), 10_000):
            yield body[start : start + 10_000]

    async with fleet(1, LIMITS) as served_fleet:
        memory = served_fleet.gateway.state.memory = Peaked(400_000)
        reply = await post(served_fleet, padded(350_000) if announced else chunks())
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "memory_full")
        assert int(reply.headers["retry-after"]) >= 1
        assert memory.most <= (0 if announced else 200_000)
        assert memory.total == 0
        assert await shed(served_fleet) == 1
        assert (await post(served_fleet, padded(10))).status_code == 200
        assert served_fleet.engines[0].requests[-1]["messages"]


async def test_bytes_that_are_only_announced_keep_nobody_out() -> None:
    async with fleet(1, LIMITS) as served_fleet:
        memory, url = served_fleet.gateway.state.memory, served_fleet.http.base_url
        slow = []
        for _ in range(10):
            _, writer = await asyncio.open_connection(url.host, url.port)
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                b"content-length: 150000\r\n\r\n" + b"x" * 1000
            )
            slow.append(writer)
        await until(lambda: memory.total == 10_000)
        assert (await post(served_fleet, padded(150_000))).status_code == 200
        for writer in slow:
            writer.close()
        await until(lambda: memory.total == 0)


async def test_a_client_that_holds_its_share_leaves_room_for_another() -> None:
    async with fleet(1, LIMITS) as served_fleet:
        memory = served_fleet.gateway.state.memory
        served_fleet.engines[0].behave = hang
        held = [asyncio.create_task(post(served_fleet, padded(90_000))) for _ in range(2)]
        await until(lambda: served_fleet.engines[0].running == 2)
        served_fleet.engines[0].behave = answer
        assert (await post(served_fleet, padded(90_000))).status_code == 503
        transport = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
        async with httpx.AsyncClient(base_url=served_fleet.http.base_url, transport=transport) as other:
            assert (await other.post(CHAT, json=chat("x" * 90_000, None))).status_code == 200
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        await until(lambda: memory.total == 0)


async def test_whatever_becomes_of_requests_all_is_given_back() -> None:
    rng = Random(3)

    async def garbage(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.json({"no": "completion"})

    async def die(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.start()
        await send.body(b"{")
        raise ConnectionError

    async def long(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.json(completion("x" * rng.randrange(400_000)))

    async def mixed(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await rng.choice((answer, answer, garbage, die, long, hang))(engine, request, send)

    async def one(served_fleet: Fleeting) -> int:
        body = padded(rng.randrange(150_000), stream=rng.random() < 0.5)
        if rng.random() < 0.1:
            body = body[:-5]
        try:
            async with asyncio.timeout(rng.uniform(0.2, 1)):
                return (await post(served_fleet, body)).status_code
        except (TimeoutError, httpx.HTTPError):
            return 0

    async with fleet(2, LIMITS + "\nbreaker: {failures: 1000000}") as served_fleet:
        for engine in served_fleet.engines:
            engine.behave = mixed
        state = served_fleet.gateway.state
        seen = Counter(await asyncio.gather(*(one(served_fleet) for _ in range(60))))
        assert {0, 200, 503} <= set(seen)
        await until(lambda: state.requests.open == 0)
        assert state.memory.total == 0
        assert sum(status.view.ours for status in state.snapshot().engines) == 0


def test_requests_and_errors_are_counted_by_route() -> None:
    history = RequestHistory(lambda: 100.0)
    history.configure(["text", "table"])
    for code in (200, 404, 499, 500, 503):
        history.record_request(ENDED._replace(code=code))
    history.record_request(ENDED._replace(route="gone"))
    assert (history.routes["text"].requests, history.routes["text"].errors) == (5, 2)
    assert history.routes["table"].requests == 0


def test_a_route_that_stays_keeps_its_counts() -> None:
    history = RequestHistory(lambda: 100.0)
    history.configure(["text", "table"])
    history.record_request(ENDED)
    history.configure(["text", "list"])
    assert list(history.routes) == ["text", "list"]
    assert history.routes["text"].requests == 1


def test_the_last_fifty_are_remembered_the_latest_first() -> None:
    history = RequestHistory(lambda: 100.0)
    for number in range(60):
        history.record_request(ENDED._replace(request_id=str(number)))
    assert [decision.request_id for decision in history.recent()] == [str(n) for n in range(59, 9, -1)]


def test_answers_make_a_routes_pace() -> None:
    now = [100.0]
    history = RequestHistory(lambda: now[0])
    history.configure(["text"])
    for _ in range(300):
        now[0] += 1
        history.record_answer("text", 50)
        history.record_answer("gone", 50)
    assert history.routes["text"].rate(now[0]) == pytest.approx(50, rel=0.02)


def test_figures_are_those_of_answers_counted_one_by_one() -> None:
    now, pace, mean = [100.0], Pace(100.0), MeanTokens()
    history = RequestHistory(lambda: now[0])
    history.configure(["text"])
    for number in range(200):
        now[0] += 0.1
        tokens = number * 37 % 500
        pace, mean = pace.after(tokens, now[0]), mean.after(tokens)
        history.record_request(ENDED._replace(usage=Usage(5, tokens)))
        if number in (3, 70, 199):
            assert history.routes["text"].rate(now[0] + 1) == pace.rate(now[0] + 1)
            assert history.mean_tokens("text") == mean.tokens
    history.record_request(ENDED._replace(usage=Usage(5, 900), code=502))  # no answer
    assert history.mean_tokens("text") == mean.tokens


def test_a_stop_is_announced_before_new_work_is_refused() -> None:
    requests = OpenRequests()
    assert (requests.closing, requests.draining, requests.kept) == (False, False, frozenset())
    requests.announce_stop()
    assert (requests.closing, requests.draining) == (True, False)
    kept = frozenset({("10.0.0.1", 4711)})
    requests.drain(kept)
    assert (requests.draining, requests.kept) == (True, kept)
