"""What stands in for pods, ConfigMaps and balancers in a rehearsal does what those of a cluster do."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from bench.serving import free_port
from deploy.checks.render import render
from deploy.rehearsal.balancer import MODES, Balancer, Mode
from deploy.rehearsal.common import GATEWAY, OVERLAY
from deploy.rehearsal.pods import Ended, Endpoints, Lifecycle, Pod, PodError, find, mount
from tests.support import FakeEngine, chat, served

if TYPE_CHECKING:
    from pathlib import Path

CHAT = "/v1/chat/completions"
# A pod that is ready at once, and ends on SIGTERM after having been told so many times.
SERVER = """
import http.server, signal, sys
left = int(sys.argv[2])
def end(*_):
    global left
    left -= 1
    if left == 0:
        sys.exit(7)
signal.signal(signal.SIGTERM, end)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/ready" else 404)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
WORKLOAD: dict[str, Any] = {
    "spec": {
        "minReadySeconds": 10,
        "template": {
            "spec": {
                "terminationGracePeriodSeconds": 40,
                "containers": [
                    {
                        "name": "server",
                        "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 2},
                        "lifecycle": {"preStop": {"sleep": {"seconds": 15}}},
                    }
                ],
            }
        },
    }
}


class TestPods:
    @pytest.fixture
    def told(self) -> list[bool]:
        return []

    def pod(self, told: list[bool], lifecycle: Lifecycle, signals: int = 1) -> Pod:
        port = free_port()
        arguments = [sys.executable, "-c", SERVER, str(port), str(signals)]
        return Pod("p", arguments, f"http://127.0.0.1:{port}", lifecycle, lambda _, ready: told.append(ready))

    def test_the_manifest_decides(self) -> None:
        read = Lifecycle.of(WORKLOAD, 0.5)
        assert (read.ready_path, read.ready_period_s, read.pre_stop_s) == ("/ready", 1, 7.5)
        assert (read.grace_s, read.min_ready_s, read.ready_failures) == (20, 5, 3)
        gateway = Lifecycle.of(find(render(OVERLAY), "Deployment", GATEWAY))
        assert gateway.ready_path == "/ready"
        assert gateway.pre_stop_s > 0
        with pytest.raises(KeyError):
            find(render(OVERLAY), "Deployment", "another")

    async def test_one_leaves_the_endpoints_before_it_is_told_to_end(self, told: list[bool]) -> None:
        pod = self.pod(told, replace(Lifecycle.of(WORKLOAD, 0.01), grace_s=60))
        await pod.start()
        await pod.wait_ready()
        assert told == [True]
        ended = await pod.terminate()
        assert told == [True, False]
        assert (ended.status, ended.killed) == (7, False)

    async def test_one_that_outlasts_its_grace_is_killed(self, told: list[bool]) -> None:
        pod = self.pod(told, Lifecycle.of(WORKLOAD, 0.01), signals=2)
        await pod.start()
        await pod.wait_ready()
        assert await pod.terminate() == Ended(-signal.SIGKILL, True, pytest.approx(0.4, abs=30))

    async def test_one_that_ends_by_itself_is_an_error(self, told: list[bool]) -> None:
        pod = Pod("p", [sys.executable, "-c", ""], "http://127.0.0.1:9", Lifecycle.of(WORKLOAD), print)
        with pytest.raises(PodError, match="not been started"):
            _ = pod.process
        await pod.start()
        with pytest.raises(PodError, match="exit status 0"):
            await pod.wait_ready()
        await pod.kill()

    async def test_endpoints_change_late(self) -> None:
        seen: asyncio.Queue[frozenset[str]] = asyncio.Queue()
        endpoints = Endpoints(0.01, seen.put_nowait)
        endpoints.set("a", True)
        endpoints.set("b", True)
        endpoints.set("b", True)
        endpoints.set("a", False)
        assert seen.empty()
        assert [await seen.get() for _ in range(3)] == [{"a"}, {"a", "b"}, {"b"}]

    def test_a_mounted_config_map_is_swapped(self, tmp_path: Path) -> None:
        mount(tmp_path / "map", {"routes.yaml": "1", "text.json": "{}"})
        file = tmp_path / "map/routes.yaml"
        assert (file.is_symlink(), file.read_text()) == (True, "1")
        mount(tmp_path / "map", {"routes.yaml": "2"})
        assert file.read_text() == "2"
        assert {path.name for path in (tmp_path / "map").iterdir() if path.name[0] != "."} == {"routes.yaml"}


@pytest.mark.parametrize("mode", MODES)
async def test_the_balancer_sends_new_work_to_the_backends_it_has(mode: Mode) -> None:
    first, second = FakeEngine(), FakeEngine()
    async with (
        served(first) as one,
        served(second) as other,
        Balancer(mode) as balancer,
        httpx.AsyncClient(base_url=balancer.url, timeout=30) as kept,
    ):
        balancer.set(frozenset({one}))
        while not first.bodies:  # a change takes a moment
            with contextlib.suppress(httpx.HTTPError):
                reply = await kept.post(CHAT, json=chat(stream=True))
        assert reply.text.endswith("data: [DONE]\n\n")
        balancer.set(frozenset({other}))
        while not second.bodies:
            async with httpx.AsyncClient(base_url=balancer.url, timeout=30) as fresh:
                assert (await fresh.post(CHAT, json=chat())).status_code == 200
        reply = await kept.post(CHAT, json=chat())
        assert reply.json()["choices"][0]["message"]["content"] == "hello world"
        assert len(second.bodies) == (2 if mode == "requests" else 1)
