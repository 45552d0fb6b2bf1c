from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.errors import ConfigError
from gateway.tools.plan import prometheus_history
from gateway.tools.plan.prometheus_history import history, seconds
from tests.support import served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from starlette.requests import Request

NOW = 1_790_000_000.0


@pytest.mark.parametrize(
    ("text", "value"), [("7d", 604_800), ("60s", 60), ("1h30m", 5_400), ("1w1d1h1m1s", 694_861)]
)
def test_durations_are_written_as_prometheus_does(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "7", "d", "0s", "-1d", "1.5h", "5m1h", "7 d"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        seconds(text)


class Fake:
    """Answers as Prometheus does, from functions of the time."""

    def __init__(self) -> None:
        self.models = ["glm-ocr"]
        self.values: dict[tuple[str, str], Callable[[float], float | None]] = {}
        self.asked: list[dict[str, str]] = []
        self.body: bytes | None = None
        self.status = 200
        self.url = ""

    async def answer(self, request: Request) -> Response:
        if self.body is not None:
            return Response(self.body, self.status)
        if request.url.path.endswith("/values"):
            return JSONResponse({"status": "success", "data": self.models})
        self.asked.append(dict(request.query_params))
        start, end, step = (float(request.query_params[key]) for key in ("start", "end", "step"))
        moments = [start + place * step for place in range(int((end - start) / step + 1e-6) + 1)]
        result: list[dict[str, Any]] = []
        for (series, route), value in self.values.items():
            if f"({series} " in request.query_params["query"]:
                found = [[at, str(one)] for at in moments if (one := value(at)) is not None]
                result.append({"metric": {"route": route}, "values": found})
        return JSONResponse({"status": "success", "data": {"resultType": "matrix", "result": result}})


@pytest.fixture
async def fake() -> AsyncIterator[Fake]:
    found = Fake()
    async with served(Starlette(routes=[Route("/prefix/{rest:path}", found.answer)])) as url:
        found.url = f"{url}/prefix/"
        yield found


async def asked(fake: Fake, model: str | None = None, since_s: float = 600, step_s: float = 60) -> Any:
    return await history(fake.url, model=model, since_s=since_s, step_s=step_s, now=NOW)


async def refused(fake: Fake, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        await asked(fake, **options)
    return "\n".join(caught.value.problems)


async def test_in_flight_and_waiting_add_up_by_route(fake: Fake) -> None:
    fake.values = {
        ("ocr_gateway_in_flight", "table"): lambda at: 4.0,
        ("ocr_gateway_in_flight", "text"): lambda at: 1.0,
        ("ocr_gateway_waiting", "table"): lambda at: 3.0 if at > NOW - 200 else 0.0,
    }
    found = await asked(fake)
    assert found.routes == ("table", "text")
    assert len(found.rows) == 11
    assert found.rows[0] == (60, (4, 1))
    assert found.rows[-1] == (60, (7, 1))
    assert found.source == fake.url.rstrip("/")


async def test_moments_without_data_are_left_out(fake: Fake) -> None:
    fake.values = {
        ("ocr_gateway_in_flight", "table"): lambda at: None if at < NOW - 300 else 4.0,
        ("ocr_gateway_waiting", "table"): lambda at: float("nan"),
    }
    assert (await asked(fake)).rows == [(60, (4,))] * 6


async def test_a_long_time_is_asked_for_in_parts_without_a_moment_twice(fake: Fake) -> None:
    fake.values = {("ocr_gateway_in_flight", "table"): lambda at: 1.0}
    found = await asked(fake, since_s=25_000 * 60)
    assert len(found.rows) == 25_001
    spans = [(float(one["end"]) - float(one["start"])) / float(one["step"]) + 1 for one in fake.asked]
    assert max(spans) <= 11_000
    assert "300000" in await refused(fake, since_s=400 * 86_400, step_s=60)


async def test_the_model_is_asked_for_where_there_are_several(fake: Fake) -> None:
    fake.values = {("ocr_gateway_in_flight", "table"): lambda at: 1.0}
    fake.models = ["paddleocr-vl", "glm-ocr"]
    assert "choose by --model: glm-ocr, paddleocr-vl" in await refused(fake)
    assert "no history of model 'other'; it has glm-ocr, paddleocr-vl" in await refused(fake, model="other")
    await asked(fake, model="glm-ocr")
    assert all('{model="glm-ocr"}' in one["query"] for one in fake.asked)
    fake.models = []
    assert "no history of a gateway" in await refused(fake)


async def test_an_empty_history_is_said_to_be_empty(fake: Fake) -> None:
    assert "has no history of ocr_gateway_in_flight and ocr_gateway_waiting" in await refused(fake)


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        (b"<html>", 404, "does not answer as Prometheus does: HTTP 404"),
        (b'{"status": "error", "error": "too many samples"}', 422, "HTTP 422, too many samples"),
        (b'["success"]', 200, "no reason given"),
        (b'{"status": "success", "data": {}}', 200, "does not answer as Prometheus does"),
    ],
)
async def test_what_is_no_prometheus_is_told_in_words(
    fake: Fake, body: bytes, status: int, told: str
) -> None:
    fake.body, fake.status = body, status
    assert told in await refused(fake)


async def test_a_range_of_another_shape_is_no_prometheus(fake: Fake) -> None:
    async with prometheus_history.Prometheus(fake.url) as source:
        fake.body = json.dumps({"status": "success", "data": {"result": [{"metric": {}}]}}).encode()
        with pytest.raises(ConfigError, match="does not answer as Prometheus does"):
            await source.range("up", NOW - 60, NOW, 60)


async def test_an_answer_without_end_is_given_up(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus_history, "_MOST_BYTES", 1000)
    fake.body = b" " * 5000
    assert "more than" in await refused(fake)


async def test_a_server_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus_history, "_TIMEOUT_S", 0.1)
    held: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: held.append(writer), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    with pytest.raises(ConfigError, match=f"{url} cannot be asked"):
        await history(url, model=None, since_s=60, step_s=60, now=NOW)
    silent.close()
    for writer in held:
        writer.close()


async def test_nobody_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://me:secret@127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(ConfigError, match="cannot be asked: it refuses connections") as caught:
            await history(url, model=None, since_s=60, step_s=60, now=NOW)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://", "ftp://host", "http://[::1", "ftp://me:secret@host", "http://me:secret@[::1"]
)
async def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="no URL") as told:
        await history(url, model=None, since_s=60, step_s=60, now=NOW)
    assert "secret" not in str(told.value)


@pytest.fixture
def real(tmp_path: Path) -> Iterator[str]:
    """A real Prometheus with a made-up history: two gateways of one model, one of another."""
    moments = [NOW - 60 * place for place in range(120, -1, -1) if not 40 <= place < 60]
    gateways = (("a", "glm-ocr", 5), ("b", "glm-ocr", 2), ("c", "other", 90))
    lines = []
    for name, by, routes in (("in_flight", 1, ("table", "text")), ("waiting", 10, ("table",))):
        lines.append(f"# TYPE ocr_gateway_{name} gauge")
        lines += [
            f'ocr_gateway_{name}{{instance="{gateway}",job="ocr",route="{route}"}} {count * by} {at}'
            for gateway, _, count in gateways
            for route in routes
            for at in moments
        ]
    lines.append("# TYPE ocr_gateway_build_info gauge")
    lines += [
        f'ocr_gateway_build_info{{instance="{gateway}",job="ocr",model="{model}",version="1"}} 1 {at}'
        for gateway, model, _ in gateways
        for at in moments
    ]
    (tmp_path / "history.txt").write_text("\n".join([*lines, "# EOF", ""]))
    (tmp_path / "prometheus.yml").write_text("global: {}\n")
    data = tmp_path / "data"
    command = [
        "promtool",
        "tsdb",
        "create-blocks-from",
        "openmetrics",
        str(tmp_path / "history.txt"),
        str(data),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    server = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={data}",
            "--storage.tsdb.retention.time=100y",
            f"--web.listen-address={address}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + 90
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(f"http://{address}/-/ready", timeout=5):
                    break
            except OSError:
                time.sleep(0.2)
        yield f"http://{address}"
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")), reason="prometheus is not installed"
)
async def test_a_real_prometheus_sums_the_replicas_of_the_model(real: str) -> None:
    found = await history(real, model="glm-ocr", since_s=7200, step_s=60, now=NOW)
    assert found.routes == ("table", "text")
    assert {counts for _, counts in found.rows} == {(7 + 70, 7)}
    # Prometheus shows a series that ended for up to five minutes.
    assert 100 <= len(found.rows) <= 106
    with pytest.raises(ConfigError, match="choose by --model: glm-ocr, other"):
        await history(real, model=None, since_s=7200, step_s=60, now=NOW)
    with pytest.raises(ConfigError, match="no history"):
        await history(real, model="glm-ocr", since_s=600, step_s=60, now=NOW - 86_400)
