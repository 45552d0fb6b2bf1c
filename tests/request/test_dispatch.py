from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.config import parse
from gateway.errors import BadRequest
from gateway.model import LayoutGuess, Reason, SortFacts, Usage
from gateway.policy.choose.balance import Fitness
from gateway.policy.fail.breaker import Phase
from gateway.policy.sort.evidence import SortRules
from gateway.request.dispatch import sort
from gateway.request.receive import CheckedImages, ReceivedRequest
from gateway.request.record import IncomingRequest, RequestProgress
from gateway.server.app import Gateway
from gateway.wire.vllm.engine import STOPPING
from tests.conftest import fleet
from tests.support import (
    USAGE,
    FakeEngine,
    _Sender,
    answer,
    asked,
    breaks_off,
    chat,
    chunk,
    completion,
    data_url,
    encoded,
    failing,
    hang,
    named,
    picture,
    png,
    response,
    response_events,
    serving,
    until,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.request.attempt import GatewayResponse
    from gateway.state.requests import MemoryClaim
    from tests.conftest import Running
if TYPE_CHECKING:
    from tests.conftest import Running

CHAT = "/v1/chat/completions"


async def test_an_answer_passes_byte_for_byte_both_ways(running: Running) -> None:
    body = b' {"messages" : [{"role":"user","content":"hello"}],\n "model":"glm-ocr", "top_p": 0.10}'
    reply = await running.http.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert running.plain.bodies == [body]
    assert reply.content == json.dumps(completion("hello world")).encode()
    assert reply.headers.items() >= {"content-type": "application/json", "x-ocr-route": "text"}.items()


async def test_a_text_completion_takes_the_same_path(running: Running) -> None:
    reply = await running.http.post("/v1/completions", json={"model": "glm-ocr:table", "prompt": "ping"})
    assert reply.status_code == 200
    assert running.deep.requests == [{"model": "glm-ocr", "prompt": "ping"}]


RESPONSES = "/v1/responses"


@pytest.mark.parametrize(
    ("request_", "headers", "route", "reason"),
    [
        (asked(), {"x-ocr-route": "table"}, "table", "header"),
        (asked(model="glm-ocr:key-value"), {}, "key-value", "model"),
        (asked(metadata={"ocr_route": "table"}), {}, "table", "metadata"),
        (asked("Table Recognition:"), {}, "table", "prompt"),
        (asked("", text={"format": {"type": "json_object"}}), {}, "key-value", "structure"),
        ({"input": "hello"}, {}, "text", "default"),
    ],
)
async def test_a_response_is_sorted_as_everything_else_and_passes_byte_for_byte(
    running: Running, request_: dict[str, Any], headers: dict[str, str], route: str, reason: str
) -> None:
    body = json.dumps(request_, indent=1).encode()
    headers = {"content-type": "application/json", **headers}
    reply = await running.http.post(RESPONSES, content=body, headers=headers)
    assert (reply.status_code, reply.content) == (200, json.dumps(response()).encode())
    assert reply.headers.items() >= {"x-ocr-route": route, "x-ocr-route-reason": reason}.items()
    engine = running.plain if route == "text" else running.deep
    if reason == "model":
        assert engine.requests == [{**request_, "model": "glm-ocr"}]
    else:
        assert engine.bodies == [body]
    pool = reply.headers["x-ocr-pool"]
    assert await running.metric("ocr_gateway_completion_tokens_total", route=route, pool=pool) == 2


async def test_a_response_is_streamed_event_by_event(running: Running) -> None:
    reply = await running.http.post(RESPONSES, json=asked(stream=True))
    assert reply.content == b"".join(map(named, response_events("hello", " world")))
    assert running.plain.requests == [asked(stream=True)]  # nobody asks for usage: its last event has it
    assert await running.metric("ocr_gateway_completion_tokens_total", route="text", pool="plain") == 2
    assert await running.metric("ocr_gateway_time_to_first_token_seconds_count", route="text") == 1


async def test_a_responses_image_reaches_the_engine_mended(running: Running) -> None:
    url = data_url(png("hello")).replace(";base64,", ";charset=utf-8;base64,")
    reply = await running.http.post(RESPONSES, json=asked("OCR:", url))
    assert reply.status_code == 200
    assert running.plain.requests == [asked("OCR:", data_url(png("hello")))]


@pytest.mark.parametrize(
    ("request_", "param", "code"),
    [
        (asked(image=data_url(b"plain text")), "input[0].content[0].image_url", "invalid_image"),
        (asked(previous_response_id="resp_1"), "previous_response_id", "unsupported_parameter"),
        (asked(image="https://elsewhere.example/a.png"), None, "remote_image_refused"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
            None,
            "unsupported_content_part",
        ),
        (chat(), "input", None),
        (asked(model="other"), "model", "model_not_found"),
    ],
)
async def test_a_bad_request_for_a_response_is_refused_by_name_and_no_engine_sees_it(
    running: Running, request_: dict[str, Any], param: str | None, code: str | None
) -> None:
    reply = await running.http.post(RESPONSES, json=request_)
    error = reply.json()["error"]
    assert reply.status_code == (404 if code == "model_not_found" else 400)
    assert error["code"] == code
    assert param is None or error["param"] == param
    assert not running.plain.bodies + running.deep.bodies


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
    ],
)
async def test_no_response_can_be_asked_for_later(running: Running, method: str, path: str) -> None:
    reply = await running.http.request(method, path)
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unknown_endpoint")


async def events(running: Running, **members: Any) -> list[str]:
    async with running.http.stream("POST", CHAT, json=chat(stream=True, **members)) as reply:
        assert reply.status_code == 200, await reply.aread()
        assert reply.headers["content-type"].startswith("text/event-stream")
        return [line[6:] async for line in reply.aiter_lines() if line]


async def test_usage_is_asked_for_and_stripped_where_the_client_did_not_ask(running: Running) -> None:
    seen = await events(running)
    assert running.plain.requests[0]["stream_options"] == {"include_usage": True}
    assert [json.loads(event) for event in seen[:-1]] == [chunk(), chunk("hello"), chunk(" world", "stop")]
    assert seen[-1] == "[DONE]"
    assert await running.metric("ocr_gateway_completion_tokens_total", route="text", pool="plain") == 2


async def test_usage_stays_where_the_client_asked(running: Running) -> None:
    seen = await events(running, stream_options={"include_usage": True})
    assert json.loads(seen[-2])["usage"] == USAGE


async def test_events_are_passed_on_as_they_arrive(running: Running) -> None:
    go_on = asyncio.Event()

    async def slowly(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.start(kind="text/event-stream")
        await send.event(chunk("one"))
        await go_on.wait()
        await send.event("[DONE]")
        await send.body(b"", more=False)

    running.plain.behave = slowly
    async with running.http.stream("POST", CHAT, json=chat(stream=True)) as reply:
        lines = reply.aiter_lines()
        assert json.loads((await anext(lines))[6:]) == chunk("one")
        assert await running.metric("ocr_gateway_in_flight", route="text") == 1
        go_on.set()
        assert "data: [DONE]" in [line async for line in lines]
    assert await running.metric("ocr_gateway_time_to_first_token_seconds_count", route="text") == 1


async def test_an_engine_that_does_not_stream_is_passed_on_whole(running: Running) -> None:
    async def whole(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.json(completion("all at once"))

    running.plain.behave = whole
    reply = await running.http.post(CHAT, json=chat(stream=True))
    assert reply.json() == completion("all at once")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_aborts_the_engines_work(running: Running, stream: bool) -> None:
    running.plain.behave = hang
    request = asyncio.create_task(running.http.post(CHAT, json=chat(stream=stream)))
    await until(lambda: running.plain.running == 1)
    request.cancel()
    await until(lambda: running.plain.aborted == 1)
    await until(lambda: running.in_flight("text") == 0)
    assert await running.metric("ocr_gateway_requests_total", route="text", code="499") == 1


async def test_a_client_that_leaves_in_the_middle_of_a_stream_aborts_it(running: Running) -> None:
    async def stall(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.start(kind="text/event-stream")
        await send.event(chunk("one"))
        await hang(engine, request, send)

    running.plain.behave = stall
    async with running.http.stream("POST", CHAT, json=chat(stream=True)) as reply:
        await anext(reply.aiter_lines())
    await until(lambda: running.plain.aborted == 1)
    await until(lambda: running.in_flight("text") == 0)


async def test_a_client_that_leaves_at_the_end_mark_has_not_left(running: Running) -> None:
    async def lingers(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.start(kind="text/event-stream")
        for event in (chunk("one", "stop"), "[DONE]"):
            await send.event(event)
        await asyncio.Event().wait()

    running.plain.behave = lingers
    async with running.http.stream("POST", CHAT, json=chat(stream=True)) as reply:
        async for line in reply.aiter_lines():
            if line == "data: [DONE]":
                break
    await until(lambda: not running.gateway.state.requests.open)
    assert await running.metric("ocr_gateway_requests_total", route="text", code="200") == 1
    assert await running.metric("ocr_gateway_requests_total", route="text", code="499") == 0


async def test_engines_client_errors_pass_unchanged(running: Running) -> None:
    refusal = {
        "error": {"message": "encoder cache is full", "type": "BadRequestError", "param": None, "code": 400}
    }

    async def refuse(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.json(refusal, 400)

    running.plain.behave = refuse
    reply = await running.http.post(CHAT, json=chat())
    assert (reply.status_code, reply.json()) == (400, refusal)
    assert reply.headers["x-ocr-pool"] == "plain"


@pytest.mark.parametrize(
    ("status", "expected", "code"),
    [
        (401, 502, "engine_key"),
        (403, 502, "engine_key"),
        (500, 502, "engine_error"),
        (501, 502, "engine_error"),
        (307, 502, "engine_error"),
        (503, 503, "engine_busy"),
    ],
)
async def test_engines_faults_are_told_as_such(
    running: Running, status: int, expected: int, code: str
) -> None:
    async def fail(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.json({"error": {"message": "queue is full"}}, status)

    running.plain.behave = fail
    reply = await running.http.post(CHAT, json=chat())
    assert (reply.status_code, reply.json()["error"]["code"]) == (expected, code)
    assert ("retry-after" in reply.headers) == (expected == 503)
    assert ("queue is full" in reply.text) == (code != "engine_key")
    assert reply.headers["x-ocr-route"] == "text"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_dies_before_its_answer_is_a_502(running: Running, stream: bool) -> None:
    async def die(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.start(kind="application/json")
        await send.body(b'{"id"')
        raise ConnectionError

    running.plain.behave = die
    reply = await running.http.post(CHAT, json=chat(stream=stream))
    assert (reply.status_code, reply.json()["error"]["code"]) == (502, "engine_died")


async def test_a_stream_that_breaks_ends_with_an_error_event(running: Running) -> None:
    async def die(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.start(kind="text/event-stream")
        await send.event(chunk("one"))
        raise ConnectionError

    running.plain.behave = die
    seen = await events(running)
    assert json.loads(seen[0]) == chunk("one")
    assert json.loads(seen[-1])["error"]["code"] == "engine_died"
    assert "[DONE]" not in seen
    assert await running.metric("ocr_gateway_requests_total", route="text", code="502") == 1


@pytest.mark.parametrize(("told", "expected"), [([(b"retry-after", b"7")], "7"), ([], "2")])
async def test_an_engines_429_is_its_own_and_says_when_to_ask_again(
    running: Running, told: list[tuple[bytes, bytes]], expected: str
) -> None:
    async def limit(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.send({"type": "http.response.start", "status": 429, "headers": told})
        await send.body(b"{}", more=False)

    running.plain.behave = limit
    reply = await running.http.post(CHAT, json=chat())
    assert (reply.status_code, reply.headers["retry-after"]) == (503, expected)


async def test_a_usage_event_without_its_blank_line_is_stripped_too(running: Running) -> None:
    async def cut(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.start(kind="text/event-stream")
        await send.event(chunk("one"))
        await send.body(b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode(), more=False)

    running.plain.behave = cut
    assert "[DONE]" in json.loads((await events(running))[-1])["error"]["message"]
    assert await running.metric("ocr_gateway_completion_tokens_total", route="text") == 2


async def test_what_follows_the_last_whole_event_is_passed_on_too(running: Running) -> None:
    async def cut(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.start(kind="text/event-stream")
        await send.event(chunk("one"))
        await send.body(b"data: [DONE]", more=False)

    running.plain.behave = cut
    assert (await running.http.post(CHAT, json=chat(stream=True))).content.endswith(b"\n\ndata: [DONE]")


async def test_an_engine_that_cannot_be_reached_is_taken_out_at_once() -> None:
    text = "model: m\npools: {p: {engines: [URL]}}\nroutes: {text: {}}\npolling: {scrape_s: 3600}"
    # Bound and not listening: nobody else can come to have the port.
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        name = f"127.0.0.1:{closed.getsockname()[1]}"
        gateway = Gateway(parse(text.replace("URL", f"http://{name}"), "f", Path(), {}))
        async with serving(gateway) as url, httpx.AsyncClient(base_url=url) as http:
            await until(lambda: gateway.state.choose("text").reason is Fitness.DOWN)
            gateway.state.mark(name, up=True)
            replies = [await http.post(CHAT, json=chat(model="m")) for _ in range(2)]
    assert [(reply.status_code, reply.json()["error"]["code"]) for reply in replies] == [
        (502, "engine_unreachable"),
        (503, "no_engine"),
    ]


async def test_an_error_that_the_engine_streams_is_passed_on_and_counted(running: Running) -> None:
    async def fail(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.start(kind="text/event-stream")
        await send.event(chunk("one"))
        await send.event({"error": {"message": "EngineCore encountered an issue", "code": 500}})
        await send.event("[DONE]")
        await send.body(b"", more=False)

    running.plain.behave = fail
    seen = await events(running)
    assert "EngineCore" in seen[1]
    assert await running.metric("ocr_gateway_requests_total", route="text", code="502") == 1


async def test_whatever_clients_send_the_series_stay_those_of_the_configuration(running: Running) -> None:
    async def series() -> int:
        return len((await running.http.get("/metrics")).text.splitlines())

    for name in ("table", "unknown"):
        await running.http.post(CHAT, json=chat(), headers={"x-ocr-route": name, "x-request-id": name})
        await running.http.post(CHAT, json=chat(model=f"{name}:{name}"))
        await running.http.post(CHAT, json=chat(metadata={"ocr_route": name}))
    before = await series()
    for number in range(250):
        name = f"r{number}"
        await asyncio.gather(
            running.http.post(CHAT, json=chat(None, None), headers={"x-ocr-route": name}),
            running.http.post(CHAT, json=chat(None, None, model=name)),
            running.http.post(CHAT, json=chat(None, None, model=f"glm-ocr:{name}")),
            running.http.post(CHAT, json=chat(None, None, metadata={"ocr_route": name})),
        )
    assert await series() == before


async def abort(engine: FakeEngine, request: Any, send: _Sender) -> None:
    await send.start(kind="text/event-stream")
    await send.event(chunk("one"))
    raise ConnectionError


async def refuse(engine: FakeEngine, request: Any, send: _Sender) -> None:
    await send.json({"error": {"message": "no"}}, 500)


BEHAVIOURS = {"answer": answer, "hang": hang, "abort": abort, "refuse": refuse}
STEPS = st.tuples(
    st.sampled_from(sorted(BEHAVIOURS)), st.booleans(), st.sampled_from(["text", "table"]), st.booleans()
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, min_size=1, max_size=12))
async def test_nothing_stays_in_flight_after_any_mix(
    running: Running, steps: list[tuple[str, bool, str, bool]]
) -> None:
    async def behave(engine: FakeEngine, request: dict[str, Any], send: _Sender) -> None:
        await BEHAVIOURS[request["user"]](engine, request, send)

    running.plain.behave = running.deep.behave = behave

    async def one(kind: str, stream: bool, route: str, good: bool) -> None:
        body = chat(stream=stream, user=kind, image=b"" if good else "data:,", metadata={"ocr_route": route})
        limit = 0.2 if kind == "hang" else 10
        try:
            async with asyncio.timeout(limit):
                await running.http.post(CHAT, json=body)
        except TimeoutError:
            assert kind == "hang"

    await asyncio.gather(*(one(*step) for step in steps))
    await until(lambda: running.gateway.state.requests.open == 0)
    await until(lambda: running.plain.running == running.deep.running == 0)
    for route in ("text", "table"):
        assert await running.metric("ocr_gateway_in_flight", route=route) == 0
    assert {status.view.ours for status in running.gateway.state.snapshot().engines} == {0}


async def test_good_requests_are_answered_beside_bad_ones(running: Running) -> None:
    many = chat()
    many["messages"][0]["content"] *= 9
    bad = [chat(image="data:,"), chat(image=data_url(b"junk")), chat(model="x"), many, {"messages": 5}]
    bodies = [chat() if index % 2 else bad[index // 2 % len(bad)] for index in range(32)]
    limits = httpx.Limits(max_connections=32)
    async with httpx.AsyncClient(base_url=running.url, limits=limits, timeout=30) as http:
        replies = await asyncio.gather(*(http.post(CHAT, json=body) for body in bodies))
    statuses = [reply.status_code for reply in replies]
    assert statuses[1::2] == [200] * 16
    assert set(statuses[::2]) == {400, 404}


class TestRetries:
    @pytest.mark.parametrize(
        ("behave", "reason"),
        [
            (breaks_off, "died"),
            (failing(503), "busy"),
            (failing(502), "bad_gateway"),
            (failing(504), "gateway_timeout"),
            (failing(200, b"garbage"), "garbage"),
        ],
    )
    @pytest.mark.parametrize("stream", [False, True])
    async def test_another_engine_answers_where_one_fails_before_the_first_byte(
        self, behave: Any, reason: str, stream: bool
    ) -> None:
        async with fleet(2) as served_fleet:
            bad, good = served_fleet.engines
            bad.behave = behave
            while not bad.bodies:
                reply = await served_fleet.http.post(CHAT, json=chat(stream=stream))
                assert reply.status_code == 200, reply.text
                assert "hello" in reply.text
            assert len(good.bodies) >= 1
            page = (await served_fleet.http.get("/metrics")).text
            assert f'ocr_gateway_retries_total{{reason="{reason}",route="text"}}' in page
            recent = (await served_fleet.http.get("/status")).json()["recent"]
            assert recent[0]["why"] == f"load, retried after {reason}"

    @pytest.mark.parametrize("whole", [False, True])
    async def test_what_a_failed_attempt_told_is_not_the_next_ones(
        self, whole: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The first engine writes a word and then fails, all in one packet: none of it reaches the client."""
        caplog.set_level(logging.INFO, "gateway.access")
        error = {"error": {"message": "EngineCore", "code": 500}}
        packet = b"".join(
            b"data: %s\n\n" % json.dumps(event, separators=(",", ":")).encode()
            for event in (chunk("lost", usage=USAGE), error, chunk("", "abort"))
        )
        second_at: list[float] = []

        async def fails_first(engine: FakeEngine, request: Any, send: _Sender) -> None:
            if sum(served_fleet.took()) == 1:
                await send.start(kind="text/event-stream")
                await send.body(packet, more=False)
                return
            second_at.append(time.perf_counter())
            if whole:
                await send.json(completion("hello world"))
            else:
                await send.start(kind="text/event-stream")
                await send.event(chunk("hello world", "stop"))
                await send.event("[DONE]")
                await send.body(b"", more=False)

        async def read(limit: int, held: MemoryClaim) -> bytes:
            return json.dumps(chat(stream=True)).encode()

        async def deliver(response: GatewayResponse) -> None:
            got.append(response.status)
            if isinstance(response.body, bytes):
                got.append(response.body)
            else:
                got.extend([part async for part in response.body])

        got: list[int | bytes] = []
        async with fleet(2, "breaker: {failures: 1, open_s: 3600, probes: 1}") as served_fleet:
            for engine in served_fleet.engines:
                engine.behave = fails_first
            progress = RequestProgress(
                IncomingRequest(CHAT, "id", time.perf_counter(), read, content_type="application/json")
            )
            await served_fleet.gateway._dispatcher.dispatch(progress, deliver)
            snapshot = served_fleet.gateway.state.snapshot()
            page = (await served_fleet.http.get("/metrics")).text
        assert got[0] == 200
        assert b"hello world" in b"".join(got[1:])  # type: ignore[arg-type]
        assert b"lost" not in b"".join(got[1:])  # type: ignore[arg-type]
        (record,) = snapshot.recent
        assert (record.code, record.error, record.attempts, record.retried) == (200, "", 2, ("died",))
        assert record.why == "load, retried after died"
        assert record.usage == (Usage(7, 2) if whole else None)
        if whole:
            assert record.first_token_s is None
        else:
            assert record.first_token_s is not None
            assert progress.incoming.started + record.first_token_s >= second_at[0]
        phases = {status.view.engine.name: status.phase for status in snapshot.engines}
        assert phases.pop(record.engine or "") is Phase.CLOSED
        assert list(phases.values()) == [Phase.OPEN]
        (line,) = [one.fields for one in caplog.records if one.name == "gateway.access"]  # type: ignore[attr-defined]
        assert (line["code"], line["engine"]) == (200, record.engine)
        assert 'ocr_gateway_requests_total{code="200",pool="pool",route="text"} 1.0' in page
        assert ("ocr_gateway_time_to_first_token_seconds_count" in page) is not whole

    async def test_each_failure_of_a_request_is_told(self) -> None:
        stops = failing(500, json.dumps({"error": {"message": STOPPING}}).encode())
        async with fleet(3) as served_fleet:

            async def behave(engine: FakeEngine, request: Any, send: _Sender) -> None:
                await (stops, breaks_off, answer)[sum(served_fleet.took()) - 1](engine, request, send)

            for engine in served_fleet.engines:
                engine.behave = behave
            assert (await served_fleet.http.post(CHAT, json=chat())).status_code == 200
            (record,) = served_fleet.gateway.state.snapshot().recent
            assert (record.attempts, record.retried) == (3, ("stopping", "died"))
            assert record.why == "load, retried after stopping, retried after died"

    async def test_a_request_that_fails_for_good_has_the_last_attempts_error(self) -> None:
        async with fleet(2) as served_fleet:

            async def behave(engine: FakeEngine, request: Any, send: _Sender) -> None:
                await (breaks_off, failing(502))[sum(served_fleet.took()) - 1](engine, request, send)

            for engine in served_fleet.engines:
                engine.behave = behave
            assert (await served_fleet.http.post(CHAT, json=chat())).status_code == 502
            (record,) = served_fleet.gateway.state.snapshot().recent
            assert (record.code, record.error, record.retried) == (502, "engine_error", ("died",))
            assert record.why == "load, retried after died, engine_error"

    @pytest.mark.parametrize("status", [400, 413, 422, 500])
    async def test_a_clients_bad_requests_are_put_before_two_engines_once_a_second(self, status: int) -> None:
        async with fleet(2) as served_fleet:
            for engine in served_fleet.engines:
                engine.behave = failing(status)
            replies = [await served_fleet.http.post(CHAT, json=chat()) for _ in range(20)]
            assert {reply.status_code for reply in replies} == {status if status < 500 else 502}
            opinions = sum(served_fleet.took()) - 20
            seconds = sum(reply.elapsed.total_seconds() for reply in replies)
            assert 1 <= opinions <= 2 * (1 + seconds)
            phases = {engine.phase for engine in served_fleet.gateway.state.snapshot().engines}
            assert phases == {Phase.CLOSED}

    @pytest.mark.parametrize("status", [400, 401, 404, 405, 422, 429, 500])
    async def test_an_engine_that_refuses_what_others_take_is_found_out(
        self, status: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with fleet(3, "breaker: {failures: 3, open_s: 3600, probes: 1}") as served_fleet:
            served_fleet.engines[0].behave = failing(status, b'{"error": {"message": "the document says"}}')
            replies = [await served_fleet.http.post(CHAT, json=chat()) for _ in range(60)]
            assert {reply.status_code for reply in replies} == {200}
            bad = served_fleet.gateway.state.snapshot().engines[0]
            assert served_fleet.took()[0] <= 10
            told = [one.getMessage() for one in caplog.records if "requests fail at engine" in one.message]
            assert [bad.view.engine.name in line and str(status) in line for line in told] == [True]
            assert "the document says" not in told[0]

    async def test_a_document_that_kills_engines_does_not_tour_the_fleet(self) -> None:
        async with fleet(4) as served_fleet:
            for engine in served_fleet.engines:
                engine.behave = breaks_off
            reply = await served_fleet.http.post(CHAT, json=chat())
            assert (reply.status_code, reply.json()["error"]["code"]) == (502, "engine_died")
            assert sum(served_fleet.took()) == 2

    async def test_engines_that_shut_down_are_passed_over_however_many(self) -> None:
        async def stopping(engine: FakeEngine, request: Any, send: _Sender) -> None:
            await send.json({"error": {"message": STOPPING, "code": 500}}, 500)

        async with fleet(4, "retry: {budget: 0}") as served_fleet:
            for engine in served_fleet.engines[:3]:
                engine.behave = stopping
            for _ in range(5):
                reply = await served_fleet.http.post(CHAT, json=chat())
                assert reply.status_code == 200
            assert all(took <= 1 for took in served_fleet.took()[:3])

    async def test_where_all_engines_turn_a_request_away_it_does_not_go_round_and_round(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def stopping(engine: FakeEngine, request: Any, send: _Sender) -> None:
            await send.json({"error": {"message": STOPPING, "code": 500}}, 500)

        monkeypatch.setattr("gateway.state.outcomes._STOPPING_REST_S", 0.0)
        async with fleet(3) as served_fleet:
            for engine in served_fleet.engines:
                engine.behave = stopping
            reply = await served_fleet.http.post(CHAT, json=chat())
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_stopping")
            assert sum(served_fleet.took()) <= 5  # each once, and two that are asked again
            assert max(served_fleet.took()) <= 3

    async def test_nothing_is_retried_where_the_configuration_says_so(self) -> None:
        async with fleet(2, "retry: {per_request: 0}") as served_fleet:
            for engine in served_fleet.engines:
                engine.behave = breaks_off
            await served_fleet.http.post(CHAT, json=chat())
            assert sum(served_fleet.took()) == 1

    async def test_without_a_budget_only_an_engines_death_is_bridged(self) -> None:
        async with fleet(2, "retry: {budget: 0}") as served_fleet:
            for engine in served_fleet.engines:
                engine.behave = failing(503)
            reply = await served_fleet.http.post(CHAT, json=chat())
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_busy")
            assert sum(served_fleet.took()) == 1

    async def test_a_retry_does_not_outlast_its_requests_time(self) -> None:
        timeouts = "{connect_s: 2, first_event_s: 5, idle_s: 5, total_s: 0.4}"
        async with fleet(
            2, f"routes: {{text: {{timeouts: {timeouts}}}, table: {{}}}}", max_load=1
        ) as served_fleet:
            first, second = served_fleet.engines
            first.behave = second.behave = hang
            waiting = asyncio.create_task(served_fleet.http.post(CHAT, json=chat("Table Recognition:")))
            await until(lambda: sum(engine.running for engine in served_fleet.engines) == 1)
            busy, free = (first, second) if first.running else (second, first)
            free.behave = failing(502)
            reply = await served_fleet.http.post(CHAT, json=chat())
            assert (reply.status_code, reply.json()["error"]["code"]) == (502, "engine_error")
            assert len(busy.bodies) == 1
            waiting.cancel()

    async def test_where_there_is_no_other_engine_nothing_is_retried_or_paid_for(self) -> None:
        async with fleet(1) as served_fleet:
            served_fleet.engines[0].behave = failing(502)
            for _ in range(3):
                await served_fleet.http.post(CHAT, json=chat())
            page = (await served_fleet.http.get("/metrics")).text
            assert "ocr_gateway_retries_total{" not in page
            assert "ocr_gateway_retry_budget_remaining 100.0" in page

    async def test_a_hung_engine_loses_no_request_that_waits_for_its_first_byte(self) -> None:
        async with fleet(2) as served_fleet:
            hung, good = served_fleet.engines
            hung.behave = hang
            requests = [asyncio.create_task(served_fleet.http.post(CHAT, json=chat())) for _ in range(8)]
            await until(lambda: hung.running and len(good.bodies) + hung.running == 8)
            name = next(
                status.view.engine.name
                for status in served_fleet.gateway.state.snapshot().engines
                if status.view.ours
            )
            served_fleet.gateway.state.mark_lost(name)
            assert {(await request).status_code for request in requests} == {200}

    async def test_an_engine_that_fails_again_and_again_is_left_alone(self) -> None:
        async with fleet(2, "breaker: {failures: 3, open_s: 3600, probes: 1}") as served_fleet:
            bad = served_fleet.engines[0]
            bad.behave = failing(200, b"garbage")
            for _ in range(20):
                assert (await served_fleet.http.post(CHAT, json=chat())).status_code == 200
            assert len(bad.bodies) == 3
            assert "ocr_gateway_engine_breaker_state" in (await served_fleet.http.get("/metrics")).text

    async def test_an_engine_whose_streams_begin_well_and_break_is_left_alone_too(self) -> None:
        async def breaks(engine: FakeEngine, request: Any, send: _Sender) -> None:
            await send.start(kind="text/event-stream")
            await send.event(chunk("one"))
            raise ConnectionError

        async with fleet(2, "breaker: {failures: 3, open_s: 3600, probes: 1}") as served_fleet:
            bad = served_fleet.engines[0]
            bad.behave = breaks
            for _ in range(20):
                await served_fleet.http.post(CHAT, json=chat(stream=True))
            assert len(bad.bodies) == 3


@pytest.mark.parametrize("good", [True, False])
async def test_a_request_is_open_from_its_first_byte_to_its_last(running: Running, good: bool) -> None:
    gate = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b'{"messages": [{"role": "user", '
        await gate.wait()
        yield b'"content": "hello"}]}' if good else b"nonsense"

    headers = {"content-type": "application/json", "x-ocr-route": "text"}
    request = asyncio.create_task(running.http.post(CHAT, content=body(), headers=headers))
    await until(lambda: running.gateway.state.requests.open == 1)
    assert running.in_flight("text") == 0
    gate.set()
    assert (await request).status_code == (200 if good else 400)
    await until(lambda: running.gateway.state.requests.open == 0)


async def test_the_depth_told_is_the_one_at_the_load_the_engine_has() -> None:
    table = [[1, 1, 3], [2, 256, 0]]
    speculative = {
        "method": "mtp",
        "num_speculative_tokens": 3,
        "num_speculative_tokens_per_batch_size": table,
    }
    async with fleet(1, speculative_config=speculative) as served_fleet:
        alone = await served_fleet.http.post(CHAT, json=chat())
        served_fleet.engines[0].behave = hang
        busy = asyncio.create_task(served_fleet.http.post(CHAT, json=chat()))
        await until(lambda: served_fleet.engines[0].running)
        served_fleet.engines[0].behave = answer
        crowded = await served_fleet.http.post(CHAT, json=chat())
        busy.cancel()
        assert [reply.headers["x-ocr-depth"] for reply in (alone, crowded)] == ["3", "0"]


CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("request_", "headers", "route", "reason", "pool", "depth"),
    [
        (chat(), {"x-ocr-route": "table"}, "table", "header", "mtp3", "3"),
        (chat(model="glm-ocr:key-value"), {}, "key-value", "model", "mtp3", "3"),
        (chat(metadata={"ocr_route": "table"}), {}, "table", "metadata", "mtp3", "3"),
        (chat("Table Recognition:"), {}, "table", "prompt", "mtp3", "3"),
        (chat("", response_format={"type": "json_object"}), {}, "key-value", "structure", "mtp3", "3"),
        (chat("hello", None, max_tokens=10), {}, "text", "default", "plain", "0"),
    ],
)
async def test_a_request_goes_to_its_routes_pool_and_the_answer_says_why(
    running: Running,
    request_: dict[str, Any],
    headers: dict[str, str],
    route: str,
    reason: str,
    pool: str,
    depth: str,
) -> None:
    reply = await running.http.post(CHAT, json=request_, headers=headers)
    assert reply.status_code == 200
    told = {"x-ocr-route": route, "x-ocr-route-reason": reason, "x-ocr-pool": pool, "x-ocr-depth": depth}
    assert reply.headers.items() >= told.items()
    engine = running.plain if pool == "plain" else running.deep
    assert [request["model"] for request in engine.requests] == ["glm-ocr"]
    assert await running.metric("ocr_gateway_sort_decisions_total", route=route, reason=reason) == 1


async def test_only_the_image_decides_where_nothing_else_does(running: Running) -> None:
    lines = "\n".join(["the quick brown fox jumps over the lazy dog and runs away"] * 12)
    page = encoded(picture(lines, (620, 330)), "PNG")
    reply = await running.http.post(CHAT, json=chat("", data_url(page)))
    assert reply.headers["x-ocr-route-reason"] == "image"


class Looker:
    """ImageInspector that has one answer, and counts how often it is asked."""

    def __init__(self, guess: LayoutGuess | None) -> None:
        self.asked: list[tuple[object, int, str]] = []
        self._guess = guess

    async def guess(self, url: object, *, weight: int, client: str) -> LayoutGuess | None:
        self.asked.append((url, weight, client))
        return self._guess


RULES = SortRules(("text", "table"), "text", {})


def received_with(facts: SortFacts, first: bytes | None) -> ReceivedRequest:
    images = CheckedImages(first, 5)
    return ReceivedRequest(facts, images, (), stream=False, strip_usage=False, merged=False)


@pytest.mark.parametrize(
    ("facts", "first", "guess", "route", "reason", "looked"),
    [
        (SortFacts(header="table", has_image=True), b"url", None, "table", Reason.HEADER, False),
        (SortFacts(has_image=True), b"url", LayoutGuess("table", 0.99), "table", Reason.IMAGE, True),
        (SortFacts(has_image=True), b"url", LayoutGuess("table", 0.01), "text", Reason.DEFAULT, True),
        (SortFacts(has_image=True), b"url", None, "text", Reason.DEFAULT, True),
        (SortFacts(has_image=True), None, LayoutGuess("table", 0.99), "text", Reason.DEFAULT, False),
    ],
)
async def test_an_image_is_looked_at_only_where_nothing_cheaper_decides(
    facts: SortFacts,
    first: bytes | None,
    guess: LayoutGuess | None,
    route: str,
    reason: Reason,
    looked: bool,
) -> None:
    vision: Any = Looker(guess)
    received = received_with(facts, first)
    decision = await sort(received, RULES, vision, "client")
    assert (decision.route, decision.reason) == (route, reason)
    assert vision.asked == ([(b"url", 5, "client")] if looked else [])


async def test_a_route_that_there_is_not_is_refused_before_anything_is_looked_at() -> None:
    vision: Any = Looker(None)
    received = received_with(SortFacts(header="tabel"), b"url")
    with pytest.raises(BadRequest) as raised:
        await sort(received, RULES, vision, "client")
    assert raised.value.code == "unknown_route"
    assert vision.asked == []
