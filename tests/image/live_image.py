"""The images as they are built from the Dockerfile, and what their servers do when run strictly."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import stat
import tomllib
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from bench.serving import ROOT
from tests.image.builder import TARGETS, Image
from tests.image.container import URL, Container, once, running
from tests.support import FakeEngine, answer, chat, served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RECEIPT = ["CORNER BAKERY", "12 Mill Street, Oxford", "Date: 2026-03-14", "Total 20.70", "Change 4.30"]
BUILDERS = {"gcc", "cc", "g++", "ld", "make", "pip", "pip3", "uv", "hatchling", "easy_install"}
ROUTES = """
model: glm-ocr
pools: {plain: {engines: [ENGINE]}}
routes: {text: {}}
polling: {scrape_s: 0.1}
server: {linger_s: 1, drain_s: 60}
"""
# The first test's time counts building.
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(params=TARGETS)
def image(request: pytest.FixtureRequest, images: dict[str, Image]) -> Image:
    return images[request.param]


@pytest.fixture(scope="class")
def reading(images: dict[str, Image]) -> Iterator[Container]:
    """The embedded target as it comes: its own configuration, its own command."""
    with running(images["embedded"]) as container:
        container.served.wait_ready()
        yield container


class TestFiles:
    """What lies in them."""

    def test_nothing_that_builds_or_installs_ships(self, image: Image) -> None:
        programs = {
            path.name
            for folder in image.env["PATH"].split(":")
            for path in (image.root / folder.lstrip("/")).glob("*")
        }
        assert "ocr-gateway" in programs
        assert not programs & BUILDERS
        assert modules(image, "pip", "setuptools", "ensurepip", "hatchling") == []

    def test_the_cpu_engine_is_in_its_own_target_alone(self, images: dict[str, Image]) -> None:
        heavy = ("rapidocr", "onnxruntime", "cv2", "matplotlib")
        assert modules(images["gateway"], *heavy) == []
        assert modules(images["embedded"], *heavy) == list(heavy)
        assert weights(images["embedded"])
        assert not weights(images["gateway"])

    def test_the_servers_user_could_write_nothing_even_were_the_root_not_read_only(
        self, image: Image
    ) -> None:
        user = int(image.config["User"].partition(":")[0])
        for folder, folders, files in os.walk(image.root):
            for name in (*folders, *files):
                path = os.path.join(folder, name)
                found = os.lstat(path)
                writable = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
                assert stat.S_ISLNK(found.st_mode) or not writable, path
                assert found.st_uid != user, path

    def test_what_is_installed_is_what_its_lock_lists(self, image: Image) -> None:
        code = (
            "import importlib.metadata as m, json;"
            "print(json.dumps({d.name.lower().replace('_', '-'): d.version for d in m.distributions()}))"
        )
        installed = json.loads(once(image, "python", "-c", code).stdout)
        assert installed.pop("ocr-gateway") == PROJECT["version"]
        lock = (ROOT / f"deploy/image/{image.target}.lock").read_text()
        assert installed == dict(re.findall(r"^(\S+)==(\S+)", lock, re.MULTILINE))

    def test_it_is_labelled(self, image: Image, revision: str) -> None:
        labels = image.config["Labels"]
        assert labels["org.opencontainers.image.version"] == PROJECT["version"]
        assert labels["org.opencontainers.image.revision"] == revision


class TestEmbedded:
    """The whole, with real OCR, without a network."""

    def test_it_reads_a_receipt(self, reading: Container) -> None:
        text = read_receipt()
        assert [line for line in RECEIPT if line not in text] == []

    def test_it_is_ready_and_healthy(self, reading: Container) -> None:
        assert json.loads(reading.served.get("/ready"))["status"] == "ready"
        assert reading.healthy()

    def test_the_server_is_process_1_without_rights(self, reading: Container) -> None:
        status = reading.status()
        assert status["NSpid"].split()[-1] == "1"
        assert set(status["Uid"].split()) == set(status["Gid"].split()) == {"65532"}
        assert status["Groups"] == ""
        assert {status[name] for name in ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb")} == {"0" * 16}
        assert status["NoNewPrivs"] == "1"

    def test_the_engine_keeps_nothing_and_reports_to_nobody(self, reading: Container) -> None:
        assert read_receipt()
        assert reading.execute("find", "/tmp").stdout == "/tmp\n"  # its telemetry would cache here

    def test_nothing_can_be_written_but_tmp(self, reading: Container) -> None:
        assert reading.execute("id", "-u").stdout == "65532\n"
        for place in ("/", "/etc/ocr-gateway/", "/opt/ocr-gateway/", "/var/tmp/", "/run/", "/usr/local/bin/"):
            refused = reading.execute("touch", f"{place}new")
            assert refused.returncode == 1, place
            assert "Read-only file system" in refused.stderr, refused.stderr
        assert reading.execute("touch", "/tmp/new").returncode == 0
        found = reading.execute("find", "/", "-xdev", "-not", "-type", "l", "-writable")
        assert found.stdout == "/tmp\n"


class TestEmbeddedOtherwise:
    """The same image, run to other ends."""

    def test_sigterm_ends_it_with_its_engine(self, images: dict[str, Image], tmp_path: Path) -> None:
        configure(tmp_path, "embedded")
        with running(images["embedded"], tmp_path) as container:
            container.served.wait_ready()
            assert read_receipt()
            container.terminate()
            assert container.process.wait(60) == 0

    def test_it_sweeps_and_reports(self, images: dict[str, Image]) -> None:
        sweep = ["ocr-gateway", "sweep", f"--engine=0={URL}", "--routes=text", "--concurrency=1"]
        sweep += ["--window=8", "--max-warmup=4", "--repeats-max=1", "--out=/tmp/out"]
        with running(images["embedded"], command=["simulated-engine", "--port=8000"]) as container:
            wait_healthy(container)
            done = container.execute(*sweep)
            assert done.returncode == 0, done.stderr
            made = container.execute("ls", "/tmp/out").stdout.split()
            assert {"report.html", "text-throughput.png"} <= set(made)


class TestGateway:
    """The small one, before an engine outside."""

    async def test_it_answers_and_drains(self, images: dict[str, Image], tmp_path: Path) -> None:
        gate = asyncio.Event()

        async def held(engine: FakeEngine, request: dict[str, Any], send: Any) -> None:
            if request.get("user") == "held":
                await gate.wait()
            await answer(engine, request, send)

        engine = FakeEngine(held)
        async with served(engine) as url, httpx.AsyncClient(base_url=URL, timeout=60) as http:
            configure(tmp_path, url)
            with running(images["gateway"], tmp_path) as container:
                await asyncio.to_thread(container.served.wait_ready)
                assert await asyncio.to_thread(container.healthy)
                first = await post(http)
                assert first.status_code == 200
                assert first.json()["choices"][0]["message"]["content"] == "hello world"

                in_flight = asyncio.create_task(post(http, user="held"))
                async with asyncio.timeout(60):
                    while not engine.running:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                    container.terminate()
                    while (reply := await post(http)).status_code == 200:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)  # it lingers
                assert reply.status_code == 503
                assert int(reply.headers["retry-after"]) > 0
                assert not in_flight.done()
                gate.set()
                assert (await in_flight).json()["choices"][0]["message"]["content"] == "hello world"
                assert await asyncio.to_thread(container.process.wait, 60) == 0

    def test_without_a_configuration_it_says_so_and_ends(self, images: dict[str, Image]) -> None:
        with running(images["gateway"]) as container:
            assert container.process.wait(60) == 1

    def test_health_fails_where_nothing_serves(self, images: dict[str, Image]) -> None:
        kind, *command = images["gateway"].config["Healthcheck"]["Test"]
        assert kind == "CMD"
        done = once(images["gateway"], *command)
        assert done.returncode == 1
        assert "Connection refused" in done.stderr


def configure(folder: Path, engine: str) -> None:
    """Write a configuration that the image's user may read, too."""
    folder.chmod(0o755)
    (folder / "routes.yaml").write_text(ROUTES.replace("ENGINE", engine))


def modules(image: Image, *names: str) -> list[str]:
    """Those that could be imported inside."""
    code = f"import importlib.util as u; print(*(n for n in {names!r} if u.find_spec(n)))"
    done = once(image, "python", "-c", code)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def weights(image: Image) -> list[Path]:
    """A recognition engine's files of weights."""
    return [path for path in (image.root / "opt").rglob("*.onnx") if path.stat().st_size > 1_000_000]


def wait_healthy(container: Container) -> None:
    """Wait as a container engine does."""
    for _ in range(300):
        if container.healthy():
            return
    raise TimeoutError("never healthy")


def read_receipt() -> str:
    picture = base64.b64encode((ROOT / "docs/images/receipt.png").read_bytes()).decode()
    body = chat(image=f"data:image/png;base64,{picture}")
    reply = httpx.post(f"{URL}/v1/chat/completions", json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["message"]["content"])


async def post(http: httpx.AsyncClient, **members: Any) -> httpx.Response:
    return await http.post("/v1/chat/completions", json=chat(**members))
