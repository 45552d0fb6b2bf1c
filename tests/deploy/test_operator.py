"""docs/deploy.md's overlay, made by its own commands in a copy of the tree: they print what it shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from bench.serving import ROOT
from deploy.checks.render import render
from deploy.checks.run import problems
from gateway.config.api_keys import parse_keys


def fences(language: str, step: int = 2) -> list[str]:
    text = (ROOT / "docs/deploy.md").read_text()
    section = re.search(rf"^## {step}\..*?(?=^## {step + 1}\.)", text, re.MULTILINE | re.DOTALL)
    assert section
    return re.findall(rf"^```{language}\n(.*?)^```$", section[0], re.MULTILINE | re.DOTALL)


def ran(folder: Path, script: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert not done.stderr
    return done.stdout


def test_an_operators_own_overlay_comes_out_of_the_commands_that_are_shown(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy", ignore=shutil.ignore_patterns("__pycache__"))
    *shown, wrong = fences("text")
    assert ran(tmp_path, "\n".join(fences("sh"))) == "".join(shown)

    mine = tmp_path / "deploy/kubernetes/overlays/mine"
    objects = {(one["kind"], one["metadata"]["name"]): one for one in render(mine)}
    assert "observability" in str(objects["NetworkPolicy", "ocr-gateway"]["spec"]["ingress"])
    assert "replicas" not in objects["StatefulSet", "vllm-mtp3"]["spec"]

    own = mine / "kustomization.yaml"
    own.write_text(own.read_text().replace('~1gpu, value: "2"', '~1gpu, value: "1"'))
    told = [f"deploy/kubernetes/overlays/mine: {problem}" for problem in problems(render(mine))]
    assert wrong.strip() in told


def test_the_clients_keys_are_made_as_shown_and_the_configuration_takes_them(tmp_path: Path) -> None:
    make, *_ = fences("sh", 3)
    told = ran(tmp_path, f"{make}{make}")
    first, second = re.findall(r"[0-9a-f]{64}", told)
    keys = parse_keys((tmp_path / "keys").read_bytes(), "keys")
    assert {keys.owner(key.encode()) for key in (first, second)} == {"invoices"}
    assert keys.owner(b"") is None
    routes = ROOT / "deploy/kubernetes/overlays/production/routes.yaml"
    said = ran(tmp_path, f"KEYS_FILE=$PWD/keys ocr-gateway check --config {routes}")
    assert "2 API keys of 1 name" in said
