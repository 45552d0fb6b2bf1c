"""What the clients' tests share: a client's process, and a gateway's process with what it logs."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

import httpx

from bench.engines import engine_processes, write_config
from bench.serving import ROOT, serve
from gateway.wire.vllm.engine import read_metrics
from tests.clients.install import Environment, environment
from tests.test_documents import pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from bench.engines import EngineProcess
    from bench.serving import Served

MODEL = "glm-ocr"
RECEIPT = ROOT / "docs/images/receipt.png"
RECEIPT_TEXT = (
    "CORNER BAKERY\n12 Mill Street, Oxford\nDate: 2026-03-14 Table 7\n2 Sourdough loaf 9.00\n"
    "1 Apple tart 4.20\n3 Espresso 7.50\nTotal 20.70\nCash 25.00\nChange 4.30"
)
DEPTHS = (3, 0)
_HOST = "http://127.0.0.1:8000"
_LOOK_S = 0.05
_MARKS = (f"mark-{number}" for number in itertools.count())
# What a client would take from the environment of whoever runs the tests.
_STRANGE = re.compile(
    r"(?i)(https?|all|no)_proxy|(openai|mistral|langchain|langsmith|mineru|glmocr|zhipu)_.*|hf_token"
)

Line = dict[str, Any]


def wait(condition: Callable[[], object], what: str, within_s: float = 120) -> None:
    """Wait until something is so.

    Raises:
        TimeoutError: it never is.
    """
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {within_s:.0f} s: {what}")
        time.sleep(_LOOK_S)


class Driven:
    """A client at work, in a process of its own."""

    def __init__(
        self, command: Sequence[str], cwd: Path, program: IO[str] | None, env: Mapping[str, str]
    ) -> None:
        kept = {name: value for name, value in os.environ.items() if not _STRANGE.fullmatch(name)}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**kept, **env},
            stdin=program or subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def said(self) -> str:
        """Wait for its next line, and return it."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"it ended without a word:\n{self._tail()}"
        return line.rstrip("\n")

    def output(self, within_s: float = 240) -> str:
        """Wait for its end, which must be a good one, and return what it printed since."""
        printed, told = self._ended(within_s)
        assert self.process.returncode == 0, told
        return printed

    def failed(self, within_s: float = 240) -> str:
        """Wait for its end, which must be a bad one, and return what it told last."""
        _, told = self._ended(within_s)
        assert self.process.returncode > 0, told
        return told

    def result(self, within_s: float = 240) -> Any:
        """Wait for its end, and return the JSON value of its last line."""
        return json.loads(self.output(within_s).splitlines()[-1])

    def kill(self) -> None:
        """End it, unless it has ended, as a crash or an operator would: it closes nothing."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        self._errors.close()

    def _ended(self, within_s: float) -> tuple[str, str]:
        try:
            printed, _ = self.process.communicate(timeout=within_s)
            late = ""
        except subprocess.TimeoutExpired:
            printed, late = "", f"the client was not done after {within_s:.0f} s\n"
        told = late + self._tail()
        self.kill()
        return printed, told

    def _tail(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-4000:]


@dataclass(frozen=True)
class Client:
    """A client, by its folder and where it is installed; `cwd` is where its processes run."""

    folder: Path
    environment: Environment
    cwd: Path
    _started: list[Driven] = field(default_factory=list)

    def start(
        self, *arguments: object, env: Mapping[str, str] | None = None, program: Path | None = None
    ) -> Driven:
        """Start its drive.py, or another program, with arguments."""
        words = list(map(str, arguments))
        if self.environment.node:
            # A program on the standard input finds the packages of the folder that it runs in.
            with (program or self.folder / "drive.mjs").open() as text:
                command = ["node", "--input-type=module", "-", *words]
                driven = Driven(command, self.environment.folder, text, env or {})
        else:
            command = [str(self.environment.python), str(program or self.folder / "drive.py"), *words]
            driven = Driven(command, self.cwd, None, env or {})
        self._started.append(driven)
        return driven

    def run(self, *arguments: object, within_s: float = 240, env: Mapping[str, str] | None = None) -> Any:
        """Run its drive.py to the end; return the JSON value that it printed."""
        return self.start(*arguments, env=env).result(within_s)

    def end(self) -> None:
        """End what still runs."""
        for driven in self._started:
            driven.kill()


class Watched:
    """A gateway in a process of its own, and what it logs of each request."""

    def __init__(self, served: Served, log: Path, engines: Sequence[EngineProcess] = ()) -> None:
        self.url = served.url
        self.v1 = f"{served.url}/v1"
        self.served = served
        self.engines = engines
        self._log = log
        self._read = 0
        self._http = httpx.Client(timeout=30)

    def close(self) -> None:
        """Close its own connections."""
        self._http.close()

    def status(self) -> dict[str, Any]:
        """Return what GET /status tells."""
        told: dict[str, Any] = self._http.get(f"{self.url}/status").json()
        return told

    def lines(self) -> list[Line]:
        """Return the requests that have ended since the last time it was settled."""
        return self._access()[self._read :]

    def seen(self, count: int = 1, **fields: object) -> None:
        """Wait until so many requests with these fields have ended since it was settled."""

        def found() -> bool:
            return sum(fields.items() <= line.items() for line in self.lines()) >= count

        wait(found, f"{count} requests with {fields}")

    def settled(self) -> list[Line]:
        """Wait until nothing is under way; return the requests since the last time, as they ended."""
        wait(self.idle, "all routes idle")
        # Lines are written in the order of the requests' ends: behind this one's nothing is missing.
        mark = next(_MARKS)
        refused = self._http.post(
            f"{self.v1}/chat/completions",
            json={"model": "nobody", "messages": [{"role": "user", "content": "hello"}]},
            headers={"x-request-id": mark},
        )
        assert refused.status_code == 404, refused.text
        wait(lambda: any(line["request_id"] == mark for line in self.lines()), "a line of the log")
        lines = self.lines()
        self._read += len(lines)
        return lines[:-1]

    def idle(self) -> bool:
        """Whether no request is in flight or waits, and no engine works."""
        routes = self.status()["routes"].values()
        return not any(route["in_flight"] or route["waiting"] for route in routes) and not self.running()

    def running(self) -> float:
        """Return how many requests the simulated engines have."""
        pages = (self._http.get(f"{engine.url}/metrics").content for engine in self.engines)
        readings = map(read_metrics, pages)
        return sum(reading.running + reading.waiting for reading in readings)

    @contextlib.contextmanager
    def failing(self, kind: str, **options: object) -> Iterator[None]:
        """Have every simulated engine suffer from a fault until the block is left."""
        self._fault(kind=kind, **options)
        try:
            yield
        finally:
            self.heal()

    def heal(self) -> None:
        """End all faults."""
        self._fault(kind="none")

    def _fault(self, **fault: object) -> None:
        for engine in self.engines:
            self._http.post(f"{engine.url}/faults", json=fault).raise_for_status()

    def _access(self) -> list[Line]:
        whole, _, _ = self._log.read_text().rpartition("\n")
        lines = (json.loads(line) for line in whole.splitlines() if '"gateway.access"' in line)
        return [line for line in lines if line["message"] == "request"]


@contextlib.contextmanager
def watched(config: Path, log: Path, engines: Sequence[EngineProcess] = ()) -> Iterator[Watched]:
    """Serve a configuration until the block is left."""
    with log.open("wb") as file, serve(config, file.fileno(), ["--log-format", "json"]) as served:
        found = Watched(served, log, engines)
        try:
            yield found
        finally:
            found.close()


@contextlib.contextmanager
def simulating(
    folder: Path, depths: Sequence[int] = DEPTHS, time_scale: float = 20.0, **sections: Any
) -> Iterator[Watched]:
    """Serve simulated engines until the block is left, one at least of depth 3 and one of 0.

    `sections` are further ones of routes.yaml.
    """
    with engine_processes(depths, time_scale) as engines:
        config = folder / "routes.yaml"
        write_config(config, engines, **sections)
        with watched(config, folder / "gateway.log", engines) as found:
            wait(lambda: all(engine["up"] for engine in found.status()["engines"]), "all engines up")
            yield found


def check_own_retry(client: Client, served: Watched) -> None:
    """While engines are busy a client asks again by itself, and has a good answer once they are not."""
    with served.failing("unavailable"):
        asking = client.start("one", served.v1, MODEL, RECEIPT)
        served.seen(code=503)
    assert asking.result().startswith("This text is simulated")
    codes = [line["code"] for line in served.settled()]
    assert set(codes[:-1]) == {503}
    assert codes[-1] == 200


def check_giving_up(client: Client, served: Watched, requests: int) -> None:
    """Where engines stay busy a client gives up after so many requests, with the engine's own words."""
    with served.failing("unavailable"):
        told = client.start("one", served.v1, MODEL, RECEIPT).failed()
    assert "the engine takes no more work now" in told
    assert [line["code"] for line in served.settled()] == [503] * requests


def check_killed_in_mid_stream(client: Client, served: Watched) -> None:
    """A client that is killed while its stream comes leaves the engine without work."""
    asking = client.start("leave", served.v1, MODEL, RECEIPT)
    assert asking.said() == "This"
    assert served.running() == 1
    asking.kill()
    assert [line["code"] for line in served.settled()] == [499]


def check_killed_at_work(client: Client, served: Watched, case: str = "leave") -> None:
    """A client that is killed while it waits for an answer leaves the engine without work."""
    with served.failing("slow", factor=100_000):
        asking = client.start(case, served.v1, MODEL, RECEIPT)
        wait(served.running, "the engine works")
        asking.kill()
        assert [line["code"] for line in served.settled()] == [499]


def check_snippet(client: Client, served: Watched) -> None:
    """Run the snippet of docs/clients.md in a client's environment; what it prints must be what is shown."""
    code, shown = snippet(client.folder.name)
    code = code.replace(_HOST, served.url).replace("docs/images/", f"{ROOT}/docs/images/")
    program = client.cwd / ("snippet.mjs" if client.environment.node else "snippet.py")
    program.write_text(code)
    printed = client.start(program=program).output()
    assert re.fullmatch(pattern(shown), printed.strip(), re.DOTALL), printed


def snippet(name: str) -> tuple[str, str]:
    """Return a client's first snippet in docs/clients.md, and the output shown with it."""
    page = (ROOT / "docs/clients.md").read_text()
    section = re.search(rf"(?ims)^## {re.escape(name)}$(.*?)(?=^## |\Z)", page)
    assert section, f"docs/clients.md has no section {name!r}"
    found = re.search(r"(?s)```(?:python|javascript)\n(.*?)```\n+```text\n(.*?)```", section[1])
    assert found, f"docs/clients.md shows no snippet and output of {name!r}"
    return found[1], found[2]


def client_of(folder: Path, cwd: Path) -> Client:
    """Return the client of a folder.

    Raises:
        LookupError: it is not installed.
    """
    found = environment(folder.name)
    if not found.complete:
        raise LookupError(f"not installed: python -m tests.clients.install {folder.name}")
    return Client(folder, found, cwd)
