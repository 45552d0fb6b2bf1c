from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import signal
import subprocess
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from bench.serving import free_port
from gateway.engines import asgi
from gateway.engines.simulated.simulated_server import GARBAGE, SimulatedEngine
from gateway.engines.simulated.step_model import Fit
from gateway.wire.vllm.engine import EngineReading, is_stopping, read_metrics, read_speculation, read_work
from tests.support import LONG_S, asked, chat, events_of, listens, python, served, until, wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

H100 = Fit.builtin("h100-9b")
CHAT = "/v1/chat/completions"
# Slow enough that nothing is finished in a test's time.
STILL = 1e-6


@contextlib.asynccontextmanager
async def engine(**options: Any) -> AsyncIterator[httpx.AsyncClient]:
    app = SimulatedEngine(H100, **{"depth": 3, "time_scale": 1000, **options}).app()
    async with served(app) as url, httpx.AsyncClient(base_url=url, timeout=30) as client:
        yield client


async def reading(client: httpx.AsyncClient) -> EngineReading:
    return read_metrics((await client.get("/metrics")).content)


async def fault(client: httpx.AsyncClient, kind: str, **options: Any) -> None:
    answer = await client.post("/faults", json={"kind": kind, **options})
    assert answer.status_code == 200, answer.text
    assert answer.json()["simulated"] is True


async def runs(client: httpx.AsyncClient, count: int = 1) -> bool:
    """Whether it works on so many requests."""
    return (await reading(client)).running == count


async def test_a_chat_stream_is_vllms() -> None:
    async with engine() as client:
        body = chat("Table Recognition:", stream=True, stream_options={"include_usage": True}, max_tokens=60)
        answer = await client.post(CHAT, json=body, headers={"x-request-id": "mine"})
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        first, *pieces, usage = events_of(answer.text)
        assert {event["id"] for event in (first, *pieces, usage)} == {"chatcmpl-mine"}
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        counts = [len(piece["choices"][0]["delta"]["content"].split()) for piece in pieces]
        assert counts[0] == 1
        assert max(counts) <= 4
        assert usage["usage"]["completion_tokens"] == sum(counts) == 60
        assert pieces[-1]["choices"][0]["finish_reason"] == "length"
        told = usage["metrics"]["speculative_decoding"]
        assert told["num_spec_steps"] == len(pieces) - 1
        assert len(told["acceptance_histogram"]) == 4
        seen = await reading(client)
        assert seen.speculation == {"0": read_speculation(json.dumps(usage["metrics"]).encode())}
        assert (seen.generation_tokens, seen.finished) == (60, 1)


async def test_the_openai_client_is_served() -> None:
    async with (
        engine() as client,
        openai.AsyncOpenAI(base_url=f"{client.base_url}/v1", api_key="-") as asking,
    ):
        answer = await asking.chat.completions.create(**chat("Text Recognition:"))
        assert "simulated" in (answer.choices[0].message.content or "")
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == H100.routes["text"].prompt_tokens
        text = await asking.completions.create(model="glm-ocr", prompt="Table Recognition:", max_tokens=4)
        assert (text.object, text.choices[0].text) == ("text_completion", "This text is simulated")
        stream = await asking.completions.create(model="glm-ocr", prompt="a", max_tokens=7, stream=True)
        pieces = [chunk.choices[0].text async for chunk in stream]
        assert "".join(pieces) == "This text is simulated and was read"


async def test_acceptance_is_told_where_vllm_tells_it() -> None:
    async with engine(depth=0) as client:
        assert (await client.post(CHAT, json=chat())).json()["metrics"] is None
        assert (await reading(client)).speculation == {}
    async with engine(per_request=False) as client:
        assert (await client.post(CHAT, json=chat())).json()["metrics"] is None
        counted = (await reading(client)).speculation
        assert counted["0"].drafts > 0


async def test_an_engines_own_schedule_sets_its_depth() -> None:
    async with engine(schedule=[[1, 64, 1]]) as client:
        told = (await client.post(CHAT, json=chat(max_tokens=40, ignore_eos=True))).json()["metrics"]
        figures = told["speculative_decoding"]
        assert figures["num_draft_tokens"] == figures["num_spec_steps"]
        assert figures["acceptance_histogram"][2:] == [0, 0]


@pytest.mark.parametrize("path", ["/health", "/version", "/metrics", "/v1/models", "/faults", "/nothing"])
async def test_every_answer_says_simulated(path: str) -> None:
    async with engine() as client:
        answer = await client.get(path)
        assert answer.headers["x-simulated"] == "h100-9b"
        assert answer.status_code == (404 if path == "/nothing" else 200)
        if path not in ("/health", "/nothing"):
            assert "simulated" in answer.text


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 400, "not valid JSON"),
        (json.dumps({**chat(), "model": "other"}).encode(), 404, "does not exist"),
        (json.dumps(chat(min_p=0.2)).encode(), 400, "min_p"),
        (b" " * 200, 413, "over 100 bytes"),
    ],
)
async def test_refusals_are_vllms(
    monkeypatch: pytest.MonkeyPatch, body: bytes, status: int, said: str
) -> None:
    if status == 413:
        monkeypatch.setattr(asgi, "MAX_BODY_BYTES", 100)
    async with engine() as client:
        answer = await client.post(CHAT, content=body)
        assert answer.status_code == status
        assert said in answer.json()["error"]["message"]
        assert answer.json()["error"]["code"] == status
        assert answer.headers["x-simulated"] == "h100-9b"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_is_aborted(stream: bool) -> None:
    async with engine(time_scale=STILL) as client:
        asking = asyncio.create_task(client.post(CHAT, json=chat(stream=stream)))
        await until(lambda: runs(client))
        asking.cancel()
        await until(lambda: runs(client, 0))
        assert (await reading(client)).finished == 1
        with contextlib.suppress(asyncio.CancelledError):
            await asking


async def test_many_streams_at_once() -> None:
    async with engine(time_scale=200) as client:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=client.base_url, limits=limits, timeout=LONG_S) as crowd:
            answers = await asyncio.gather(
                *(crowd.post(CHAT, json=chat(image=None, stream=True, max_tokens=20)) for _ in range(100))
            )
        assert all(events_of(answer.text)[-1]["choices"][0]["finish_reason"] for answer in answers)
        seen = await reading(client)
        assert (seen.running, seen.waiting, seen.finished) == (0, 0, 100)


@pytest.mark.parametrize("stream", [True, False])
async def test_it_dies_mid_stream(stream: bool) -> None:
    async with engine() as client:
        await fault(client, "die_mid_stream", after_tokens=10)
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post(CHAT, json=chat("Table Recognition:", stream=stream))
        await fault(client, "die_mid_stream", probability=0)
        assert (await client.post(CHAT, json=chat(stream=stream))).status_code == 200
        assert (await reading(client)).running == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_it_answers_garbage(stream: bool) -> None:
    async with engine() as client:
        await fault(client, "garbage")
        answer = await client.post(CHAT, json=chat(stream=stream))
        assert (answer.status_code, answer.content) == (200, GARBAGE)


async def test_it_takes_no_requests() -> None:
    async with engine() as client:
        await fault(client, "unavailable")
        answer = await client.post(CHAT, json=chat())
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "ServiceUnavailableError")
        assert (await client.get("/health")).status_code == 200
        await fault(client, "none")
        assert (await client.post(CHAT, json=chat())).status_code == 200


async def test_draining_finishes_what_is_in_flight() -> None:
    async with engine() as client:
        await fault(client, "sleep")
        asking = asyncio.create_task(client.post(CHAT, json=chat()))
        await until(lambda: runs(client))
        await fault(client, "drain")
        refused = await client.post(CHAT, json=chat())
        assert refused.status_code == 500
        assert is_stopping(refused.json()["error"]["message"])
        assert (await asking).status_code == 200


async def test_it_is_not_ready() -> None:
    async with engine() as client:
        await fault(client, "not_ready")
        assert (await client.get("/health")).status_code == 503


async def test_it_sleeps_and_wakes() -> None:
    async with engine() as client:
        await fault(client, "sleep")
        asking = asyncio.create_task(client.post(CHAT, json=chat()))
        await until(lambda: runs(client))
        assert (await reading(client)).awake is False
        assert (await client.get("/health")).status_code == 200
        await fault(client, "none")
        assert (await asking).status_code == 200
        assert (await reading(client)).awake is True


@pytest.mark.parametrize("health", [False, True])
async def test_it_hangs(health: bool) -> None:
    async with engine() as client:
        await fault(client, "hang", health=health)
        asking = [
            asyncio.create_task(client.post(CHAT, json=chat())),
            asyncio.create_task(client.get("/metrics")),
        ]
        if health:
            assert (await client.get("/health")).status_code == 200
        else:
            asking.append(asyncio.create_task(client.get("/health")))
        assert (await client.get("/faults")).json()["fault"] == "hang"
        assert not any(task.done() for task in asking)
        await fault(client, "none")
        assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}


async def test_it_is_slow() -> None:
    async with engine() as client:
        latencies = []
        for kind in ("none", "slow"):
            await fault(client, kind)
            await fault(client, "reset_counters")
            await client.post(CHAT, json=chat(max_tokens=20, ignore_eos=True))
            page = (await client.get("/metrics")).text
            latencies.append(float(page.partition("\nvllm:e2e_request_latency_seconds_sum")[2].split()[1]))
        assert 5 < latencies[1] / latencies[0] < 20


async def test_its_metrics_tell_its_own_time() -> None:
    async with engine(time_scale=500) as client:
        before = read_work((await client.get("/metrics")).content)
        await client.post(CHAT, json=chat("Table Recognition:", max_tokens=50, ignore_eos=True))
        after = read_work((await client.get("/metrics")).content)
        assert before.simulated is not None
        assert after.simulated is not None
        assert (after.simulated.fit, after.simulated.time_scale) == ("h100-9b", 500)
        assert after.steps_s is not None
        # In between the clock also ran while nothing was to do.
        assert after.simulated.clock_s - before.simulated.clock_s >= after.steps_s * 500


async def test_counters_are_reset_as_by_a_restart() -> None:
    async with engine() as client:
        await client.post(CHAT, json=chat())
        await fault(client, "reset_counters")
        seen = await reading(client)
        assert (seen.generation_tokens, seen.finished) == (0, 0)
        assert seen.speculation["0"].drafts == 0


async def test_what_is_no_fault_is_refused() -> None:
    async with engine() as client:
        answer = await client.post("/faults", json={"kind": "melt"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, 400)


async def test_it_dies() -> None:
    died = asyncio.Event()
    async with engine(die=died.set) as client:
        await fault(client, "die")
        assert died.is_set()


@contextlib.contextmanager
def process(*options: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    port = free_port()
    command = ("-m", "gateway.cli", "simulated-engine", "--port", port, *options)
    with python(*command, stderr=subprocess.PIPE) as running:
        wait_until(lambda: listens(port) or running.poll() is not None)
        assert running.poll() is None
        yield f"http://127.0.0.1:{port}", running


def ask(url: str, body: dict[str, Any]) -> http.client.HTTPResponse:
    request = urllib.request.Request(
        f"{url}{CHAT}", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=LONG_S)
    return answer


@contextlib.contextmanager
def streamed(url: str, *, tokens: int) -> Iterator[http.client.HTTPResponse]:
    """An answer of so many tokens that has begun."""
    with ask(url, chat("Table Recognition:", stream=True, max_tokens=tokens, ignore_eos=True)) as answer:
        answer.readline()
        yield answer


def refusal(url: str) -> str:
    """How a new request is refused; empty where it is not."""
    try:
        ask(url, chat(max_tokens=1)).close()
    except urllib.error.HTTPError as error:
        return str(json.load(error)["error"]["message"])
    return ""


def test_what_outlasts_the_shutdown_timeout_gets_no_end() -> None:
    with (
        process("--time-scale", "0.1", "--shutdown-timeout", "0.1") as (url, running),
        streamed(url, tokens=9000) as answer,
    ):
        running.send_signal(signal.SIGTERM)
        wait_until(lambda: not listens(urlsplit(url).port or 0))
        assert running.poll() is None
        running.kill()
        with pytest.raises(http.client.IncompleteRead):
            answer.read()


def test_a_second_ctrl_c_waits_for_nobody() -> None:
    with process("--time-scale", "0.1") as (url, running), streamed(url, tokens=9000):
        running.send_signal(signal.SIGINT)
        wait_until(lambda: refusal(url))
        running.send_signal(signal.SIGINT)
        assert running.wait(LONG_S) == 0


def test_sigterm_lets_it_finish_what_is_in_flight() -> None:
    with process("--depth", "1") as (url, running):
        with streamed(url, tokens=1000) as answer:
            running.send_signal(signal.SIGTERM)
            # It listens, is well, and fails what is new: a live test sees vLLM do so.
            assert is_stopping(wait_until(lambda: refusal(url)))
            urllib.request.urlopen(f"{url}/health", timeout=LONG_S).close()
            assert answer.read().decode().endswith("data: [DONE]\n\n")
        _, log = running.communicate(timeout=LONG_S)
        assert running.returncode == 0
        assert all("simulated engine" in line for line in log.decode().splitlines())


def test_a_process_told_to_die_dies_at_once() -> None:
    with process() as (url, running):
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            urllib.request.urlopen(f"{url}/faults", b'{"kind": "die"}', timeout=LONG_S)
        assert running.wait(LONG_S) == 1


async def test_a_response_is_vllms() -> None:
    async with (
        engine() as client,
        openai.AsyncOpenAI(base_url=f"{client.base_url}/v1", api_key="-") as asking,
    ):
        whole = await asking.responses.create(
            model="glm-ocr", input="Table Recognition:", max_output_tokens=4
        )
        assert (whole.output_text, whole.status) == ("This text is simulated", "incomplete")
        assert whole.usage is not None
        assert (whole.usage.input_tokens, whole.usage.output_tokens) == (
            H100.routes["table"].prompt_tokens,
            4,
        )
        async with asking.responses.stream(model="glm-ocr", input="a", max_output_tokens=7) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        assert kinds[:2] == ["response.created", "response.in_progress"]
        assert final.output_text == "This text is simulated and was read"
        ended = await asking.responses.create(model="glm-ocr", input=[{"role": "user", "content": "a"}])
        assert ended.status == "completed"
        assert (await reading(client)).finished == 3
    async with engine() as client:
        refused = await client.post("/v1/responses", json={"input": "a", "max_output_tokens": 0})
        assert (refused.status_code, "max_output_tokens" in refused.text) == (400, True)
        await fault(client, "die_mid_stream", after_tokens=10)
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post("/v1/responses", json=asked("Table Recognition:", stream=True))


async def test_a_response_is_taken_at_once_and_begun_later() -> None:
    async with (
        engine(time_scale=STILL) as client,
        client.stream("POST", "/v1/responses", json=asked(stream=True)) as answer,
    ):
        assert await anext(answer.aiter_lines()) == "event: response.created"
