"""Runs every command and snippet of the README and docs/ and compares what comes out with what is shown."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from bench.serving import ROOT
from gateway.config import parse

if TYPE_CHECKING:
    from bench.serving import Served

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_OUTPUT = ("text", "json")
# Continuous integration runs these by themselves.
_RUN_ELSEWHERE = re.compile(
    r"^make (run|test|test-clients|test-vllm|test-image|rehearse|bench|stack)\b.*$", re.MULTILINE
)
# The tests of clients run its snippets, each where its client is installed.
_CLIENTS = "clients.md"


@dataclass(frozen=True)
class Block:
    """A fenced block, and the output that stands directly after it."""

    document: str
    language: str
    text: str
    output: str | None


def blocks(*languages: str) -> list[Any]:
    found = []
    for path in DOCUMENTS:
        matches = list(_BLOCK.finditer(path.read_text()))
        for match, follower in itertools.zip_longest(matches, matches[1:]):
            language, text = match.groups()
            shown = follower is not None and follower[1] in _OUTPUT
            near = shown and follower.start() - match.end() < 5
            block = Block(path.name, language, text, follower[2] if near else None)
            if language in languages and not (language == "python" and path.name == _CLIENTS):
                found.append(pytest.param(block, id=f"{path.name}:{text[:30].strip()!r}"))
    return found


def run(block: Block, served: Served) -> str:
    text = _RUN_ELSEWHERE.sub("", block.text).replace("http://127.0.0.1:8000", served.url)
    command = (
        [sys.executable, "-c", text]
        if block.language == "python"
        else ["bash", "-euo", "pipefail", "-c", text]
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def pattern(output: str) -> str:
    """What is shown, with `...` for whatever differs from run to run and white space as it comes."""
    pieces = (r"\s+".join(map(re.escape, piece.split())) for piece in output.strip().split("..."))
    return r"\s*.*?\s*".join(pieces)


@pytest.mark.parametrize("block", blocks("bash", "python"))
def test_commands_and_snippets_do_what_is_shown(block: Block, whole: Served) -> None:
    output = run(block, whole)
    if block.output is not None:
        assert re.fullmatch(pattern(block.output), output.strip(), re.DOTALL), output


@pytest.mark.parametrize("block", blocks("yaml"))
def test_configurations_are_valid(block: Block) -> None:
    text = block.text
    if "model" not in yaml.safe_load(text):
        text = (ROOT / "routes.yaml").read_text().partition("\nsorting:")[0] + "\n" + text
    parse(text, block.document, ROOT, {})


@pytest.mark.parametrize("block", blocks("json"))
def test_json_is_json(block: Block) -> None:
    decoder, text = json.JSONDecoder(), block.text.replace(":...", ":0").replace(": ...", ": 0").strip()
    while text:
        _, end = decoder.raw_decode(text)
        text = text[end:].strip()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (path.parent / target).exists(), target


def test_the_documented_metrics_and_codes_are_the_ones_there_are(whole: Served) -> None:
    text = (ROOT / "docs/http-api.md").read_text()
    page = whole.get("/metrics")
    exported = {name.removesuffix("_total") for name in re.findall(r"^# TYPE (\S+)", page, re.MULTILINE)}
    documented = {name.removesuffix("_total") for name in re.findall(r"`(ocr_gateway_\w+)`", text)}
    exported = {name for name in exported if not name.startswith("process_")}
    with_keys = {"ocr_gateway_key_requests", "ocr_gateway_key_image_bytes"}
    assert documented - with_keys == exported
    source = "".join(path.read_text() for path in (ROOT / "gateway").rglob("*.py"))
    for code in re.findall(
        r"`([a-z]+_[a-z_]+)`", text.partition("| status |")[2].partition("An engine's own")[0]
    ):
        assert f'"{code}"' in source, code
