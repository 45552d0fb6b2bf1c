"""The gateway as it is run: its own process, the real CPU engine behind it, real OpenAI clients in front."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

from bench.serving import ROOT, SHARED, serve
from gateway.app import Gateway, background
from gateway.config import load, parse
from gateway.model import Engine
from tests.support import chat, data_url, encoded, picture, until

if TYPE_CHECKING:
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
        request = clients.submit(httpx.post, served.url + CHAT, json=chat("OCR:", page), timeout=120)
        while 'in_flight{route="text"} 1.0' not in served.get("/metrics"):
            time.sleep(0.01)
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


async def test_a_background_task_that_fails_is_not_swallowed(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise RuntimeError("the poller broke")

    async with background(fail()):
        await until(lambda: "the poller broke" in caplog.text)


def test_only_the_embedded_engine_is_started_again_when_it_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(load(ROOT / "routes.yaml"))
    killed: list[str] = []
    monkeypatch.setattr("gateway.engines.supervisor.Supervisor.kill", lambda _: killed.append("killed"))
    gateway._restart(Engine("vllm:8000", "http://vllm:8000", "p", 0))
    assert killed == []
    gateway._restart(gateway.state.engines()[0])
    assert killed == ["killed"]
    assert gateway.supervisor is not None
    gateway.supervisor._socket.close()


def test_an_application_without_its_lifespan_says_what_is_missing() -> None:
    text = "model: m\npools: {p: {engines: [http://127.0.0.1:9]}}\nroutes: {text: {}}"
    gateway = Gateway(parse(text, "f", ROOT, {}))
    with pytest.raises(RuntimeError, match="lifespan"):
        gateway._running_dispatcher()
