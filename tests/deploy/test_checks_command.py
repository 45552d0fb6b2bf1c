"""`python -m deploy.checks DIR...` as an operator meets it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from deploy.checks import render
from deploy.checks.__main__ import main
from tests.deploy.renderings import KUBERNETES

if TYPE_CHECKING:
    from pathlib import Path

SERVICE = (
    "apiVersion: v1\nkind: Service\nmetadata: {name: lost}\nspec: {selector: {a: b}, ports: [{port: 80}]}\n"
)


def kustomization(folder: Path, text: str) -> Path:
    (folder / "kustomization.yaml").write_text("resources: [service.yaml]\n")
    (folder / "service.yaml").write_text(text)
    return folder


def test_each_directory_is_told_and_any_problem_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = kustomization(tmp_path, SERVICE)
    assert main([str(KUBERNETES / "overlays/cpu-demo"), str(mine)]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("objects, nothing wrong")
    assert second.startswith(f"{mine}: Service/lost: spec.selector: matchLabels=a=b matches no pod")


def test_an_overlay_that_is_clean_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(KUBERNETES / "overlays/cpu-demo")]) == 0
    assert "nothing wrong" in capsys.readouterr().out


def test_what_cannot_be_rendered_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert (
        f"{tmp_path}: cannot be rendered: unable to find one of 'kustomization.yaml'"
        in capsys.readouterr().out
    )


def test_kubectl_is_looked_for_beside_python_and_then_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(render.RenderError, match="kubectl is not installed"):
        render.kubectl()
    (tmp_path / "kubectl").write_text("#!/bin/sh\n")
    (tmp_path / "kubectl").chmod(0o755)
    assert render.kubectl() == str(tmp_path / "kubectl")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/kubectl").touch()
    assert render.kubectl() == str(tmp_path / "bin/kubectl")
