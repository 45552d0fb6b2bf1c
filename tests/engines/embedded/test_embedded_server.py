from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import threading
from subprocess import PIPE, Popen
from typing import TYPE_CHECKING, Any, cast

import httpx
import openai
import pytest
from PIL import Image

from bench.serving import free_port
from gateway.engines import asgi
from gateway.engines.embedded import embedded_server
from gateway.engines.embedded.answers import GREETING
from gateway.engines.embedded.embedded_server import EmbeddedEngine
from tests.engines.embedded.rendering import FakeReader, chat, encoded, png_header, receipt
from tests.support import LONG_S, data_url, events_of, listens, python, samples_of, served, until
from tests.support import asked as wanted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from gateway.engines.embedded.reader import Reader

BLANK = encoded(Image.new("RGB", (56, 28), "white"))
BLANK_URL = data_url(BLANK)
TOOL = {"type": "function", "function": {"name": "save", "parameters": {"properties": {"name": {}}}}}


@contextlib.asynccontextmanager
async def engine(
    reader: object = None, *, workers: int = 1, max_waiting: int = 4
) -> AsyncIterator[httpx.AsyncClient]:
    reader = FakeReader() if reader is None else reader
    app = EmbeddedEngine(workers=workers, max_waiting=max_waiting, load=lambda: cast("Reader", reader)).app()
    async with served(app) as url, httpx.AsyncClient(base_url=url, timeout=30) as http:
        await until(lambda: healthy(http))
        yield http


async def post(http: httpx.AsyncClient, body: bytes, **headers: str) -> httpx.Response:
    headers = {"content-type": "application/json", **headers}
    return await http.post("/v1/chat/completions", content=body, headers=headers)


async def metrics(http: httpx.AsyncClient) -> dict[str, float]:
    return {
        sample.name.removeprefix("vllm:") + sample.labels.get("finished_reason", ""): sample.value
        for sample in samples_of((await http.get("/metrics")).text)
    }


async def waits(http: httpx.AsyncClient, count: int = 1) -> bool:
    """Whether so many requests wait."""
    return (await metrics(http))["num_requests_waiting"] == count


async def idle(http: httpx.AsyncClient) -> bool:
    """Whether nothing runs or waits."""
    now = await metrics(http)
    return now["num_requests_running"] == now["num_requests_waiting"] == 0


async def healthy(http: httpx.AsyncClient) -> bool:
    with contextlib.suppress(httpx.ConnectError):
        return (await http.get("/health")).status_code == 200
    return False


async def test_the_model_and_version_are_told() -> None:
    async with engine() as http:
        (model,) = (await http.get("/v1/models")).json()["data"]
        assert (model["id"], model["object"]) == ("glm-ocr", "model")
        assert model["max_model_len"] > 0
        assert (await http.get("/version")).json()["version"]


async def test_health_is_503_until_the_models_are_loaded() -> None:
    gate = threading.Event()

    def load() -> Reader:
        gate.wait(30)
        return cast("Reader", FakeReader())

    app = EmbeddedEngine(workers=1, load=load).app()
    async with served(app) as url, httpx.AsyncClient(base_url=url) as http:
        assert (await http.get("/health")).status_code == 503
        early = asyncio.create_task(post(http, chat(BLANK)))
        assert (await post(http, chat(prompt="hello"))).status_code == 200
        gate.set()
        assert (await early).status_code == 200
        assert (await http.get("/health")).status_code == 200


async def test_models_that_cannot_be_loaded_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    failed: list[bool] = []

    def load() -> Reader:
        raise RuntimeError("no models")

    app = EmbeddedEngine(workers=1, load=load, on_failure=lambda: failed.append(True)).app()
    async with served(app) as url, httpx.AsyncClient(base_url=url) as http:
        await until(lambda: failed)
        assert (await http.get("/health")).status_code == 503
    assert "cannot be loaded" in caplog.text


async def test_a_whole_answer() -> None:
    async with engine() as http:
        answer = await post(http, chat(BLANK), **{"X-Request-Id": "abc-1"})
        assert answer.headers["content-type"] == "application/json"
        body = answer.json()
        assert body["id"] == "chatcmpl-abc-1"
        assert body["choices"][0]["message"]["content"] == "one\ntwo"
        assert body["choices"][0]["finish_reason"] == "stop"
        assert body["usage"] == {"prompt_tokens": 5, "total_tokens": 7, "completion_tokens": 2}
        now = await metrics(http)
        assert (now["prompt_tokens_total"], now["generation_tokens_total"]) == (5, 2)
        assert now["request_success_totalstop"] == 1


async def test_a_stream_has_an_event_for_each_line() -> None:
    async with engine() as http:
        answer = await post(http, chat(BLANK, stream=True, stream_options={"include_usage": True}))
        assert answer.headers["content-type"].startswith("text/event-stream")
        first, *lines, last, usage = events_of(answer.text)
        assert first["choices"][0]["delta"]["role"] == "assistant"
        assert [line["choices"][0]["delta"]["content"] for line in lines] == ["one", "\ntwo"]
        assert last["choices"][0]["finish_reason"] == "stop"
        assert usage["choices"] == []
        assert usage["usage"]["completion_tokens"] == 2


async def test_lines_are_sent_as_soon_as_they_are_read() -> None:
    gate = threading.Event()
    async with (
        engine(FakeReader(gate=gate)) as http,
        http.stream("POST", "/v1/chat/completions", content=chat(BLANK, stream=True)) as answer,
    ):
        blocks = answer.aiter_lines()
        assert '"role"' in await anext(blocks)
        gate.set()
        assert [block async for block in blocks][-2] == "data: [DONE]"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_token_limit_cuts(stream: bool) -> None:
    reader = FakeReader(["one", "two", "three", "four"], pause_s=0.02)
    async with engine(reader) as http:
        answer = await post(http, chat(BLANK, max_tokens=2, stream=stream))
        await until(lambda: idle(http))
        assert reader.read <= 3
        choice = (events_of(answer.text)[-1] if stream else answer.json())["choices"][0]
        assert choice["finish_reason"] == "length"
        assert (await metrics(http))["request_success_totallength"] == 1


async def test_without_an_image_there_is_a_greeting_at_once() -> None:
    reader = FakeReader()
    async with engine(reader) as http:
        for content in ("ping", [{"type": "text", "text": "hello"}]):
            body = {"model": "glm-ocr", "messages": [{"role": "user", "content": content}], "max_tokens": 10}
            answer = (await post(http, json.dumps(body).encode())).json()
            assert answer["choices"][0]["message"]["content"] == GREETING
        answer = await post(http, chat(stream=True))
        assert events_of(answer.text)[1]["choices"][0]["delta"]["content"] == GREETING
    assert reader.detected == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_blank_image_has_an_empty_answer(stream: bool) -> None:
    async with engine(FakeReader([])) as http:
        answer = await post(http, chat(BLANK, stream=stream))
        assert answer.status_code == 200
        if stream:
            assert len(events_of(answer.text)) == 2
        else:
            assert answer.json()["choices"][0]["message"]["content"] == ""


async def test_a_forced_tool_is_called_through_the_openai_sdk() -> None:
    async with engine(FakeReader(["Name: Ada"])) as http:
        client = openai.AsyncOpenAI(base_url=f"{http.base_url}/v1", api_key="none")
        messages = [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": data_url(BLANK)}}]}
        ]
        asked: dict[str, Any] = {"model": "glm-ocr", "messages": messages, "tools": [TOOL]}
        whole = await client.chat.completions.create(**asked, tool_choice="required")
        (call,) = whole.choices[0].message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("save", {"name": "Ada"})
        named = {"type": "function", "function": {"name": "save"}}
        chunks = [
            chunk.choices[0]
            async for chunk in await client.chat.completions.create(**asked, tool_choice=named, stream=True)
        ]
        deltas = [call.function for chunk in chunks for call in chunk.delta.tool_calls or ()]
        assert deltas[0].name == "save"
        assert json.loads("".join(delta.arguments for delta in deltas)) == {"name": "Ada"}
        assert (whole.choices[0].finish_reason, chunks[-1].finish_reason) == ("tool_calls", "stop")
        await client.close()


PAID = {
    "type": "object",
    "properties": {"total": {"type": "number"}, "paid": {"type": "boolean"}},
    "required": ["total", "paid"],
}


@pytest.mark.parametrize("stream", [False, True])
async def test_what_no_answer_can_follow_is_400_and_not_an_answer_that_breaks_it(stream: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": PAID, "strict": True}}
    async with engine(FakeReader(["Total: 8.25", "Paid: yes"])) as http:
        told = await post(http, chat(BLANK, response_format=form, stream=stream))
        assert told.status_code == 200
        if stream:
            text = "".join(event["choices"][0]["delta"].get("content", "") for event in events_of(told.text))
        else:
            text = told.json()["choices"][0]["message"]["content"]
        assert json.loads(text) == {"total": 8.25, "paid": True}
    async with engine(FakeReader(["Total: 8.25"])) as http:
        refused = await post(http, chat(BLANK, response_format=form, stream=stream))
        error = refused.json()["error"]
        assert (refused.status_code, error["param"]) == (400, "response_format")
        assert "`paid`: true or false is required" in error["message"]
        await until(lambda: idle(http))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("stops", "keep", "text", "stop"),
    [
        ("two", False, "one\n", "two"),
        (["x", "ne\nt"], True, "one\nt", "ne\nt"),
        ("twosome", False, "one\ntwo", None),
    ],
)
async def test_a_stop_string_ends_the_answer_over_the_bounds_of_lines(
    stops: Any, keep: bool, text: str, stop: str | None, stream: bool
) -> None:
    reader = FakeReader(["one", "two"])
    async with engine(reader) as http:
        body = chat(BLANK, stop=stops, include_stop_str_in_output=keep, stream=stream)
        answer = await post(http, body)
        if stream:
            choices = [event["choices"][0] for event in events_of(answer.text)]
            told, last = "".join(choice["delta"]["content"] for choice in choices), choices[-1]
        else:
            last = answer.json()["choices"][0]
            told = last["message"]["content"]
        assert (told, last["finish_reason"], last.get("stop_reason")) == (text, "stop", stop)


async def test_each_event_tells_the_usage_so_far_where_that_is_asked_for() -> None:
    async with engine() as http:
        options = {"include_usage": True, "continuous_usage_stats": True}
        answer = await post(http, chat(BLANK, stream=True, stream_options=options))
        told = [event["usage"]["completion_tokens"] for event in events_of(answer.text)]
        assert told == [0, 1, 2, 2, 2]


async def test_the_route_gives_a_request_without_words_its_form() -> None:
    async with engine() as http:
        for route, text in (("table", "<table>"), ("text", "one"), ("key-value", "{}")):
            answer = await post(http, chat(BLANK, prompt=""), **{"x-ocr-route": route})
            assert answer.json()["choices"][0]["message"]["content"].startswith(text)
        told = await http.post("/v1/responses", json=wanted("", BLANK_URL), headers={"x-ocr-route": "table"})
        assert told.json()["output"][0]["content"][0]["text"].startswith("<table>")


async def test_text_completions_are_refused_with_what_is_right() -> None:
    async with engine() as http:
        answer = await http.post("/v1/completions", json={"model": "glm-ocr", "prompt": "hello"})
        error = answer.json()["error"]
        assert (answer.status_code, error["type"], error["code"]) == (400, "BadRequestError", 400)
        assert "/v1/chat/completions" in error["message"]


async def test_of_two_required_tools_one_is_called_and_then_the_answer_is_text() -> None:
    tools = [
        {
            "type": "function",
            "function": {"name": name, "parameters": {"properties": {field: {"type": "number"}}}},
        }
        for name, field in (("weigh", "weight"), ("pay", "total"))
    ]
    async with engine(FakeReader(["Total: 8.25"])) as http:
        client = openai.AsyncOpenAI(base_url=f"{http.base_url}/v1", api_key="none")
        messages: list[Any] = [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": BLANK_URL}}]}
        ]
        asked: dict[str, Any] = {"model": "glm-ocr", "tools": tools, "tool_choice": "required"}
        told = (await client.chat.completions.create(**asked, messages=messages)).choices[0]
        (call,) = told.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("pay", {"total": 8.25})
        messages += [told.message, {"role": "tool", "tool_call_id": call.id, "content": "paid"}]
        told = (await client.chat.completions.create(**asked, messages=messages)).choices[0]
        assert (told.message.tool_calls, told.message.content) == (None, "Total: 8.25")
        assert told.finish_reason == "stop"
        stream = await client.responses.create(
            model="glm-ocr",
            input=wanted("", BLANK_URL)["input"],
            tools=[{"type": "function", **tool["function"], "strict": False} for tool in tools],
            tool_choice="required",
            stream=True,
        )
        final = [event async for event in stream][-1].response
        assert (final.output[0].type, final.output[0].name) == ("function_call", "pay")
        await client.close()


async def test_a_response_is_read_whole_or_streamed() -> None:
    async with engine() as http:
        client = openai.AsyncOpenAI(base_url=f"{http.base_url}/v1", api_key="none")
        told = wanted("Text Recognition:", BLANK_URL)
        whole = await client.responses.create(**told)
        assert (whole.output_text, whole.status) == ("one\ntwo", "completed")
        assert whole.usage is not None
        assert (whole.usage.input_tokens, whole.usage.output_tokens) == (5, 2)
        async with client.responses.stream(**told, max_output_tokens=1) as stream:
            deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            final = await stream.get_final_response()
        assert (deltas, final.status) == (["one"], "incomplete")
        await client.close()
        now = await metrics(http)
        assert (now["request_success_totalstop"], now["request_success_totallength"]) == (1, 1)


async def test_a_response_follows_a_schema_or_calls_a_tool() -> None:
    schema = {"properties": {"name": {"type": "string"}}}
    form = {"type": "json_schema", "name": "person", "schema": schema}
    tool = {"type": "function", "name": "save", "parameters": schema}
    named = {"type": "function", "name": "save"}
    async with engine(FakeReader(["Name: Ada"])) as http:

        async def output(**members: Any) -> Any:
            answer = await http.post("/v1/responses", json=wanted("", BLANK_URL, **members))
            return answer.json()["output"][0]

        said = await output(text={"format": form})
        assert json.loads(said["content"][0]["text"]) == {"name": "Ada"}
        for choice in (named, "required"):
            call = await output(tools=[tool], tool_choice=choice)
            assert (call["type"], call["name"], json.loads(call["arguments"])) == (
                "function_call",
                "save",
                {"name": "Ada"},
            )
        for members in ({"max_output_tokens": 0}, {"tools": [tool], "tool_choice": {**named, "name": "x"}}):
            refused = await http.post("/v1/responses", json=wanted("", BLANK_URL, **members))
            assert refused.status_code == 400


async def test_a_response_that_breaks_off_says_so() -> None:
    async with engine(FakeReader(["one", RuntimeError("secret")])) as http:
        answer = await http.post("/v1/responses", json=wanted("", BLANK_URL, stream=True))
        *_, last, rest = answer.text.split("\n\n")
        assert (last.partition("\n")[0], rest) == ("event: error", "")
        assert "secret" not in answer.text
        assert json.loads(last.partition("data: ")[2])["error"]["code"] == 500


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (b"", 400, "BadRequestError"),
        (b"{", 400, "BadRequestError"),
        (b"[]", 400, "BadRequestError"),
        (b'{"model": "glm-ocr"}', 400, "BadRequestError"),
        (chat(BLANK, model="other"), 404, "NotFoundError"),
        (chat(BLANK, n=2), 400, "BadRequestError"),
        (chat(b"no image"), 400, "BadRequestError"),
        (chat(b"no image", stream=True), 400, "BadRequestError"),
        (
            chat(encoded(Image.effect_noise((200, 200), 50), "JPEG")[:3000], stream=True),
            400,
            "BadRequestError",
        ),
        (chat(png_header(20_000, 20_000)), 400, "BadRequestError"),
    ],
)
async def test_refusals_have_vllms_shape(body: bytes, status: int, kind: str) -> None:
    async with engine() as http:
        answer = await post(http, body)
        error = answer.json()["error"]
        assert (answer.status_code, error["type"], error["code"]) == (status, kind, status)
        assert error["message"]
        await until(lambda: idle(http))


async def test_too_large_a_body_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "MAX_BODY_BYTES", 100)
    async with engine() as http:
        assert (await post(http, chat(BLANK))).status_code == 413


async def test_what_is_not_served_is_vllms_404_and_405() -> None:
    async with engine() as http:
        assert (await http.get("/v1/nothing")).json() == {"detail": "Not Found"}
        answer = await http.get("/v1/chat/completions")
        assert (answer.status_code, answer.json()) == (405, {"detail": "Method Not Allowed"})


async def test_a_full_queue_is_503() -> None:
    gate = threading.Event()
    async with engine(FakeReader(gate=gate), max_waiting=1) as http:
        held = [asyncio.create_task(post(http, chat(BLANK))) for _ in range(2)]
        await until(lambda: waits(http))
        assert (await post(http, chat(BLANK))).status_code == 503
        gate.set()
        assert [(await task).status_code for task in held] == [200, 200]


async def test_a_failure_is_500_and_says_nothing_of_the_document(caplog: pytest.LogCaptureFixture) -> None:
    async with engine(FakeReader(["one", RuntimeError("secret")])) as http:
        answer = await post(http, chat(BLANK))
        assert answer.status_code == 500
        assert "secret" not in answer.text
        streamed = events_of((await post(http, chat(BLANK, stream=True))).text)
        assert streamed[1]["choices"][0]["delta"]["content"] == "one"
        assert streamed[-1]["error"]["code"] == 500
        await until(lambda: idle(http))
        assert (await metrics(http))["request_success_totalerror"] == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_its_work(stream: bool) -> None:
    reader = FakeReader(["line"] * 10_000, pause_s=0.01)
    async with engine(reader) as http:
        leaving = asyncio.create_task(post(http, chat(BLANK, stream=stream)))
        await until(lambda: reader.read > 2)
        leaving.cancel()
        await until(lambda: idle(http))
        assert (await metrics(http))["request_success_totalabort"] == 1


async def test_a_client_that_leaves_the_queue_is_never_read() -> None:
    gate = threading.Event()
    reader = FakeReader(gate=gate)
    async with engine(reader) as http:
        running = asyncio.create_task(post(http, chat(BLANK)))
        await until(lambda: reader.detected == 1)
        left = asyncio.create_task(post(http, chat(BLANK)))
        await until(lambda: waits(http))
        left.cancel()
        await until(lambda: waits(http, 0))
        gate.set()
        assert (await running).status_code == 200
        await until(lambda: idle(http))
    assert reader.detected == 1


async def test_a_client_that_leaves_within_its_body_is_forgotten() -> None:
    async with engine() as http:
        host, port = http.base_url.host, http.base_url.port
        _, writer = await asyncio.open_connection(host, port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert (await post(http, chat(BLANK))).status_code == 200
        await until(lambda: idle(http))


async def test_a_real_receipt_over_http(reader: Reader) -> None:
    async with engine(reader) as http:
        answer = (await post(http, chat(receipt()))).json()
        assert "Total 8.25" in answer["choices"][0]["message"]["content"]


def process(*arguments: object, **options: Any) -> contextlib.AbstractContextManager[Popen[bytes]]:
    return python("-m", "gateway.engines.embedded", *arguments, stdin=PIPE, stderr=PIPE, **options)


@pytest.mark.parametrize("end", ["stdin", "SIGTERM", "SIGINT"])
async def test_it_serves_an_inherited_socket_and_dies_quietly_with_its_parent_or_by_signal(end: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        arguments = ("--fd", listener.fileno(), "--exit-with-stdin", "--workers", 1, "--model", "m")
        with process(*arguments, pass_fds=[listener.fileno()]) as child:
            async with httpx.AsyncClient(base_url=url, timeout=LONG_S) as http:
                await until(lambda: healthy(http))
                answer = await post(http, chat(receipt(), model="m"))
                assert "CORNER BAKERY" in answer.text
            assert child.stdin is not None
            if end == "stdin":
                child.stdin.close()
            else:
                child.send_signal(getattr(signal, end))
            assert await asyncio.to_thread(child.wait, LONG_S) == 0
            assert child.stderr is not None
            assert child.stderr.read() == b""


async def test_sigterm_ends_it_even_while_it_loads() -> None:
    port = free_port()
    with process("--port", port) as child:
        await until(lambda: listens(port))
        child.terminate()
        assert await asyncio.to_thread(child.wait, LONG_S) == 0


@pytest.fixture
def _signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("gateway.telemetry.logs.configure", lambda *_: None)
    before = [(number, signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)]
    yield
    for number, handler in before:
        signal.signal(number, handler)


@pytest.mark.usefixtures("_signals")
def test_it_stops_at_the_end_of_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_server, "_load_reader", FakeReader)
    embedded_server.main(port=0, workers=1, exit_with_stdin=True)


@pytest.mark.usefixtures("_signals")
def test_it_fails_where_the_models_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> Reader:
        raise RuntimeError("no models")

    monkeypatch.setattr(embedded_server, "_load_reader", load)
    listener = socket.create_server(("127.0.0.1", 0))
    with pytest.raises(SystemExit) as caught:
        embedded_server.main(fd=listener.detach(), workers=1)
    assert caught.value.code == 1


def test_the_real_reader_is_what_it_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.engines.embedded.reader.Reader", FakeReader)
    assert isinstance(embedded_server._load_reader(), FakeReader)
