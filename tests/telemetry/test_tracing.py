"""Spans: which there are, what they tell and what they never tell, and what becomes of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, StatusCode

from bench.serving import ROOT, free_port
from gateway.config import parse
from gateway.engines.vllm_json import speculative_object
from gateway.errors import ConfigError
from gateway.server.app import Gateway
from gateway.telemetry import tracing
from gateway.telemetry.logs import _Formatter
from gateway.telemetry.tracing import Tracing
from tests.conftest import fleet
from tests.support import (
    CONFIG,
    FakeEngine,
    _Sender,
    answer,
    chat,
    chunk,
    completion,
    hang,
    served,
    serving,
    until,
)
from tests.telemetry.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.conftest import Running

CHAT = "/v1/chat/completions"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECRET = "planted-secret"
DOCUMENT = (ROOT / "docs/tracing.md").read_text()


class Recorder(SpanProcessor):
    """Keeps the spans that have ended, and counts those that have not."""

    def __init__(self) -> None:
        self.open = 0
        self.ended: list[ReadableSpan] = []

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.open += 1

    def on_end(self, span: ReadableSpan) -> None:
        self.open -= 1
        self.ended.append(span)

    def names(self) -> list[str]:
        return [span.name for span in self.ended]

    def one(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self.ended if span.name == name]
        return span

    def request(self) -> dict[str, Any]:
        return told(self.one(f"POST {CHAT}"))

    async def complete(self, requests: int = 1) -> None:
        await until(lambda: self.names().count(f"POST {CHAT}") == requests)
        assert self.open == 0


def told(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """What a gateway that is made from now on traces."""
    recorder = Recorder()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(Tracing, "to_collector", classmethod(lambda cls: cls(recorder)))
    return recorder


def parent_of(headers: dict[str, str]) -> str:
    return headers["traceparent"].split("-")[2]


async def test_a_request_has_a_span_and_one_for_each_stage_within_the_clients_own_trace(
    spans: Recorder, running: Running
) -> None:
    def engine_told(engine: FakeEngine, request: Any, send: _Sender) -> Any:
        told = {
            "speculative_decoding": speculative_object([0, 1, 1, 0], 6)
        }  # two drafts, three tokens accepted
        return send.json({**completion("hello"), "metrics": told})

    running.deep.behave = engine_told
    headers = {"traceparent": PARENT, "tracestate": "a=1", "x-request-id": "mine", "baggage": "b=2"}
    reply = await running.http.post(CHAT, json=chat("Table Recognition:"), headers=headers)
    assert reply.status_code == 200
    await spans.complete()
    assert spans.names() == ["receive", "sort", "choose", "attempt", "answer", f"POST {CHAT}"]
    request, attempt = spans.one(f"POST {CHAT}"), spans.one("attempt")
    assert request.kind is SpanKind.SERVER
    assert attempt.kind is SpanKind.CLIENT
    assert request.parent
    assert f"{request.parent.span_id:016x}" == PARENT.split("-")[2]
    assert {span.parent.span_id for span in spans.ended[:-1] if span.parent} == {request.context.span_id}
    assert {f"{span.context.trace_id:032x}" for span in spans.ended} == {PARENT.split("-")[1]}
    (sent,) = running.deep.headers
    assert parent_of(sent) == f"{attempt.context.span_id:016x}"
    assert sent["tracestate"] == "a=1"
    assert "baggage" not in sent
    assert spans.request() == {
        "http.request.method": "POST",
        "http.route": CHAT,
        "url.path": CHAT,
        "url.scheme": "http",
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "glm-ocr",
        "ocr.request_id": "mine",
        "http.response.status_code": 200,
        "ocr.route": "table",
        "ocr.route.reason": "prompt",
        "ocr.pool": "mtp3",
        "ocr.engine": told(attempt)["ocr.engine"],
        "ocr.depth": 3,
        "gen_ai.usage.prompt_tokens": 7,
        "gen_ai.usage.completion_tokens": 2,
        "ocr.speculation.drafts": 2,
        "ocr.speculation.accepted": 3,
        "ocr.speculation.acceptance_length": 2.5,
        "ocr.speculation.source": "request",
    }
    assert told(attempt)["http.response.status_code"] == 200
    assert told(attempt)["url.full"] == f"http://127.0.0.1:{told(attempt)['server.port']}{CHAT}"
    assert request.status.status_code is StatusCode.UNSET


async def test_a_whole_answers_attempt_ends_when_it_is_in_and_a_streams_with_the_stream(
    spans: Recorder, running: Running
) -> None:
    await running.http.post(CHAT, json=chat())
    await running.http.post(CHAT, json=chat(stream=True))
    await spans.complete(2)
    assert spans.names() == [
        *("receive", "sort", "choose", "attempt", "answer", f"POST {CHAT}"),
        *("receive", "sort", "choose", "answer", "attempt", f"POST {CHAT}"),
    ]
    assert "gen_ai.latency.time_to_first_token" in told(spans.ended[-1])


async def test_a_retry_is_a_span_of_its_own_whose_context_the_other_engine_gets(spans: Recorder) -> None:
    async with fleet(2) as served_fleet:
        for engine in served_fleet.engines:
            engine.behave = refuse_first(served_fleet.engines)
        assert (await served_fleet.http.post(CHAT, json=chat())).status_code == 200
        await spans.complete()
        first, second = [span for span in spans.ended if span.name == "attempt"]
        assert first.status.status_code is StatusCode.ERROR
        assert told(first)["error.type"] == "engine_busy"
        assert told(first)["http.response.status_code"] == 503
        assert "http.request.resend_count" not in told(first)
        assert told(second)["http.request.resend_count"] == 1
        assert {parent_of(engine.headers[0]) for engine in served_fleet.engines} == {
            f"{span.context.span_id:016x}" for span in (first, second)
        }
        assert spans.request()["ocr.retries"] == 1


def refuse_first(engines: list[FakeEngine]) -> Any:
    async def behave(engine: FakeEngine, request: Any, send: _Sender) -> None:
        if sum(len(one.bodies) for one in engines) == 1:
            return await send.json({"error": {"message": "full"}}, 503)
        return await answer(engine, request, send)

    return behave


async def test_waiting_for_a_place_is_a_span(spans: Recorder) -> None:
    async with fleet(1, max_load=1) as served_fleet:
        (engine,) = served_fleet.engines
        engine.behave = hang
        first = asyncio.create_task(served_fleet.http.post(CHAT, json=chat()))
        await until(lambda: engine.running)
        second = asyncio.create_task(served_fleet.http.post(CHAT, json=chat()))
        await until(lambda: served_fleet.gateway.state.snapshot().routes["text"].waiting)
        engine.behave = None
        first.cancel()
        assert (await second).status_code == 200
        await spans.complete(2)
        assert spans.one("queue").status.status_code is StatusCode.UNSET
        (waited,) = [told(span) for span in spans.ended if "gen_ai.latency.time_in_queue" in told(span)]
        assert waited["http.response.status_code"] == 200


async def test_a_clients_mistake_is_no_error_of_the_span_but_has_its_code(
    spans: Recorder, running: Running
) -> None:
    assert (await running.http.post(CHAT, json=chat(model="other"))).status_code == 404
    await spans.complete()
    assert spans.names() == ["receive", f"POST {CHAT}"]
    assert spans.request()["error.type"] == told(spans.one("receive"))["error.type"] == "model_not_found"
    assert spans.request()["http.response.status_code"] == 404
    assert spans.one(f"POST {CHAT}").status.status_code is StatusCode.UNSET


async def test_who_leaves_is_seen_to_leave(spans: Recorder, running: Running) -> None:
    running.plain.behave = hang
    with pytest.raises(httpx.ReadTimeout):
        await running.http.post(CHAT, json=chat(), timeout=0.2)
    await spans.complete()
    assert spans.request()["error.type"] == told(spans.one("attempt"))["error.type"] == "client_left"
    assert spans.request()["http.response.status_code"] == 499
    assert spans.one("attempt").status.status_code is StatusCode.UNSET


async def test_a_stream_that_breaks_is_an_error_after_an_answer_had_begun(
    spans: Recorder, running: Running
) -> None:
    async def breaks(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.start(kind="text/event-stream")
        await send.event(chunk("one"))
        await send.event({"error": {"message": "internal", "code": 500}})
        await send.body(b"", more=False)

    running.plain.behave = breaks
    await running.http.post(CHAT, json=chat(stream=True))
    await spans.complete()
    assert spans.request()["error.type"] == "engine_error"
    assert spans.request()["http.response.status_code"] == 502
    assert spans.one(f"POST {CHAT}").status.status_code is StatusCode.ERROR


async def test_no_span_stays_open_whatever_engines_and_clients_do(spans: Recorder) -> None:
    async def garbage(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.json({"no": "completion"})

    async def torn(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.start(kind="text/event-stream" if request.get("stream") else "application/json")
        await send.body(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n')

    async def waits(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await go_on.wait()
        await answer(engine, request, send)

    go_on = asyncio.Event()
    settings = "{breaker: {failures: 1000000}, retry: {budget: 1}}"
    rng = random.Random(7)
    async with fleet(2, settings, max_load=3) as served_fleet:

        async def client() -> None:
            engine = rng.choice(served_fleet.engines)
            engine.behave = rng.choice([None, waits, garbage, torn, refuse_first(served_fleet.engines)])
            body = chat(stream=rng.random() < 0.5, **({"model": "x"} if rng.random() < 0.1 else {}))
            asking = asyncio.create_task(served_fleet.http.post(CHAT, json=body))
            for _ in range(rng.randrange(200)):
                await asyncio.sleep(0)
            if rng.random() < 0.5:
                asking.cancel()
            asked.append(asking)

        for _ in range(8):
            asked: list[asyncio.Task[httpx.Response]] = []
            go_on.clear()
            await asyncio.gather(*(client() for _ in range(12)))
            go_on.set()
            await asyncio.gather(*asked, return_exceptions=True)
        await until(lambda: not served_fleet.gateway.state.requests.open)
    assert spans.open == 0
    assert len({span.context.span_id for span in spans.ended}) == len(spans.ended)


async def test_nothing_of_a_document_a_key_or_a_query_is_in_a_span_or_the_log(
    spans: Recorder, running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    async def quotes(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.json({"error": {"message": SECRET}}, 500)

    for name in ("httpx", "uvicorn.access"):  # of the test's own client and of its engines
        caplog.set_level(logging.WARNING, name)
    caplog.set_level(logging.INFO)
    caplog.handler.setFormatter(_Formatter("json"))
    headers = {"authorization": f"Bearer {SECRET}", "x-other": SECRET, "user-agent": SECRET}
    headers |= {"traceparent": PARENT, "tracestate": f"{SECRET}!,a=1", "baggage": f"a={SECRET}"}
    for behave, body in [
        (None, chat(f"Text Recognition: {SECRET}", user=SECRET)),
        (None, chat(SECRET, metadata={"ocr_route": SECRET})),
        (None, chat(model=SECRET)),
        (None, chat("x", f"data:image/png;base64,{SECRET}")),
        (quotes, chat(SECRET)),
        (quotes, chat(SECRET, stream=True)),
    ]:
        running.plain.behave = running.deep.behave = behave
        await running.http.post(f"{CHAT}?token={SECRET}", json=body, headers=headers)
    await spans.complete(6)
    assert caplog.text.count('"request"') == 6
    assert SECRET not in "".join(span.to_json() for span in spans.ended) + caplog.text


@pytest.mark.parametrize(
    ("sampler", "sent", "flags"),
    [("always_off", PARENT, "00"), ("parentbased_always_on", PARENT[:-2] + "00", "00")],
)
async def test_the_sampler_and_the_clients_decision_are_honoured_and_told_the_engine(
    spans: Recorder, monkeypatch: pytest.MonkeyPatch, sampler: str, sent: str, flags: str
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    async with fleet(1) as served_fleet:
        assert (
            await served_fleet.http.post(CHAT, json=chat(), headers={"traceparent": sent})
        ).status_code == 200
        (got,) = served_fleet.engines[0].headers
    assert got["traceparent"].split("-")[1::2] == [PARENT.split("-")[1], flags]
    assert parent_of(got) != PARENT.split("-")[2]
    assert spans.ended == []


async def test_switched_off_a_clients_context_goes_to_the_engine_as_it_came(running: Running) -> None:
    valid = {"traceparent": PARENT, "tracestate": "a=1", "baggage": "b=2"}
    await running.http.post(CHAT, json=chat(), headers=valid)
    await running.http.post(CHAT, json=chat(), headers={**valid, "traceparent": "00-nonsense"})
    first, second = running.plain.headers
    assert {name: first.get(name) for name in valid} == {**valid, "baggage": None}
    assert not set(valid) & set(second)


_SERVES = """
import asyncio, json, sys
import httpx
from pathlib import Path
from gateway.server.app import Gateway
from gateway.config import parse
from tests.support import CONFIG, FakeEngine, chat, served, serving, until

async def main():
    async with served(FakeEngine()) as engine:
        text = CONFIG.replace("ENGINE", engine).replace("OTHER", "http://127.0.0.1:1")
        gateway = Gateway(parse(text, "routes.yaml", Path(), {}))
        async with serving(gateway) as url, httpx.AsyncClient(base_url=url) as http:
            await until(lambda: any(one.view.up for one in gateway.state.snapshot().engines))
            print((await http.post("/v1/chat/completions", json=chat())).status_code)
    # FastAPI loads the bare interface.
    ours = ("opentelemetry.sdk", "opentelemetry.exporter", "gateway.telemetry.tracing")
    print([name for name in sys.modules if name.startswith(ours)])
asyncio.run(main())
"""


def test_switched_off_nothing_of_it_is_loaded() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SERVES], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines() == ["200", "[]"], done.stderr


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "TRUE"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_without_an_endpoint_or_where_the_variables_say_so_it_is_off(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    monkeypatch.setattr(Tracing, "to_collector", classmethod(lambda cls: pytest.fail("it is on")))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    gateway_of_one()


def gateway_of_one(engine: str = "http://127.0.0.1:2") -> Gateway:
    text = CONFIG.replace("ENGINE", engine).replace("OTHER", "http://127.0.0.1:1")
    return Gateway(parse(text, "routes.yaml", Path(), {}))


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf only"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "http/protobuf only"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "many", "OTEL_BSP_MAX_QUEUE_SIZE"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "1", "max_export_batch_size"),
    ],
)
def test_what_it_cannot_do_is_an_error_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, problem: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:1/v1/traces")
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=problem):
        gateway_of_one()


@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"])
@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("api-key planted", True),
        ("a=b,api-key: planted", True),
        ("api-key=planted", False),
        ("a=b,,c=planted,", False),
    ],
)
def test_headers_for_the_collector_that_are_none_are_told_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variable: str, value: str, told: bool
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv(variable, value)
    gateway_of_one()
    assert (f"{variable}: not all of it is name=value" in caplog.text) is told
    assert "planted" not in caplog.text


def test_where_its_packages_are_missing_the_error_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "gateway.telemetry.tracing", None)
    with pytest.raises(ConfigError, match=r"ocr-gateway\[tracing\]"):
        gateway_of_one()


class Collector:
    """An OTLP collector's HTTP receiver."""

    def __init__(self) -> None:
        self.exports: list[ExportTraceServiceRequest] = []
        self.paths: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for _ in range(2):
                await send({"type": (await receive())["type"] + ".complete"})
            return
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        self.exports.append(ExportTraceServiceRequest.FromString(body + message["body"]))
        self.paths.append(scope["path"])
        await _Sender(send).json({})


@pytest.mark.parametrize(
    ("variables", "name"), [({}, "ocr-gateway"), ({"OTEL_SERVICE_NAME": "scans"}, "scans")]
)
async def test_spans_reach_a_collector_at_the_latest_when_the_gateway_stops(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], name: str
) -> None:
    collector, engine = Collector(), FakeEngine()
    async with served(collector) as collector_url, served(engine) as engine_url:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector_url)
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=one")
        monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")  # whose spans and logs would come beside
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value)
        gateway = gateway_of_one(engine_url)
        async with serving(gateway) as url, httpx.AsyncClient(base_url=url) as http:
            await until(lambda: any(status.view.up for status in gateway.state.snapshot().engines))
            assert (await http.post(CHAT, json=chat())).status_code == 200
    assert set(collector.paths) == {"/v1/traces"}
    resources = [one for export in collector.exports for one in export.resource_spans]
    attributes = {one.key: one.value.string_value for one in resources[0].resource.attributes}
    assert attributes["service.name"] == name
    assert attributes["k8s.pod.name"] == "one"
    found = [span for one in resources for scope in one.scope_spans for span in scope.spans]
    assert [span.name for span in found] == [
        *("receive", "sort", "choose", "attempt", "answer"),
        f"POST {CHAT}",
    ]
    assert parent_of(engine.headers[0]) == found[3].span_id.hex()


async def test_the_documented_command_traces_and_a_stopped_gateway_has_sent_its_spans(tmp_path: Path) -> None:
    (command,) = re.findall(r"^```sh\n(export .*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    collector, engine, port = Collector(), FakeEngine(), free_port()
    async with served(collector) as collector_url, served(engine) as engine_url:
        values = {"model": "glm-ocr", "pools": {"pool": {"engines": [engine_url]}}, "routes": {"text": {}}}
        (tmp_path / "routes.yaml").write_text(yaml.safe_dump(values))
        command = command.replace("http://127.0.0.1:4318", collector_url)
        command = command.replace("ocr-gateway serve", f"exec ocr-gateway serve --port {port}")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        process = await asyncio.create_subprocess_exec(
            *("bash", "-euc", command), cwd=tmp_path, env={**os.environ, "PATH": path}
        )
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
                await ready(http)
                assert (await http.post(CHAT, json=chat())).status_code == 200
        finally:
            process.send_signal(signal.SIGINT)
            await process.wait()
    (sent,) = engine.headers
    names = {
        span.span_id.hex(): span.name
        for export in collector.exports
        for one in export.resource_spans
        for scope in one.scope_spans
        for span in scope.spans
    }
    assert names[parent_of(sent)] == "attempt"


async def ready(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(httpx.TransportError):
                if (await http.get("/ready")).status_code == 200:
                    return
            await asyncio.sleep(0.05)


def test_the_documented_attributes_are_those_there_are() -> None:
    table = DOCUMENT.partition("| attribute |")[2].partition("\n\n")[0]
    rows = [line.split(" | ")[0] for line in table.splitlines()]
    documented = {name for row in rows for name in re.findall(r"`([a-z_.]+)`", row)}
    source = Path(tracing.__file__).read_text()
    constants = {getattr(module, name) for module, name in used(source)}
    assert documented == constants | set(re.findall(r'"((?:ocr|gen_ai)\.[a-z_.]+)"', source))


def used(source: str) -> list[tuple[Any, str]]:
    """The attributes that are taken from the semantic conventions, but for the service's own."""
    found = re.findall(r"(\w+_attributes)\.([A-Z_]+)", source)
    return [(getattr(tracing, module), name) for module, name in found if module != "service_attributes"]


async def test_a_dead_collector_costs_no_request_and_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10")
    async with fleet(1) as served_fleet:
        for _ in range(10):
            assert (await served_fleet.http.post(CHAT, json=chat())).status_code == 200
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.name for record in lines if not record.name.startswith("gateway.upstream.poller")] == [
        "gateway.telemetry.tracing"
    ]


class Scripted(SpanExporter):
    """Takes spans, refuses them, or waits, as told."""

    def __init__(self, *results: bool) -> None:
        self.results = list(results)
        self.go_on = threading.Event()
        self.go_on.set()
        self.exports = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.go_on.wait(30)
        self.exports += 1
        good = self.results.pop(0) if self.results else True
        return SpanExportResult.SUCCESS if good else SpanExportResult.FAILURE


def begin(traces: Tracing) -> None:
    trace, _ = traces.begin(CHAT, "glm-ocr", {})
    assert trace
    trace.end(record())


def test_a_collector_that_takes_none_for_a_while_is_told_of_once_and_once_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    exporter = tracing._Exporter(Scripted(False, False, True, True))
    for _ in range(4):
        exporter.export([ReadableSpan("a"), ReadableSpan("b")])
    assert [record.getMessage() for record in caplog.records] == [
        "tracing: the collector takes no spans; they are dropped until it does, without a word",
        "tracing: the collector takes spans again; 4 were dropped",
    ]


async def test_spans_that_find_the_queue_full_are_dropped_and_told_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
    exporter = Scripted()
    exporter.go_on.clear()
    traces = Tracing(tracing._Batches(tracing._Exporter(exporter)))
    for _ in range(50):
        begin(traces)
    assert len(caplog.records) == 1
    exporter.go_on.set()
    await traces.close()
    assert 4 <= exporter.exports <= 6  # the queue, and what was under way


async def test_a_stop_waits_for_no_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_FLUSH_S", 0.01)
    exporter = Scripted()
    exporter.go_on.clear()
    traces = Tracing(tracing._Batches(tracing._Exporter(exporter)))
    begin(traces)
    await traces.close()
    assert not exporter.exports
    exporter.go_on.set()


async def test_the_log_line_names_the_trace(
    spans: Recorder, running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway.access")
    await running.http.post(CHAT, json=chat(), headers={"traceparent": PARENT})
    (fields,) = [record.fields for record in caplog.records if hasattr(record, "fields")]
    assert fields["trace_id"] == PARENT.split("-")[1]
    json.dumps(fields)
