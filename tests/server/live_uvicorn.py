"""The lowest uvicorn that pyproject.toml allows, in a folder of its own, under a served gateway."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

import openai

from bench.serving import ROOT, serve
from tests.support import FakeEngine, chat, served

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

CONFIG = """
model: glm-ocr
pools: {p: {engines: [ENGINE]}}
routes: {text: {}}
polling: {scrape_s: 0.05}
server: {linger_s: 0, drain_s: 5}
"""


def lowest() -> str:
    """The lowest version that is allowed; there is no highest."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (declared,) = (line for line in project["dependencies"] if line.startswith("uvicorn"))
    found = re.fullmatch(r"uvicorn>=([0-9.]+)", declared)
    assert found, declared
    return found[1]


async def test_requests_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, version = tmp_path / "packages", lowest()
    install = ["-m", "pip", "install", "--quiet", "--no-deps", f"--target={folder}", f"uvicorn=={version}.0"]
    subprocess.run([sys.executable, *install], check=True, timeout=240)  # noqa: ASYNC221 - nothing else runs
    monkeypatch.setenv("PYTHONPATH", str(folder))
    told = [sys.executable, "-c", "import uvicorn; print(uvicorn.__version__, end='')"]
    assert subprocess.check_output(told, text=True) == f"{version}.0"  # noqa: ASYNC221
    async with served(FakeEngine()) as url:
        (tmp_path / "routes.yaml").write_text(CONFIG.replace("ENGINE", url))
        log = tmp_path / "log"
        with log.open("wb") as file:
            serving = serve(tmp_path / "routes.yaml", file.fileno())
            running = await asyncio.to_thread(serving.__enter__)
            try:
                async with openai.AsyncOpenAI(
                    base_url=f"{running.url}/v1", api_key="x", max_retries=0
                ) as sdk:
                    assert (await sdk.models.retrieve("glm-ocr")).id == "glm-ocr"
                    whole = await sdk.chat.completions.create(**chat())
                    assert whole.choices[0].message.content == "hello world"
                    stream = await sdk.chat.completions.create(**chat(stream=True))
                    pieces = [piece.choices[0].delta.content or "" async for piece in stream]
                    assert "".join(pieces) == "hello world"
            finally:
                await asyncio.to_thread(serving.__exit__, None, None, None)
        assert running.process.returncode == 0
        assert "Traceback" not in log.read_text()
