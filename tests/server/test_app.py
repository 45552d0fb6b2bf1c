"""The gateway as it is run: its own process, the real CPU engine behind it, real OpenAI clients in front."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import json
import os
import signal
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

from bench.serving import ROOT, SHARED, serve
from gateway.config import load, parse
from gateway.model import Engine
from gateway.server.app import Gateway
from tests.api.fed import fed
from tests.api.listening import request
from tests.hosts import answer_of, certified, hosted
from tests.support import (
    FakeEngine,
    answer,
    chat,
    chunk,
    data_url,
    encoded,
    hang,
    picture,
    served,
    serving,
    until,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bench.serving import Served

WORDS = "Invoice number 20457\nTotal amount due\nPayment within thirty days"
PAGE = encoded(picture(WORDS, (640, 200), 32), "PNG")
CHAT = "/v1/chat/completions"

shared_images = pytest.mark.skipif(not SHARED.exists(), reason="the shared test images are not here")


def messages(image: bytes = PAGE, prompt: str = "Text Recognition:") -> Any:
    return chat(prompt, image)["messages"]


def client(served: Served, max_retries: int = 0) -> openai.OpenAI:
    url = f"{served.url}/v1"
    return openai.OpenAI(base_url=url, api_key="none", max_retries=max_retries, timeout=120)


def test_the_sdk_gets_the_words_on_the_page(whole: Served) -> None:
    with client(whole) as sdk:
        reply = sdk.chat.completions.with_raw_response.create(model="glm-ocr", messages=messages())
        completion = reply.parse()
    assert completion.choices[0].message.content == WORDS
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.completion_tokens > 5
    assert reply.headers["x-ocr-route"] == "text"


def test_the_sdk_streams_line_by_line(whole: Served) -> None:
    with client(whole) as sdk:
        stream = sdk.chat.completions.create(model="glm-ocr", messages=messages(), stream=True)
        pieces = [chunk.choices[0].delta.content for chunk in stream]
    assert "".join(piece or "" for piece in pieces) == WORDS
    assert sum(map(bool, pieces)) >= 3


async def test_the_async_sdk_reads_a_table_and_a_form(whole: Served) -> None:
    async with openai.AsyncOpenAI(base_url=f"{whole.url}/v1", api_key="none", max_retries=0) as sdk:
        table, form = await asyncio.gather(
            sdk.chat.completions.create(
                model="glm-ocr:table", messages=messages(prompt="Table Recognition:")
            ),
            sdk.chat.completions.create(
                model="glm-ocr",
                messages=messages(
                    encoded(picture("Date: 2026-05-01\n\nTotal: 42.50", (400, 150), 32), "PNG")
                ),
                response_format={
                    "type": "json_schema",
                    "json_schema": {
                        "name": "r",
                        "schema": {"type": "object", "properties": {"total": {"type": "string"}}},
                    },
                },
                extra_headers={"x-ocr-route": "key-value"},
            ),
        )
    assert (table.choices[0].message.content or "").startswith("<table>")
    assert json.loads(form.choices[0].message.content or "") == {"total": "42.50"}


@shared_images
def test_a_real_receipt_is_read(whole: Served) -> None:
    image = (SHARED / "images/key-value/icdar2019sroie__060_totals.png").read_bytes()
    with client(whole) as sdk:
        reply = sdk.chat.completions.create(model="glm-ocr", messages=messages(image))
    text = (reply.choices[0].message.content or "").upper()
    assert all(word in text for word in ("CASHIER", "PINEAPPLE", "EVIAN", "77.20", "100.00", "22.80"))


@shared_images
def test_inputs_that_break_servers_get_what_a_good_server_gives(whole: Served) -> None:
    folder = SHARED / "images/nasty"
    rows = list(csv.DictReader((folder / "README.csv").read_text().splitlines()))
    with httpx.Client(base_url=whole.url, timeout=120) as http:
        for row in rows:
            image = data_url((folder / row["file"]).read_bytes())
            reply = http.post(CHAT, json=chat("OCR:", image))
            assert str(reply.status_code) in row["expected_status"], (row["file"], reply.text)
            if reply.status_code == 200 and row["expected_status"] == "200":
                text = reply.json()["choices"][0]["message"]["content"]
                assert text.strip(), row["file"]
            if row["expected_status"] == "200 empty":
                assert reply.json()["choices"][0]["message"]["content"] == ""
            if reply.status_code != 200:
                assert reply.json()["error"]["message"]
    assert whole.ready()


def test_32_clients_with_good_and_bad_input(whole: Served) -> None:
    bad = [
        chat("OCR:", data_url(PAGE[:-200])),
        chat("OCR:", "data:image/png;base64,@@"),
        chat("OCR:", "file:///etc/passwd"),
        chat(model="gpt-5"),
        {"messages": "?"},
    ]

    def one(index: int) -> tuple[bool, int, str]:
        good = index % 2 == 0
        body = chat("OCR:", PAGE) if good else bad[index // 2 % len(bad)]
        reply = httpx.post(whole.url + CHAT, json=body, timeout=240)
        return good, reply.status_code, reply.text

    with ThreadPoolExecutor(32) as clients:
        for good, status, text in clients.map(one, range(32)):
            if good:
                assert status == 200
                assert "20457" in text
            else:
                assert status in (400, 404)
    gauges = [
        line for line in whole.get("/metrics").splitlines() if line.startswith("ocr_gateway_in_flight{")
    ]
    assert {line.rpartition(" ")[2] for line in gauges} == {"0.0"}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to find the engine's process")
def test_a_killed_engine_fails_its_request_clearly_and_comes_back_and_all_ends_with_sigterm() -> None:
    with serve() as served, ThreadPoolExecutor(1) as clients:
        engine = served.engine_pid()
        page = encoded(picture("\n".join([WORDS] * 12), (900, 1600), 32), "PNG")
        os.kill(engine, signal.SIGSTOP)
        request = clients.submit(httpx.post, served.url + CHAT, json=chat("OCR:", page), timeout=120)
        while 'in_flight{route="text"} 1.0' not in served.get("/metrics"):
            time.sleep(0.01)
        time.sleep(0.3)  # what a kept connection ends sooner is sent again
        os.kill(engine, signal.SIGKILL)
        reply = request.result()
        assert (reply.status_code, reply.json()["error"]["code"]) == (502, "engine_died")
        assert reply.json()["error"]["type"] == "engine_error"
        with client(served, max_retries=20) as sdk:  # meanwhile 503 with Retry-After, which the SDK honours
            answer = sdk.chat.completions.create(model="glm-ocr", messages=messages())
        assert answer.choices[0].message.content == WORDS
        engine = served.engine_pid()
        served.process.terminate()
        assert served.process.wait(30) in (0, -signal.SIGTERM)
        end = time.monotonic() + 10
        while Path(f"/proc/{engine}").exists() and time.monotonic() < end:
            time.sleep(0.05)
        assert not Path(f"/proc/{engine}").exists()


ONE = "model: m\npools: {p: {engines: [http://127.0.0.1:9]}}\nroutes: {text: {}}\n"
LIFE = """
model: glm-ocr
pools:
  plain: {engines: [ENGINES]}
routes: {text: {}}
polling: {scrape_s: 0.1}
server: {linger_s: LINGER, drain_s: DRAIN}
"""


@contextlib.asynccontextmanager
async def life(path: Path, *engines: str, linger_s: float = 0, drain_s: float = 30) -> AsyncIterator[Served]:
    """`ocr-gateway serve` over scripted engines of this process."""
    write_life(path, *engines, linger_s=linger_s, drain_s=drain_s)
    serving = serve(path)
    served_gateway = await asyncio.to_thread(serving.__enter__)
    try:
        yield served_gateway
    finally:
        await asyncio.to_thread(serving.__exit__, None, None, None)


def write_life(path: Path, *engines: str, linger_s: float = 0, drain_s: float = 30) -> None:
    text = LIFE.replace("ENGINES", ", ".join(engines))
    path.write_text(text.replace("LINGER", str(linger_s)).replace("DRAIN", str(drain_s)))


@pytest.mark.parametrize("scheme", ["http", "dns+http"])
async def test_an_engine_behind_a_path_prefix_is_served(scheme: str) -> None:
    engine, elsewhere = FakeEngine(version="1", models=("glm-ocr",), metrics=b""), list[str]()
    asked: set[str] = set()

    async def proxy(scope: Any, receive: Any, send: Any) -> None:
        """Passes on what lies under the prefix, without it."""
        if scope["type"] == "http":
            asked.add(scope["path"])
            prefix, _, path = scope["path"].rpartition("/team-a/ocr")
            if prefix or not path.startswith("/"):
                elsewhere.append(scope["path"])
            scope = {**scope, "path": path}
        await engine(scope, receive, send)

    async with served(proxy) as url:
        address = f"{scheme}{url.removeprefix('http')}/team-a/ocr/"
        settings = {
            **{"model": "glm-ocr", "pools": {"p": {"engines": [address]}}, "routes": {"text": {}}},
            "polling": {"scrape_s": 0.05},
        }
        gateway = Gateway(parse(json.dumps(settings), "routes.yaml", Path(), {}))
        async with serving(gateway) as gateway_url, httpx.AsyncClient(base_url=gateway_url) as http:
            await until(lambda: gateway.state.is_up("text"))
            answers = [await http.post(CHAT, json=chat(stream=stream)) for stream in (False, True)]
            (told,) = (await http.get("/status")).json()["engines"]
            await until(lambda: len(asked) >= 4)
    assert [answer.status_code for answer in answers] == [200, 200]
    assert told["engine"] == f"{url.removeprefix('http://')}/team-a/ocr"
    paths = ("/health", "/metrics", "/version", CHAT)
    assert asked >= {f"/team-a/ocr{path}" for path in paths}
    assert not elsewhere


async def test_a_certificate_that_is_not_trusted_is_told_until_its_authority_is_named(tmp_path: Path) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certified(tmp_path, "localhost", "DNS:localhost"))
    path, settings = tmp_path / "routes.yaml", "model: m\nroutes: {text: {}}\npolling: {scrape_s: 0.05}\n"
    async with hosted(tls, health=answer_of(b"")) as host:
        pool = f"engines: ['https://localhost:{host.port}']"
        path.write_text(f"{settings}pools: {{p: {{{pool}}}}}")
        gateway = Gateway(load(path), path)

        def fault() -> str:
            return gateway.state.snapshot().engines[0].fault

        async with serving(gateway):
            await until(fault)
            assert fault().startswith("no connection to it: it has no certificate that is trusted here (self")
            assert "pools.NAME.ca_file" in fault()
            path.write_text(f"{settings}pools: {{p: {{{pool}, ca_file: host.crt}}}}")
            gateway.ask_reload()
            await until(lambda: gateway.state.is_up("text"))
            assert fault() == ""


class Paused:
    """An engine that begins its stream and ends it when told."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def __call__(self, engine: FakeEngine, request: Any, send: Any) -> None:
        if not request.get("stream"):
            return await answer(engine, request, send)
        await send.start(kind="text/event-stream")
        await send.event(chunk("one"))
        await self.go_on.wait()
        await send.event(chunk("two", "stop"))
        await send.event("[DONE]")
        return await send.body(b"", more=False)


async def test_sigterm_lingers_then_refuses_then_drains(tmp_path: Path) -> None:
    paused = Paused()
    engine = FakeEngine(paused)
    async with (
        served(engine) as url,
        life(tmp_path / "routes.yaml", url, linger_s=2) as running,
        httpx.AsyncClient(base_url=running.url, timeout=30) as http,
    ):
        begun = asyncio.create_task(http.post(CHAT, json=chat(stream=True)))
        await until(lambda: engine.running)
        running.process.send_signal(signal.SIGTERM)
        while (ready := await http.get("/ready")).status_code == 200:
            pass
        assert ready.json()["status"] == "stopping"
        assert ready.headers["connection"] == "close"
        lingering = await http.post(CHAT, json=chat())
        assert (lingering.status_code, lingering.headers["connection"]) == (200, "close")
        while (refused := await http.post(CHAT, json=chat())).status_code == 200:
            pass
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert refused.headers["retry-after"] == "1"
        assert (await http.get("/health")).status_code == 200
        assert not begun.done()
        paused.go_on.set()
        assert (await begun).text.count("data: ") == 3
        assert await asyncio.to_thread(running.process.wait, 30) == 0


async def test_a_request_that_is_still_being_received_is_answered_too(tmp_path: Path) -> None:
    engine = FakeEngine()
    body = json.dumps(chat()).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nexpect: 100-continue\r\n\r\n"
    )
    async with (
        served(engine) as url,
        life(tmp_path / "routes.yaml", url) as running,
        httpx.AsyncClient(base_url=running.url, timeout=30) as http,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(running.url).port)
        writer.write(head.encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        running.process.send_signal(signal.SIGTERM)
        while (refused := await http.post(CHAT, json=chat())).status_code == 200:
            pass
        assert refused.json()["error"]["code"] == "shutting_down"
        for _ in range(100):  # it does not close its doors meanwhile
            assert (await http.get("/health")).status_code == 200
        writer.write(body)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        assert await asyncio.to_thread(running.process.wait, 30) == 0
        writer.close()


def raw(**members: Any) -> bytes:
    """A request as it goes over a connection that is kept, by a proxy on the same machine."""
    body = json.dumps(chat(**members)).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 10.0.0.9\r\ncontent-type: application/json\r\n"
    )
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def test_no_connection_is_shut_that_a_client_may_be_about_to_use(tmp_path: Path) -> None:
    paused = Paused()
    engine = FakeEngine(paused)
    async with (
        served(engine) as url,
        life(tmp_path / "routes.yaml", url, linger_s=2) as running,
        httpx.AsyncClient(base_url=running.url, timeout=30) as http,
    ):
        port = httpx.URL(running.url).port
        idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", port)
        idle_writer.write(raw())
        assert (await idle_reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(raw(stream=True))
        assert b"close" not in await reader.readuntil(b"\r\n\r\n")
        running.process.send_signal(signal.SIGTERM)
        while (refused := await http.post(CHAT, json=chat())).status_code == 200:
            pass
        assert refused.json()["error"]["code"] == "shutting_down"
        assert b"hello world" in await idle_reader.read()  # to its end: a client sees that it is closed
        paused.go_on.set()
        assert (await reader.readuntil(b"\r\n0\r\n\r\n")).count(b"data: ") == 3
        writer.write(raw())  # could not be told to go elsewhere
        head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in head
        assert b"hello world" in rest
        assert await asyncio.to_thread(running.process.wait, 30) == 0
        writer.close()
        idle_writer.close()


async def test_what_outlasts_the_drain_limit_is_broken_off(tmp_path: Path) -> None:
    engine = FakeEngine(hang)
    async with (
        served(engine) as url,
        life(tmp_path / "routes.yaml", url, drain_s=0.2) as running,
        httpx.AsyncClient(base_url=running.url, timeout=30) as http,
    ):
        begun = asyncio.create_task(http.post(CHAT, json=chat()))
        await until(lambda: engine.running)
        running.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(running.process.wait, 30) == 0
        with pytest.raises(httpx.HTTPError):
            (await begun).raise_for_status()
        await until(lambda: engine.aborted)


@pytest.mark.parametrize("by_signal", [False, True])
async def test_a_reload_under_load_drops_nothing(tmp_path: Path, by_signal: bool) -> None:
    path = tmp_path / "routes.yaml"
    old, new, paused = FakeEngine(), FakeEngine(), Paused()
    async with (
        served(old) as old_url,
        served(new) as new_url,
        life(path, old_url) as running,
        httpx.AsyncClient(base_url=running.url, timeout=30) as http,
    ):
        old.behave = paused
        begun = asyncio.create_task(http.post(CHAT, json=chat(stream=True)))
        await until(lambda: old.running)
        ending = asyncio.Event()
        statuses: list[int] = []

        async def client() -> None:
            while not ending.is_set():
                statuses.append((await http.post(CHAT, json=chat())).status_code)

        clients = [asyncio.create_task(client()) for _ in range(8)]
        await until(lambda: len(statuses) > 20)
        write_life(path, new_url)
        if by_signal:
            running.process.send_signal(signal.SIGHUP)
        await until(lambda: len(new.bodies) > 20)
        before = len(old.bodies)
        path.write_text("model: [")
        while "config_reload_failures_total 1.0" not in (await http.get("/metrics")).text:
            pass
        ending.set()
        await asyncio.gather(*clients)
        assert set(statuses) == {200}
        assert len(old.bodies) == before
        page = (await http.get("/metrics")).text
        assert "config_reloads_total 1.0" in page
        assert f'engine_up{{engine="{old_url[7:]}",pool="plain"}} 0.0' in page
        paused.go_on.set()
        assert (await begun).text.count("data: ") == 3
        while old_url[7:] in (await http.get("/metrics")).text:
            pass


def test_only_the_embedded_engine_is_started_again_when_it_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(load(ROOT / "routes.yaml"))
    killed: list[str] = []
    monkeypatch.setattr(gateway.embedded, "kill", lambda: killed.append("killed"))
    gateway._restart(Engine("vllm:8000", "http://vllm:8000", "p", 0))
    assert killed == []
    gateway._restart(gateway.state.engines()[0])
    assert killed == ["killed"]
    gateway.embedded._current._socket.close()  # type: ignore[attr-defined]


async def test_an_application_without_its_lifespan_says_what_is_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gateway = Gateway(parse(ONE, "f", ROOT, {}))
    for path in (CHAT, "/v1/ocr"):
        caplog.clear()
        sent, _ = await fed([request(path=path)], gateway.application)
        assert sent.startswith(b"HTTP/1.1 500 ")
        assert "RuntimeError" in caplog.text
        assert "run it with its lifespan" in caplog.text


EMBEDDED = ONE.replace("http://127.0.0.1:9", "embedded")
# Serves nothing, and ends as the embedded engine does.
CHILD = ["-c", "import sys; sys.stdin.read()"]


async def test_a_reload_starts_and_ends_the_embedded_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.server.embedded_process.embedded_command", lambda *_: CHILD)
    gateway = Gateway(parse(ONE, "f", ROOT, {}))
    assert gateway.embedded.url is None
    async with serving(gateway):
        for _ in range(2):
            await gateway.reload(parse(EMBEDDED, "f", ROOT, {}))
            url = gateway.embedded.url
            await until(lambda: gateway.embedded.pids)  # type: ignore[attr-defined]
            assert [(engine.name, engine.url) for engine in gateway.state.engines()] == [("embedded", url)]
            await gateway.reload(parse(ONE, "f", ROOT, {}))
            assert gateway.embedded.url is None
            assert [engine.name for engine in gateway.state.engines()] == ["127.0.0.1:9"]
            await until(lambda: not gateway.embedded.pids)  # type: ignore[attr-defined]
            with pytest.raises(OSError, match="refused"):
                socket.create_connection(("127.0.0.1", httpx.URL(url or "").port or 0))


@pytest.mark.parametrize("at_once", [1, 200])
async def test_a_reload_leaves_requests_the_memory_that_documents_do_not_take(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr("gateway.server.app.memory_bytes", lambda: 256 * 2**30)
    gateway = Gateway(parse(ONE, "f", ROOT, {}))
    anew = parse(f"{ONE}documents: {{at_once: {at_once}}}", "f", ROOT, {})
    before = gateway.state.memory.limit
    await gateway.reload(anew)
    assert gateway.state.memory.limit == Gateway(anew).state.memory.limit != before
    await gateway.reload(parse(f"{ONE}limits: {{inflight_bytes: 5}}", "f", ROOT, {}))
    assert gateway.state.memory.limit == 5
    await gateway.reload(parse(ONE, "f", ROOT, {}))
    assert gateway.state.memory.limit == before
