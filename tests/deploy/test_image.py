"""The Dockerfile, its locks and .dockerignore, as texts; tests/image builds the images and runs them."""

from __future__ import annotations

import fnmatch
import http.server
import json
import re
import shlex
import subprocess
import sys
import threading
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.serving import ROOT
from gateway.cli import parser

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = ROOT / "deploy/image"
TEXT = (ROOT / "Dockerfile").read_text()
IGNORE = (ROOT / ".dockerignore").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SHIPPED = ("gateway", "embedded")
HEAVY = {"rapidocr", "onnxruntime", "opencv-python-headless", "matplotlib"}
_LOCKED = re.compile(r"^([a-z0-9.-]+)==([^ ]+)", re.MULTILINE)


@dataclass
class Stage:
    """One stage: its base and its instructions, `(COPY, "a b")`."""

    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, kind: str) -> list[str]:
        return [rest for name, rest in self.steps if name == kind]


def stages(text: str) -> dict[str, Stage]:
    """Read a Dockerfile, as far as ours goes."""
    found: dict[str, Stage] = {}
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in lines.replace("\\\n", " ").splitlines():
        name, _, rest = line.strip().partition(" ")
        if name == "FROM":
            base, _, alias = rest.partition(" AS ")
            stage = found[alias] = Stage(base)
        elif found and name:
            stage.steps.append((name, rest.strip()))
    return found


def lineage(text: str, target: str) -> list[Stage]:
    """A stage and the stages of this file that it stands on: all of whose files ship with it."""
    known = stages(text)
    line = [known[target]]
    while (base := line[-1].base) in known:
        line.append(known[base])
    return line


def last(text: str, target: str, kind: str) -> str:
    """The instruction of a kind that counts."""
    return [rest for stage in reversed(lineage(text, target)) for rest in stage.all(kind)][-1]


def lets_through(ignore: str, path: str) -> bool:
    """Whether a build sees a file: the last pattern that matches it, or a folder it is in, decides."""
    seen = True
    inside = [path, *(str(parent) for parent in Path(path).parents if str(parent) != ".")]
    for line in ignore.split("\n"):
        pattern = line.removeprefix("!").removeprefix("**/")
        names = [Path(one).name for one in inside] if "**/" in line else inside
        if line and not line.startswith("#") and any(fnmatch.fnmatchcase(name, pattern) for name in names):
            seen = line.startswith("!")
    return seen


def copied(text: str) -> set[str]:
    """What a build takes from the repository."""
    copies = [rest for stage in stages(text).values() for rest in stage.all("COPY")]
    return {source for rest in copies if "--from=" not in rest for source in rest.split()[:-1]}


def problems(text: str, ignore: str) -> Iterator[str]:
    """Everything that is wrong by our own reading."""
    for source in copied(text):
        files = [ROOT / source]
        if files[0].is_dir():
            files = [path for path in files[0].rglob("*") if path.is_file() and path.suffix != ".pyc"]
        for path in files:
            name = path.relative_to(ROOT).as_posix()
            if not path.exists() or not lets_through(ignore, name):
                yield f"{name} is copied, but not there or ignored"
    if list(stages(text))[-1] != "gateway":
        yield "the default target is not the small one"
        return
    for target in SHIPPED:
        if not re.fullmatch(r"[1-9]\d*:[1-9]\d*", last(text, target, "USER")):
            yield f"{target}: a user that Kubernetes cannot tell from root"
        for kind in ("ENTRYPOINT", "CMD"):
            if not last(text, target, kind).startswith("["):
                yield f"{target}: {kind} runs in a shell, which swallows SIGTERM"
        if any(
            "install" in step or "apt" in step for stage in lineage(text, target) for step in stage.all("RUN")
        ):
            yield f"{target}: installs into what ships"
        for stage in lineage(text, target):
            for copy in stage.all("COPY"):
                if "--from=" in copy and f"--from={target}-environment " not in copy:
                    yield f"{target}: copies {copy}"
    for name, stage in stages(text).items():
        for step in stage.all("RUN"):
            for command in step.split("&&"):
                safe = "--require-hashes" in command or {"--no-index", "--no-deps"} <= set(command.split())
                if " install " in command and not (safe and "apt" not in command):
                    yield f"{name}: installs what no hash was written down for"


def locked(path: Path) -> dict[tuple[str, str], set[str]]:
    """The hashes of each name and version."""
    entries = re.split(r"\n(?=[a-z0-9])", path.read_text())
    found = {}
    for entry in entries:
        if match := _LOCKED.match(entry):
            found[match[1], match[2]] = set(re.findall(r"--hash=(\S+)", entry))
    return found


def names(path: Path) -> set[str]:
    return {name for name, _ in locked(path)}


def required(requirements: list[str]) -> set[str]:
    return {re.split(r"[^a-z0-9-]", one)[0] for one in requirements}


class TestDockerfile:
    """Standard linter, and our own reading."""

    def test_hadolint_finds_nothing(self) -> None:
        assert hadolint(TEXT) == ""

    def test_hadolint_does_look(self) -> None:
        assert "DL3002" in hadolint(TEXT.replace("USER 65532:65532", "USER root"))

    def test_nothing_is_wrong_by_our_own_reading(self) -> None:
        assert list(problems(TEXT, IGNORE)) == []

    @pytest.mark.parametrize(
        ("right", "wrong", "told"),
        [
            ("USER 65532:65532", "USER nobody", "gateway: a user that Kubernetes cannot tell from root"),
            ("USER 65532:65532", "USER 0:0", "embedded: a user that Kubernetes cannot tell from root"),
            ('ENTRYPOINT ["ocr-gateway"]', "ENTRYPOINT ocr-gateway", "gateway: ENTRYPOINT runs in a shell"),
            ("EXPOSE 8000", "RUN pip install a", "gateway: installs into what ships"),
            (" --require-hashes -r gateway.lock", " -r gateway.lock", "no hash was written down"),
            (
                "FROM runtime AS gateway\n",
                "FROM runtime AS small\n",
                "the default target is not the small one",
            ),
            ("COPY --from=gateway-environment", "COPY --from=embedded-environment", "gateway: copies"),
            ("COPY gateway gateway", "COPY gateway secrets gateway", "secrets is copied, but not there"),
            ("COPY gateway gateway", "COPY gateway docs gateway", "is copied, but not there or ignored"),
        ],
    )
    def test_a_mistake_is_found(self, right: str, wrong: str, told: str) -> None:
        assert right in TEXT
        found = list(problems(TEXT.replace(right, wrong), IGNORE))
        assert any(told in one for one in found), found

    def test_its_base_is_pinned_to_the_patch_and_the_digest(self) -> None:
        (base,) = re.findall(r"^ARG BASE=(.*)$", TEXT, re.MULTILINE)
        assert re.fullmatch(r"python:3\.11\.\d+-slim-bookworm@sha256:[0-9a-f]{64}", base)
        own = [stage.base for name, stage in stages(TEXT).items() if stage.base not in stages(TEXT)]
        assert set(own) == {"${BASE}"}

    def test_its_version_is_the_projects(self) -> None:
        told = re.findall(r"ocr-gateway:(\d[\w.]*)", TEXT)
        told += re.findall(r'image\.version="(.*?)"', last(TEXT, "gateway", "LABEL"))
        assert set(told) == {PROJECT["version"]}

    def test_its_labels_are_the_projects(self) -> None:
        labels = dict(part.split("=", 1) for part in shlex.split(last(TEXT, "gateway", "LABEL")))
        prefix = "org.opencontainers.image."
        assert labels[f"{prefix}title"] == PROJECT["name"]
        assert labels[f"{prefix}description"] == PROJECT["description"]
        assert labels[f"{prefix}licenses"] == PROJECT["license"]
        assert labels[f"{prefix}revision"] == "${REVISION}"
        assert labels[f"{prefix}source"] == "${SOURCE}"

    def test_its_command_serves_what_is_mounted_on_the_port_that_it_exposes(self) -> None:
        options = parser().parse_args(json.loads(last(TEXT, "gateway", "CMD")))
        assert str(options.port) == last(TEXT, "gateway", "EXPOSE")
        assert options.host == "0.0.0.0"
        assert str(options.config.parent) == last(TEXT, "gateway", "WORKDIR")


class TestHealth:
    """The command that a container engine asks, on a port of ours."""

    @pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
    def test_it_tells_what_health_answers_whatever_proxy_is_configured(self, status: int, code: int) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                assert self.path == "/health"
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
            asked = threading.Thread(target=server.handle_request)
            asked.start()
            assert health(server.server_port) == code
            asked.join()
            port = server.server_port
        assert health(port) == 1


def health(port: int) -> int:
    """The exit status of the image's health check."""
    _, _, form = last(TEXT, "gateway", "HEALTHCHECK").partition(" CMD ")
    python, *rest = json.loads(form.replace("8000", str(port)))
    assert python == "python"
    proxy = {"http_proxy": "http://127.0.0.1:9"}
    return subprocess.run(
        [sys.executable, *rest], env=proxy, stderr=subprocess.DEVNULL, check=False
    ).returncode


class TestIgnore:
    """.dockerignore: a build sees what it copies, and nothing else."""

    def test_all_that_is_let_through_is_copied(self) -> None:
        patterns = {line[1:] for line in IGNORE.split() if line.startswith("!")}
        unused = {
            one for one in patterns if not any(fnmatch.fnmatchcase(source, one) for source in copied(TEXT))
        }
        assert unused == set()

    @pytest.mark.parametrize(
        "path",
        [
            ".env",
            ".git/config",
            ".venv/bin/python",
            "deploy/compose.yaml",
            "gateway/__pycache__/api.cpython-311.pyc",
            "keys",
            "tests/support.py",
        ],
    )
    def test_the_rest_stays_out(self, path: str) -> None:
        assert not lets_through(IGNORE, path)

    def test_a_forgotten_line_is_found(self) -> None:
        found = list(problems(TEXT, IGNORE.replace("!gateway\n", "")))
        assert "gateway/api/endpoints.py is copied, but not there or ignored" in found


class TestLocks:
    """Made by `make lock`, held to requirements-dev.lock, which the tests run on."""

    @pytest.mark.parametrize("lock", ["build", "gateway", "embedded"])
    def test_versions_and_hashes_are_those_that_are_tested(self, lock: str) -> None:
        tested = locked(ROOT / "requirements-dev.lock")
        mine = locked(FOLDER / f"{lock}.lock")
        assert mine
        for pinned, hashes in mine.items():
            assert hashes, pinned
            assert tested.get(pinned) == hashes, pinned

    def test_the_small_one_holds_the_base_dependencies_and_nothing_heavy(self) -> None:
        small = names(FOLDER / "gateway.lock")
        tracing = PROJECT["optional-dependencies"]["tracing"]
        assert required([*PROJECT["dependencies"], *tracing]) <= small
        assert not small & HEAVY
        assert not small & required([*PROJECT["optional-dependencies"]["embedded"], "hatchling"])

    def test_the_large_one_holds_the_extras_too(self) -> None:
        large = locked(FOLDER / "embedded.lock")
        assert locked(FOLDER / "gateway.lock").items() <= large.items()
        extras = PROJECT["optional-dependencies"]
        assert required(extras["embedded"] + extras["sweep"]) | HEAVY <= {name for name, _ in large}

    def test_no_index_is_named(self) -> None:
        for path in FOLDER.glob("*.lock"):
            assert "://" not in path.read_text(), path


class TestBillOfMaterials:
    """`make sbom`."""

    def test_it_is_valid_and_lists_exactly_what_is_locked(self, tmp_path: Path) -> None:
        make = ["make", "--silent", "--jobs=2", "--old-file=.venv/dev.stamp", "sbom", f"SBOM={tmp_path}"]
        subprocess.run(make, cwd=ROOT, check=True, capture_output=True)  # it validates what it writes
        for target in SHIPPED:
            bill = json.loads((tmp_path / f"{target}.cdx.json").read_text())
            assert bill["bomFormat"] == "CycloneDX"
            listed = [(one["name"], one["version"]) for one in bill["components"]]
            assert sorted(listed) == sorted(locked(FOLDER / f"{target}.lock"))
            described = bill["metadata"]["component"]
            assert (described["name"], described["version"]) == (PROJECT["name"], PROJECT["version"])


def hadolint(text: str) -> str:
    """What hadolint says."""
    program = Path(sys.executable).parent / "hadolint"
    return subprocess.run([program, "-"], input=text, capture_output=True, text=True, check=False).stdout
